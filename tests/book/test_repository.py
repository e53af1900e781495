"""The tree itself: what stands at the top, pinned versions that agree, notebooks stored clean."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import repository
import yaml
from executed import parts_of
from jupyter_book.config import get_final_config
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import nclib
from nclib.common.extras import DISTRIBUTION, EXTRA_OF

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    *("book", "nclib", "notebooks", "tests", "tools", "_config.yml", "_toc.yml", "environment.yml"),
    *("README.md", "pyproject.toml", "Makefile", "LICENSE", "CITATION.cff", ".ci", ".gitignore"),
    *("CONTRIBUTING.md", ".github", ".binder", ".pre-commit-config.yaml"),
}


def lock(name: str = "requirements.lock") -> dict[str, tuple[str, list[str]]]:
    """Return version and digests of each package of a lock file."""
    text = (ROOT / "book" / name).read_text("utf8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    pins = [(line[0].split("=="), line[1:]) for line in lines]
    assert all(len(pin) == 2 for pin, _ in pins)
    return {canonicalize_name(name): (version, hashes) for (name, version), hashes in pins}


def project() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"])


def test_the_top_level_is_as_designed() -> None:
    assert {name for name in TOP if (ROOT / name).exists()} == TOP
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        tracked = subprocess.run([git, "-C", str(ROOT), "ls-files"], capture_output=True, text=True).stdout
        assert {line.split("/")[0] for line in tracked.splitlines()} <= TOP


def test_the_lock_satisfies_the_project() -> None:
    pins, settings = lock(), project()
    extras: dict[str, list[str]] = settings["optional-dependencies"]  # type: ignore[assignment]
    wanted = list(map(Requirement, settings["dependencies"]))  # type: ignore[call-overload]
    waiting = ["test", "book"]
    for extra in waiting:
        for one in map(Requirement, extras[extra]):
            if one.name == DISTRIBUTION:
                waiting += one.extras
            else:
                wanted.append(one)
    pinned = [(r, pins.get(canonicalize_name(r.name), ("0.dev0",))[0]) for r in wanted]
    assert [str(r) for r, version in pinned if not r.specifier.contains(version)] == []
    assert {"train", "report", "parquet", "pretrained"} < set(waiting)
    assert set(EXTRA_OF.values()) < extras.keys()
    assert pins["torch"][0] == "2.13.0"


@pytest.mark.parametrize("name", ["requirements.lock", "cpu.lock", "cuda.lock", "grids/requirements.lock"])
def test_every_pin_has_the_digests_of_its_files(name: str) -> None:
    for package, (_, digests) in lock(name).items():
        assert digests, package
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in digests), package
        assert len(set(digests)) == len(digests), package


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    assert citation["version"] == project()["version"] == nclib.__version__
    assert str(project()["license"]).split(" AND ")[0] == citation["license"]
    assert f"\n## {nclib.__version__}\n" in (ROOT / "book" / "changelog.md").read_text("utf8")


def test_notebooks_are_stored_clean() -> None:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        nb = nbformat.read(path, 4)
        code = [c for c in nb.cells if c.cell_type == "code"]
        assert not any(c.outputs or c.execution_count for c in code), f"{path.name} holds outputs"
        assert nb.metadata.kernelspec.name == "python3", path.name
        assert sum("parameters" in c.metadata.get("tags", []) for c in code) == 1, path.name
        assert len({c.id for c in nb.cells}) == len(nb.cells), path.name


def test_every_page_of_the_contents_exists() -> None:
    pages = [page for pages in parts_of(ROOT).values() for page in pages]
    written = [*ROOT.glob("book/**/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    written = [path for path in written if not path.name.startswith("lecture_")]  # slides
    known = {path.relative_to(ROOT).with_suffix("").as_posix() for path in written}
    assert {*pages, "book/intro", "notebooks/one_run"} == known  # one_run runs any method, and is no page
    assert pages[0] == "notebooks/noisy_correspondence"  # what "next" on the landing page leads to
    assert len(pages) == len(set(pages)) <= 47  # six of them of one entry, the interfaces


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words, f"PY={sys.executable}"], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_no_word_of_a_value_is_a_command() -> None:
    name = """x"; echo 'done; echo \""""
    assert f"there is no grid {name!r}" in make("record", f"GRID={name}").stderr


def test_the_book_is_made_in_either_preset() -> None:
    quick, paper = make("-n", "book"), make("-n", "book", "PRESET=paper", "ROOT=/data", "GPUS=2")
    assert quick.returncode == paper.returncode == 0
    assert "grid.py" not in quick.stdout
    steps = ['data_check.py "$ROOT"', "grid.py", '--root "$ROOT"', '--gpus "$GPUS"', '--paper "$ROOT"']
    places = [paper.stdout.find(step) for step in (*steps, "--live", "build .")]
    assert -1 not in places
    assert places == sorted(places)
    assert "PRESET=half: must be quick or paper" in make("-n", "book", "PRESET=half").stderr
    plan = make("-n", "paper", "LIST=1").stdout
    assert ("--list" in plan, "--paper" in plan) == (True, False)
    missing = make("paper", "ROOT=/nowhere")
    assert (missing.returncode != 0, "folder of the papers' data" in missing.stderr) == (True, True)


def test_the_licence_of_the_wheel_names_what_it_ships() -> None:
    named = set(str(project()["license"]).split(" AND "))
    assert named == {"MIT", "Apache-2.0", "CC-BY-4.0", "Unicode-DFS-2016"}
    attribution = (ROOT / "nclib/data/emoji/ATTRIBUTION.md").read_text("utf8")
    assert all(name.replace("-", " ").split()[0] in attribution for name in named)
    texts = {path for pattern in project()["license-files"] for path in ROOT.glob(str(pattern))}  # type: ignore[attr-defined]
    of_drawings = {*(ROOT / "nclib").rglob("licences/*"), *(ROOT / "nclib").rglob("ATTRIBUTION.md")}
    assert texts == {ROOT / "LICENSE", *of_drawings}
    assert all((ROOT / script).is_file() for script in re.findall(r"tools/\w+\.py", attribution))


@pytest.mark.slow
def test_the_wheel_is_small_and_ships_data_and_licences(tmp_path: Path) -> None:
    for name in ("nclib", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    how = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *how, str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = set(zipfile.ZipFile(wheel).namelist())
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT / "nclib/data/emoji").rglob("*") if p.is_file()}
    assert {name for name in data if "__pycache__" not in name} < files
    assert {name.rpartition("/")[2] for name in files} >= {"LICENSE", "ATTRIBUTION.md"}
    assert (wheel.name.startswith("noisy_correspondence-"), wheel.stat().st_size < 5e6) == (True, True)


def test_actions_of_workflows_are_pinned_to_commits() -> None:
    text = "\n".join(path.read_text("utf8") for path in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action) for action in used)


def test_every_target_of_make_is_phony() -> None:
    text = (ROOT / "Makefile").read_text("utf8")
    phony = set(re.findall(r"^\.PHONY: (.*)", text, re.MULTILINE)[0].split())
    assert phony == set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE))


def test_every_supported_python_is_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text("utf8"))["jobs"]
    tested = jobs["tests"]["strategy"]["matrix"]["python"]
    specifiers = SpecifierSet(str(project()["requires-python"]))
    assert tested == [f"3.{minor}" for minor in range(100) if f"3.{minor}" in specifiers]
    assert f"Python {', '.join(tested[:-1])} or {tested[-1]}" in (ROOT / "CONTRIBUTING.md").read_text("utf8")


@pytest.mark.parametrize("url", ["", "https://github.com/someone/nclib"])
def test_a_configured_repository_gives_every_page_its_buttons(url: str) -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))
    assert config["repository"]["url"] == ""  # a copy of the book points nowhere
    config["repository"]["url"] = url
    final, _ = get_final_config(user_yaml=config, cli_config={"latex_individualpages": False})
    assert "repository" in final["extensions"]
    options = final["html_theme_options"]
    repository.add_buttons(None, SimpleNamespace(html_theme_options=options))
    assert options["repository_branch"] == "main"
    assert [options.get(name, False) for name in repository.BUTTONS] == [bool(url)] * 3
    assert options["launch_buttons"]["binderhub_url"] == ("https://mybinder.org" if url else "")
    # Binder builds what `make` builds
    assert "book/_ext/make_env.py --active" in (ROOT / ".binder/postBuild").read_text("utf8")
