"""The part on adding a model tells the truth: its file trains in the package, outside it and in a cell."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import baselines.omit  # noqa: F401  the page names CLIP, too
import pytest
from code_blocks import blocks, run

import nclib
from nclib import models
from nclib.common.options import rules
from nclib.models import FragmentMatcher, Matcher

PAGE = Path(__file__).resolve().parents[2] / "book" / "add_a_method.md"
BLOCKS = blocks(PAGE)
ROOT = Path(nclib.__file__).parents[1]
IMPORT = "import best_region  # not needed in a cell, nor for a file in nclib/models/\n"

CHECK = """
import torch
from nclib.models import Tokens
model = nclib.models.build("best_region", feature_dim=8, vocab_size=20, embed_dim=6, word_dim=5).eval()
images, ids = torch.randn(3, 4, 8), torch.tensor([[1, 5, 2, 0, 0], [1, 6, 7, 8, 2]])
S = model(images, Tokens(ids, (3, 5)))
alone = model(images, Tokens(ids[:1, :3], (3,)))
assert torch.allclose(S[:, :1], alone, atol=1e-6) and bool((S.abs() <= 1).all())
v, w = model.encode_images(images), model.encode_captions(Tokens(ids, (3, 5)))
cosine = torch.stack([v.regions @ w.words[k, : w.lengths[k]].t() for k in range(2)][1:])[0]  # (3, R, w)
naive = (torch.softmax(cosine / 0.05, 1) * cosine).sum(1).mean(1)
assert torch.allclose(S[:, 1], naive, atol=1e-6)
two = w.select([0, 1])
pairs = model.paired_similarity(v.select([0, 1]), two)
assert torch.allclose(pairs, S[:2].diagonal(), atol=1e-6)
try:
    nclib.models.build("best_region", feature_dim=8, vocab_size=20, softness=-1)
except ValueError as error:
    print(error)
print(record.settings["model_options"])
"""


def told(out: str) -> None:
    assert "softness  " in out
    assert "rSum" in out
    assert "softness=-1: must be a number, above 0" in out
    assert "'softness': 0.1" in out


@pytest.mark.slow
def test_a_file_in_the_package_is_a_model(tmp_path: Path) -> None:
    here = tmp_path / "nclib"
    shutil.copytree(ROOT / "nclib", here, ignore=shutil.ignore_patterns("__pycache__"))
    (here / "models" / "best_region.py").write_text(BLOCKS["best-region"].code, "utf8")
    used = BLOCKS["run-best-region"].code
    assert IMPORT in used
    place = "\nimport pathlib\nassert pathlib.Path(nclib.__file__).parent == pathlib.Path.cwd() / 'nclib'\n"
    told(run(used.replace(IMPORT, "") + place + CHECK, tmp_path, tmp_path))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cell_of_a_notebook_is_enough(tmp_path: Path) -> None:
    cell = f"exec(compile({BLOCKS['best-region'].code!r}, 'cell', 'exec'))\n"
    told(run(2 * cell + BLOCKS["run-best-region"].code.replace(IMPORT, "") + CHECK, tmp_path, ROOT))


@pytest.mark.parametrize("name", ["similarity", "paired_similarity", "own_loss", "score_range"])
def test_what_the_page_names_exists(name: str) -> None:
    page = PAGE.read_text("utf8").partition("\n## A model\n")[2]
    assert f"`{name}`" in page
    assert hasattr(Matcher, name)
    for public in set(re.findall(r"~nclib\.models\.(\w+)`", page)):
        assert public in models.__all__
    assert hasattr(FragmentMatcher, "training_bytes")
    assert {"pair_scores"} <= FragmentMatcher.__abstractmethods__
    taken = set(rules(models.options("vse"))) | set(rules(models.options("clip")))
    table = page[page.index("| option of a model") :]
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if row.startswith("|")]
    assert {option for row in rows for option in re.findall(r"`(\w+)`", row)} - {"clip"} <= taken
