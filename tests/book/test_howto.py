"""The how-to pages tell the truth: their code runs in the page's order, their commands exist or run."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from code_blocks import blocks, commands

import nclib
from nclib._options import Rule
from nclib.data import check
from nclib.data.registry import datasets
from nclib.experiment import parameters
from nclib.tables import __main__ as tables_command

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "book" / "howto"
PAGES = {path.stem: path for path in sorted(FOLDER.glob("*.md"))}
RUN_BY = {"model": "test_add_a_model.py"}  # pages with a test of their own
METHOD_OF = {"l2rm": "l2rm", "uot_rcl": "uot_rcl"}
WIDTH = 86  # characters that fit into a page without scrolling


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per page, in which its code runs first and its commands after it."""
    return {name: tmp_path_factory.mktemp(name) for name in PAGES}


@pytest.fixture(autouse=True)
def _names_are_given_back() -> Iterator[None]:
    """A page may register a data set; other tests must not see it."""
    before = set(datasets)
    yield
    for name in set(datasets) - before:
        del datasets._entries[name]


def test_every_page_is_in_the_book_and_every_block_has_a_name() -> None:
    contents = (ROOT / "_toc.yml").read_text("utf8")
    assert len(PAGES) >= 7
    for name, page in PAGES.items():
        assert f"file: book/howto/{name}\n" in contents
        text = page.read_text("utf8")
        assert "```python" not in text, f"{name}: a block that no test would run"
        assert len(re.findall(r"^```\{code-block\} python", text, re.MULTILINE)) == sum(
            block.language == "python" for block in blocks(page).values()
        )


@pytest.mark.parametrize("name", [name for name in PAGES if name not in RUN_BY])
def test_the_code_of_a_page_runs_in_its_order(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [block.code for block in blocks(PAGES[name]).values() if block.language == "python"]
    assert found
    monkeypatch.chdir(folders[name])
    exec(compile("\n".join(found), f"{name}.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out


def test_the_page_on_own_data_says_what_the_check_finds(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a run the vocabulary is missing and nothing else; after it the folder is complete."""
    monkeypatch.chdir(folders["own_data"])
    line = next(c for c in commands(PAGES["own_data"]) if "nclib.data.check" in c)
    words = shlex.split(line)[3:]
    assert check.main(words) == 0
    (folders["own_data"] / "mine" / "f30k_precomp" / "f30k_precomp_vocab.json").unlink()
    capsys.readouterr()
    assert check.main(words) == 1
    lines = [row.split()[:2] for row in capsys.readouterr().out.splitlines() if "missing" in row]
    assert lines == [["missing", "f30k_precomp_vocab.json"]]


def test_no_line_of_code_is_cut_by_the_page() -> None:
    long = {
        f"{name}: {line}"
        for name, page in PAGES.items()
        for block in blocks(page).values()
        for line in block.code.splitlines()
        if len(line) > WIDTH
    }
    assert long == set()


def given(words: list[str]) -> dict[str, Any]:
    """Parameters of a papermill command."""
    found: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if word == "-p":
            name, value = words.pop(0), words.pop(0)
            found[name] = yaml.safe_load(value)
        elif word == "-y":
            found |= yaml.safe_load(words.pop(0))
        else:
            raise AssertionError(f"papermill has no {word} here")
    return found


def offered(notebook: str) -> set[str]:
    nb = nbformat.read(ROOT / notebook, 4)
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    targets = [getattr(n, "target", None) or n.targets[0] for n in ast.parse(cell.source).body]  # type: ignore[attr-defined]
    return {target.id for target in targets}


PAPERMILL = [(n, c) for n, page in PAGES.items() for c in commands(page) if c.startswith("papermill ")]


@pytest.mark.parametrize(("page", "command"), PAPERMILL)
def test_papermill_lines_name_parameters_that_exist(page: str, command: str) -> None:
    words = shlex.split(command)[1:]
    if words[0] == "--help-notebook":
        assert offered(words[1])
        return
    notebook, _, *rest = words
    values = given(rest)
    known = offered(notebook)
    if "mrat" in values:  # shown to be refused
        assert "mrat" not in known
        with pytest.raises(ValueError, match="did you mean 'mrate'"):
            nclib.check_parameters(values, "l2rm")
        return
    assert set(values) <= known
    method = METHOD_OF.get(Path(notebook).stem)
    if method:
        rules: dict[str, Rule] = (nclib.category if method == "uot_rcl" else nclib.experiment).parameters(
            method
        )
        assert not [k for k, v in values.items() if k in rules and not rules[k].accepts(v)]


def test_lines_on_records_and_tables_run(
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The lines that start with ``python -m`` on the pages about records and the papers' data."""
    monkeypatch.chdir(folders["record"])
    lines = [shlex.split(c) for page in PAGES.values() for c in commands(page) if c.startswith("python -m")]
    assert {words[2] for words in lines} == {"nclib.data.check", "nclib.tables"}
    seen = []
    for words in lines:
        if words[3] == "mine":
            continue
        here = [str(tmp_path) if word == "/data" else word for word in words[3:]]
        code = (check if words[2] == "nclib.data.check" else tables_command).main(here)
        seen.append((" ".join(words[3:]), code, capsys.readouterr().out))
    said = {line: out for line, _, out in seen}
    assert [code for _, code, _ in seen].count(1) == 2  # an empty folder is not complete
    assert "nothing that is known" in said["/data"]
    assert "f30k: not there" in said["/data f30k"]
    assert "# 14 runs" in next(out for line, out in said.items() if line.startswith("rerun"))
    assert "107 claims, 4 recorded runs" in next(
        out for line, out in said.items() if line.startswith("claims")
    )


def test_the_grid_of_the_page_is_read(tmp_path: Path) -> None:
    for folder in ("_ext", "grids"):
        (tmp_path / "book" / folder).mkdir(parents=True)
    source = (ROOT / "book" / "_ext" / "grid.py").read_text("utf8")
    (tmp_path / "book" / "_ext" / "grid.py").write_text(source, "utf8")
    file = blocks(PAGES["grid"])["grid-file"]
    (tmp_path / file.caption).write_text(file.code, "utf8")
    line = next(c for c in commands(PAGES["grid"]) if "--list" in c)
    words = [sys.executable, *shlex.split(line)[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "mine: 0 of 8 runs recorded" in done.stdout
    for run in yaml.safe_load(file.code):
        one = {k: v[0] if isinstance(v, list) else v for k, v in run.items()}
        assert nclib.experiment.resolve(one.pop("method"), **one)["epochs"] == 1


def test_make_lines_name_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf8"), re.MULTILINE))
    pages = [*PAGES.values(), ROOT / "book" / "install.md"]
    used = {
        word
        for page in pages
        for word in re.findall(r"(?:^\$ |`)make ([a-z-]+)", page.read_text("utf8"), re.MULTILINE)
    }
    assert len(used) > 4
    assert used <= targets


def test_parameters_that_the_run_page_names_exist() -> None:
    page = PAGES["run"].read_text("utf8")
    named = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+)", page, re.MULTILINE))
    words = {word for row in named for word in re.findall(r"`(\w+)`", row)}
    assert {"mrate", "noise_file", "precision"} <= words <= set(parameters("l2rm"))
    schedule = re.search(r"The schedule \((.*?)\)", page)
    assert schedule
    assert set(re.findall(r"`(\w+)`", schedule[1])) <= set(parameters("l2rm"))
    grids = set(re.findall(r"^\| `(\w+)` \|", PAGES["grid"].read_text("utf8"), re.MULTILINE))
    assert grids == {path.stem for path in (ROOT / "book" / "grids").glob("*.yml")}


def test_fields_that_the_record_page_names_are_those_of_a_record() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGES["record"].read_text("utf8"), re.MULTILINE))
    have = set(nclib.Record.__dataclass_fields__)
    assert named == have - {"name", "schema", "folder"}
