"""The how-to pages tell the truth: their code runs in the page's order, their commands exist or run."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data_check
import data_convert
import grid_plan
import nbformat
import ncbook.cli
import pytest
import yaml
from code_blocks import blocks, commands
from ncbook.measurements import measurement

import nclib
from nclib import cli
from nclib.data.registry import datasets
from nclib.runs import experiment_of
from nclib.runs.words import values_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "book" / "howto"
PAGES = {path.stem: path for path in sorted(FOLDER.glob("*.md"))}
METHOD_OF = {"l2rm": "l2rm", "uot_rcl": "uot_rcl"}
CHECK, CONVERT = "tools/data_check.py", "tools/data_convert.py"
RECORDS, GRIDS = PAGES["record"].read_text("utf8").split("(grids)=")


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


def test_every_block_has_a_name() -> None:
    for name, page in PAGES.items():
        text, found = page.read_text("utf8"), blocks(page).values()
        assert "```python" not in text, f"{name}: a block that no test would run"
        assert text.count("\n```{code-block} python") == sum(block.language == "python" for block in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_runs_in_its_order(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [block.code for block in blocks(PAGES[name]).values() if block.language == "python"]
    assert found
    monkeypatch.chdir(folders[name])
    exec(compile("\n".join(found), f"{name}.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out


def given(words: list[str]) -> dict[str, Any]:
    """Parameters of a papermill command."""
    rest, found = iter(words), dict[str, Any]()
    for word in rest:
        assert word in ("-p", "-y")
        found |= {next(rest): yaml.safe_load(next(rest))} if word == "-p" else yaml.safe_load(next(rest))
    return found


def offered(notebook: str) -> set[str]:
    nb = nbformat.read(ROOT / notebook, 4)
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    targets = [getattr(n, "target", None) or n.targets[0] for n in ast.parse(cell.source).body]  # type: ignore[attr-defined]
    return {target.id for target in targets}


PAPERMILL = [(n, c) for n, page in PAGES.items() for c in commands(page) if c.startswith("papermill ")]


@pytest.mark.parametrize(("page", "command"), PAPERMILL)
def test_papermill_lines_name_parameters_that_exist(page: str, command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "--help-notebook"]
    notebook, known, values = words[0], offered(words[0]), given(words[2:])
    assert known
    if "mrat" in values:  # shown to be refused
        with pytest.raises(ValueError, match="did you mean 'mrate'"):
            ncbook.check_parameters(values, "l2rm")
        return
    assert set(values) <= known
    if method := METHOD_OF.get(Path(notebook).stem):
        rules = experiment_of(method).parameters()
        assert not [k for k, v in values.items() if k in rules and not rules[k].accepts(v)]


@pytest.mark.slow
def test_lines_on_records_and_tables_run(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """The lines that start with ``nclib`` or ``ncbook``, and checks of data, of which there are none here."""
    monkeypatch.chdir(folders["record"])
    said_on = [c for page in (*PAGES.values(), ROOT / "notebooks" / "audit.ipynb") for c in commands(page)]
    lines = [shlex.split(c)[1:] for c in said_on if c.startswith("nclib ")]
    assert "data" in {words[0] for words in lines} <= set(cli.COMMANDS)
    for words in lines:
        if words[0] == "run" and "--help" not in words:  # only whether it would start
            rules = experiment_of(words[1]).parameters()
            options = values_of([word for word in words[2:] if word != "--dry-run"], rules)
            assert nclib.resolve(words[1], **options).method == words[1]
        else:  # only whether its words are understood
            assert cli.main(words) == (2 if words[0] in ("data", "audit") else 0)
            assert re.search("is not a folder|there is no( such)? file|^$", capsys.readouterr().err)
    for words in [shlex.split(c)[2:] for c in said_on if c.startswith(f"python {CHECK} /data")]:
        assert data_check.main([{"/data": str(tmp_path)}.get(word, word) for word in words]) == 1
    said = {}
    for words in [shlex.split(c)[1:] for c in said_on if c.startswith("ncbook ")]:
        assert ncbook.cli.main(words) == 0
        said[words[0]] = capsys.readouterr().out
    assert "# 14 runs" in said["rerun"]
    assert "107 claims, 6 recorded runs" in said["claims"]


@pytest.mark.slow
def test_the_commands_on_full_size_make_a_folder_that_loads(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folders["full_size"])
    Path("glove.840B.300d.txt").write_text("".join(f"{word} 0.1 0.2\n" for word in ("a", "the", "dog")))
    said = [c for c in commands(PAGES["full_size"]) if c.startswith("python tools/") and " /data" not in c]
    lines = [shlex.split(c) for c in said]
    tools = {CHECK: data_check.main, CONVERT: data_convert.main}
    assert len(lines) == 7
    assert [tools[words[1]](words[2:]) for words in lines] == [0] * len(lines)
    assert "f30k: complete, in other sizes" in capsys.readouterr().out
    plain, half = (nclib.data.load("f30k", root="f30k_precomp", half=half) for half in (False, True))
    assert (plain.train.n_images, plain.val.n_images, plain.n_regions) == (20, 20, 36)
    assert half.train.images.dtype == "float16"


def test_the_table_on_full_size_is_what_was_measured() -> None:
    found = measurement("bench_full_size")
    rows = {(r["source"], r["cache"]): r for r in found["loading"]}
    waits = {(r["source"], r["cache"], r["n_ahead"]): r["waiting"] for r in found["steps"]}
    expected = []
    for source, ahead in (("memory", 0), ("memmap", 0), ("rows", 0), ("rows", 2), ("half", 2)):
        cells = [f"{rows[source, 'warm']['vm_hwm_mb']:,.0f} MB"]
        of_cache = [rows.get((source, cache)) or {"batches": 0} for cache in ("warm", "cold")]
        cells += [f"{r['batches'] * 128 / r['seconds']:,.0f}" if r["batches"] else "" for r in of_cache]
        shares = [waits.get((source, cache, ahead)) for cache in ("warm", "cold")]
        texts = ["" if value is None else f"{100 * value:.0f} %" for value in shares]
        expected.append([*(cells if (source, ahead) != ("rows", 2) else ["", "", ""]), *texts])
    page = PAGES["full_size"].read_text("utf8")
    table = page[page.index("| source | largest resident set") :].split("\n\n")[0].splitlines()[2:]
    assert [[cell.strip() for cell in line.split("|")[2:-1]] for line in table] == expected
    assert (f"{found['rows']:,} pictures" in page, found["when"] in page) == (True, True)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_grid_of_the_page_is_read(tmp_path: Path) -> None:
    """In a copy of the tree: the page's own grid, planned and listed."""
    shutil.copytree(ROOT / "book" / "_ext", tmp_path / "book" / "_ext", ignore=lambda *_: ["__pycache__"])
    shutil.copytree(ROOT / "book" / "grids", tmp_path / "book" / "grids")
    shutil.copy(ROOT / "Makefile", tmp_path)
    file = blocks(PAGES["record"])["grid-file"]
    (tmp_path / file.caption).write_text(file.code, "utf8")
    said = []
    for line in [c for c in commands(PAGES["record"]) if "LIST=1" in c and "GRID=" in c]:
        words = [*shlex.split(line), f"PY={sys.executable}"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    own, chosen = said
    assert "mine: 0 of 8 runs recorded" in own
    assert ("l2rm-sgr-f30k-m0.6-images-s0-preset=paper" in chosen, "coco" in chosen) == (True, False)


def found(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text, re.MULTILINE))


def test_what_the_pages_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf8")
    pages = {name: page.read_text("utf8") for name, page in PAGES.items()}
    targets = found(r"(?:^\$ |`)make ([a-z-]+)", "\n".join(pages.values()))
    assert "record" in targets <= found(r"^([a-z-]+):.*## ", makefile)
    options = found(r"`([A-Z_]+)=", "\n".join(found(r"^\| (`[A-Z_]+=.*?) \|", GRIDS)))
    assert options == {"LIST", *"".join(found(r"^GRID_OPTIONS = (.*)$", makefile)).split()}
    driver = (ROOT / "book" / "_ext" / "grid.py").read_text("utf8")
    assert all(f'"--{name.lower().replace("_", "-")}"' in driver for name in options)
    assert found(r"^\| `(\w+)` \|", GRIDS) == {p.stem for p in (ROOT / "book" / "grids").glob("*.yml")}
    assert found(r"^\| `(\w+)` \|", RECORDS) == set(nclib.Record.__dataclass_fields__) - {
        "name",
        "schema",
        "folder",
    }
    rows = found(r"^\| ((?:`\w+`(?:, )?)+)|The schedule \((.*?)\)", pages["quick_start"])
    parameters = found(r"`(\w+)`", " ".join(map("".join, rows)))
    assert {"mrate", "noise_file", "epochs"} <= parameters <= set(experiment_of("l2rm").parameters())


@pytest.mark.slow
def test_numbers_of_runs_on_the_grid_page_are_those_of_the_files() -> None:
    said = dict(re.findall(r"^\| `(paper_\w+)` \| .*?(\d+) with three", GRIDS, re.MULTILINE))
    assert len(said) == 4
    for name, number in said.items():
        assert len(grid_plan.plan(grid_plan.file_of(name))) == 3 * int(number)
