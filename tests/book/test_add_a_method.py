"""The page on adding a method tells the truth: its file, put into a copy of the package, trains there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from code_blocks import blocks, run

import nclib
from nclib.methods import Loop, Method
from nclib.runs.pair_trainer import PairTrainer

FILE = Path(__file__).resolve().parents[2] / "book" / "add_a_method.md"
PAGE, BLOCKS = FILE.read_text("utf8"), blocks(FILE)
PACKAGE = Path(nclib.__file__).parent


def test_every_block_of_the_page_is_one_that_is_run() -> None:
    assert list(BLOCKS) == ["dropped", "run-dropped"]
    assert PAGE.count("```python") == 0
    assert BLOCKS["dropped"].caption == "nclib/methods/dropped.py"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package, to which only the page's file was added."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "nclib", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "nclib" / "methods" / "dropped.py").write_text(BLOCKS["dropped"].code, "utf8")
    return folder


CHECK = """
import json, pathlib
assert pathlib.Path(nclib.__file__).parent == pathlib.Path.cwd() / "nclib"
try:
    nclib.run("dropped", thresold=0.4)
except ValueError as error:
    message = str(error)
print(json.dumps({
    "catalogue": nclib.methods.available()["dropped"],
    "message": message,
    "phases": [row["phase"] for row in record.curves],
    "auc": record.diagnostics["auc"],
    "options": record.settings["method_options"],
    "paper": nclib.methods.settings("dropped", "f30k"),
}))
"""


def test_one_new_file_is_a_method(copy: Path) -> None:
    out = run(BLOCKS["run-dropped"].code + CHECK, copy, copy)
    seen = json.loads(out.splitlines()[-1])
    assert seen["catalogue"].startswith("Gaussian-mixture split")
    assert "unknown parameter 'thresold'; did you mean 'threshold'?" in seen["message"]
    assert seen["phases"] == ["warm-up", "training"]
    assert seen["auc"] > 0.5
    assert seen["options"] == {"tau": 0.05, "threshold": 0.5}
    assert seen["paper"] == {"warmup_epochs": 5, "epochs": 30}
    assert list((copy / "runs").glob("dropped-vse-planted-*/record.json"))


def test_a_cell_of_a_notebook_is_enough(tmp_path: Path) -> None:
    script = f"exec(compile({BLOCKS['dropped'].code!r}, 'cell', 'exec'))\n" + BLOCKS["run-dropped"].code
    assert "rSum" in run(script, tmp_path, PACKAGE.parent)


def test_what_the_page_names_exists() -> None:
    named = set(re.findall(r"`loop\.(\w+)`", PAGE))
    offered = set(dir(Loop)) | set(Loop.__annotations__)
    assert len(named) > 12
    assert named <= offered
    public = {name for name in offered if not name.startswith("_")} - {"networks", "n_pairs", "batch_size"}
    assert public - {"device", "lr"} <= named, "the loop offers more than the page tells"
    assert {name for name in named if callable(getattr(Loop, name, None))} <= set(dir(PairTrainer))
    hooks = {"settings", "warmup_step", "step", "begin_epoch", "end_epoch", "diagnostics", "prepare"}
    hooks |= {"state", "load_state", "clean_share", "n_networks"}
    assert hooks <= set(dir(Method))
    assert all(f"`{name}`" in PAGE for name in hooks)
