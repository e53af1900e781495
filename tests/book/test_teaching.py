"""Teaching: assignments can be solved, wrong answers cost points, slides show the pages' figures."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from notebook_tools import notebook

ROOT = Path(__file__).resolve().parents[2]
TEACHING = ROOT / "book" / "teaching"
sys.path.insert(0, str(TEACHING))
SOLUTIONS = {
    "1": """
def my_loss(S, tau, q=0.7):
    p = [(S / tau).softmax(d).diagonal().clamp_min(1e-12) for d in (0, 1)]
    return (1 - p[0] ** q) / q + (1 - p[1] ** q) / q
""",
    "2": """
import numpy as np
from sklearn.linear_model import Ridge
from sklearn.mixture import GaussianMixture

def suspicion(images, captions):
    out = np.zeros(len(images))
    for half in (0, 1):
        fit, judge = np.arange(len(out)) % 2 == half, np.arange(len(out)) % 2 != half
        guess, mean = Ridge(10).fit(images[fit], captions[fit]).predict(images[judge]), captions[fit].mean(0)
        a, b = guess - mean, captions[judge] - mean
        out[judge] = -(a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return out

def share(images, captions):
    mixture = GaussianMixture(2, random_state=0, n_init=5).fit(suspicion(images, captions)[:, None])
    return mixture.weights_[mixture.means_[:, 0].argmax()]
""",
    "3": """
import numpy as np
from scipy.optimize import linprog

def plan(cost, mass, mask):
    n, m = cost.shape
    sums = np.r_[np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))]
    limits = np.r_[np.full(n, 1 / n), np.full(m, 1 / m)]
    bounds = [(0, None if free else 0) for free in mask.ravel()]
    found = linprog(cost.ravel(), sums, limits, np.ones((1, n * m)), [mass], bounds)
    return found.x.reshape(n, m)
""",
}


def submitted(name: str, code: str, folder: Path) -> Path:
    """Write an assignment whose cells hold a piece of code."""
    page = nbformat.read(TEACHING / f"assignment_{name}.ipynb", 4)
    page.cells = [nbformat.v4.new_code_cell(code)]
    path = folder / f"mine_{name}.ipynb"
    nbformat.write(page, path)
    return path


@pytest.mark.parametrize("name", SOLUTIONS)
@pytest.mark.parametrize("seed", [0, 7])
def test_a_right_answer_gets_every_point(name: str, seed: int, tmp_path: Path) -> None:
    from check import points

    assert points(submitted(name, SOLUTIONS[name], tmp_path), seed) == (10, 10)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("1", "(1 - p[1] ** q) / q", "(1 - p[1] ** q)"),
        ("2", "out[judge] = -", "out[judge] = +"),
        ("3", "None if free else 0", "None"),
    ],
)
def test_a_wrong_answer_costs_points(name: str, old: str, new: str, tmp_path: Path) -> None:
    from check import points

    assert old in SOLUTIONS[name]
    reached, total = points(submitted(name, SOLUTIONS[name].replace(old, new), tmp_path), 0)
    assert 0 <= reached < total == 10


def test_what_is_handed_out_gets_no_point_and_what_does_not_end_is_stopped(tmp_path: Path) -> None:
    endless = submitted("3", "while True: pass", tmp_path)
    handed = [(TEACHING / f"assignment_{name}.ipynb", "0 of 10 points") for name in SOLUTIONS]
    for path, last in [*handed, (endless, "not done after 8 seconds")]:
        call = [sys.executable, TEACHING / "check.py", path, *(["--limit", "8"] if path == endless else [])]
        said = subprocess.run(call, capture_output=True, text=True, timeout=100)
        assert said.returncode == 1, said.stderr
        assert last in said.stdout.splitlines()[-1]


def test_slides_hold_the_figures_of_executed_pages(tmp_path: Path) -> None:
    from slides import page

    nb = notebook("# T", "plot()")
    nb.cells[1].id = "bars"
    drawing = {"image/svg+xml": '<svg xmlns="http://www.w3.org/2000/svg"></svg>'}
    nb.cells[1].outputs = [nbformat.v4.new_output("display_data", data=drawing)]
    nbformat.write(nb, tmp_path / "losses.ipynb")
    text = "# A lecture\n\n---\n\n## One\n\n![bars <b>](losses#bars) $a<b$\n\nNote:\nsay it\n"
    made = page(text, tmp_path)
    assert made.count("<section>") == 2
    for shown in ('src="data:image/svg+xml;base64,', 'alt="bars &lt;b&gt;"', r"\(a&lt;b\)", "<p>say it</p>"):
        assert shown in made
    for wrong in ("losses#bar", "loss#bars"):
        with pytest.raises(SystemExit, match=r"bars|make html"):
            page(f"![x]({wrong})", tmp_path)


def test_reveal_comes_out_of_its_wheel_and_asks_for_nothing(tmp_path: Path) -> None:
    from slides import CHANGED, KEPT, REVEAL, unpack

    with zipfile.ZipFile(tmp_path / "rise.whl", "w") as packed:
        for name in KEPT:
            packed.writestr(
                REVEAL + CHANGED.get(name, name), "@import url(https://fonts.example/x.css); a {}"
            )
    unpack(tmp_path / "rise.whl", tmp_path / "reveal")
    assert {str(p.relative_to(tmp_path / "reveal")) for p in (tmp_path / "reveal").rglob("*.*")} >= {
        *KEPT[:5]
    }
    assert not [p for p in (tmp_path / "reveal").rglob("*.css") if "http" in p.read_text()]


@pytest.mark.parametrize("lecture", sorted(TEACHING.glob("lecture_*.md")), ids=lambda path: path.stem)
def test_figures_of_the_slides_are_cells_of_the_notebooks(lecture: Path) -> None:
    from slides import PICTURE

    wanted = PICTURE.findall(lecture.read_text("utf8"))
    assert len(wanted) >= 5
    for _, name, cell in wanted:
        cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells
        assert cell in {c.id for c in cells if c.cell_type == "code"}, (name, cell)
