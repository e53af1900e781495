"""The page on adding a method tells the truth: its files run as they are, inside the package and outside."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from code_blocks import blocks, run

import nclib
from nclib.label_noise import DeepMethod, LabelLoop, Projector
from nclib.methods import Loop, Method
from nclib.runs.label_trainer import LabelTrainer
from nclib.runs.pair_trainer import PairTrainer

BOOK = Path(__file__).resolve().parents[2] / "book"
FILE = BOOK / "add_a_method.md"
PAGE, BLOCKS = FILE.read_text("utf8"), blocks(FILE)
PAIRS, LABELS = PAGE.partition("\n## A model\n")[0].split("## A method for wrong labels")
MODEL = BLOCKS["best-region"].code
PACKAGE = Path(nclib.__file__).parent
FEW = 'dataset="planted", data_options={"n_train": 64, "n_val": 20, "n_test": 20}'


def smaller(code: str) -> str:
    """Return code whose runs have few pairs."""
    assert 'dataset="planted"' in code
    return code.replace('dataset="planted"', FEW)


def test_every_block_of_the_page_is_one_that_is_run() -> None:
    methods = ["dropped", "check-dropped", "run-dropped", "compare-dropped", "counted"]
    labels, model = ["trimmed", "run-trimmed"], ["best-region", "run-best-region", "check-best-region"]
    assert list(BLOCKS) == [*methods, *labels, *model]  # run-best-region: test_add_a_model.py
    assert PAGE.count("```python") == 0


def test_the_files_use_public_names_only() -> None:
    imports = re.findall(r"^from (nclib\S*) import (.*)$", PAGE, re.MULTILINE)
    assert len(imports) >= 5
    for module, names in imports:
        assert not re.search(r"\b_", f"{module} {names}")
        package = module.split(".")[1] if "." in module else ""
        if package in ("methods", "label_noise"):
            public = getattr(nclib, package)
            assert module == public.__name__
            assert set(names.split(", ")) <= set(public.__all__)


CHECK = """
import json, pathlib
assert pathlib.Path(nclib.__file__).parent == pathlib.Path.cwd() / "nclib"
try:
    nclib.run("dropped", thresold=0.4)
except ValueError as error:
    message = str(error)
print(json.dumps({
    "catalogue": nclib.methods.available()["dropped"],
    "labels": nclib.label_noise.available()["trimmed"],
    "message": message,
    "phases": [row["phase"] for row in record.curves],
    "auc": record.diagnostics["auc"],
    "options": record.settings["method_options"],
    "paper": nclib.methods.settings("dropped", "f30k"),
}))
"""


@pytest.mark.slow
def test_one_new_file_is_a_method(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "nclib", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "nclib" / "methods" / "dropped.py").write_text(BLOCKS["dropped"].code, "utf8")
    (tmp_path / "nclib" / "label_noise" / "trimmed.py").write_text(BLOCKS["trimmed"].code, "utf8")
    out = run(BLOCKS["run-dropped"].code + CHECK + BLOCKS["run-trimmed"].code, tmp_path, tmp_path)
    seen = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert seen["catalogue"].startswith("Gaussian-mixture split")
    assert seen["labels"].startswith("cross entropy")
    assert "unknown parameter 'thresold'; did you mean 'threshold'?" in seen["message"]
    assert seen["phases"] == ["warm-up", "training"]
    assert seen["auc"] > 0.5
    assert seen["options"] == {"tau": 0.05, "threshold": 0.5}
    assert seen["paper"] == {"warmup_epochs": 5, "epochs": 30}
    assert list((tmp_path / "runs").glob("dropped-vse-planted-*/record.json"))
    assert 0 < float(out.splitlines()[-1]) <= 1


LOAD = """
import importlib.util, json, sys, warnings

warnings.filterwarnings("ignore", message="epoch 2: network 0 took one step")  # of so few pairs

def by_path(name):
    spec = importlib.util.spec_from_file_location(name, f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

sys.path.insert(0, ".")  # the second file imports the first
for name in ("dropped", "counted", "best_region", "trimmed"):
    by_path(name)
"""
LOOK = """
lines = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
known = sorted({colour for colour, _ in plots.METHOD_STYLES.values()})
print(json.dumps({
    "catalogues": [
        "dropped" in nclib.methods.available(),
        "best_region" in nclib.models.available(),
        "trimmed" in nclib.label_noise.available(),
    ],
    "rows": sorted(map(list, set(zip(table["method"], table["model"], table["mrate"])))),
    "auc": table[table["method"] == "dropped"]["auc"].tolist(),
    "lines": lines,
    "known": known,
}))
"""


COUNT = """
import pathlib
from nclib.runs import checkpoint

nclib.run("counted", dataset="planted", model="vse", warmup_epochs=1, epochs=2, progress=False)
saved = checkpoint.load(next(pathlib.Path("runs").glob("counted-*/checkpoint.safetensors")))["method"]
again = nclib.methods.build("counted")
again.load_state(None, saved)
print(again.n_steps, again.state() == saved)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_methods_and_a_model_outside_the_package_come_as_far_as_a_figure(tmp_path: Path) -> None:
    files = {name: BLOCKS[name].code for name in ("dropped", "counted", "trimmed")} | {"best_region": MODEL}
    for name, code in files.items():
        (tmp_path / f"{name}.py").write_text(code, "utf8")
    compare = smaller(BLOCKS["compare-dropped"].code).replace('model="vse"', 'model="best_region"')
    assert compare.count("best_region") == 1
    checks = "\n".join(BLOCKS[name].code for name in ("check-dropped", "check-best-region"))
    out = run(f"{LOAD}\nimport nclib\n{checks}\n{compare}{LOOK}{smaller(COUNT)}", tmp_path, PACKAGE.parent)
    *_, shown, counted = out.splitlines()
    seen = json.loads(shown)
    assert seen["catalogues"] == [True, True, True]
    assert seen["rows"] == [[m, "best_region", rate] for m in ("dropped", "plain") for rate in (0.2, 0.6)]
    assert all(0 <= auc <= 1 for auc in seen["auc"])
    assert set(seen["lines"]) == {"dropped", "plain"}
    assert seen["lines"]["plain"] in seen["known"]
    assert seen["lines"]["dropped"] not in seen["known"]
    assert (tmp_path / "dropped.svg").stat().st_size > 1000
    assert len(list((tmp_path / "runs").glob("*-best_region-planted-*/record.json"))) == 4
    steps, same = counted.split()  # the state is saved and restored
    assert int(steps) > 2
    assert same == "True"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cell_of_a_notebook_is_enough_and_may_run_again(tmp_path: Path) -> None:
    cell = f"exec(compile({BLOCKS['dropped'].code!r}, 'cell', 'exec'))\n"
    steps = [smaller(BLOCKS[name].code) for name in ("run-dropped", "compare-dropped")]
    assert "rSum" in run(cell + cell + "\n".join(steps), tmp_path, PACKAGE.parent)


def offered(loop: type) -> set[str]:
    return {name for name in set(dir(loop)) | set(loop.__annotations__) if not name.startswith("_")}


def test_what_the_page_names_exists() -> None:
    named = set(re.findall(r"`loop\.(\w+)`", PAIRS))
    assert len(named) > 12
    assert named <= offered(Loop)
    missing = offered(Loop) - named - {"networks", "n_pairs", "batch_size", "device", "lr"}
    assert not missing, "the loop offers more than the page tells"
    assert {name for name in named if callable(getattr(Loop, name, None))} <= set(dir(PairTrainer))
    hooks = {"settings", "warmup_step", "step", "begin_epoch", "end_epoch", "diagnostics", "prepare"}
    hooks |= {"state", "load_state", "clean_share", "n_networks"}
    assert hooks <= set(dir(Method))
    assert all(f"`{name}`" in PAIRS for name in hooks)


def test_what_the_page_names_for_labels_exists() -> None:
    named = set(re.findall(r"`(\w+)`", LABELS))
    assert len(named & offered(LabelLoop)) >= 8
    assert {name for name in named if callable(getattr(LabelLoop, name, None))} <= set(dir(LabelTrainer))
    known = set(dir(DeepMethod)) | set(dir(Projector)) | offered(LabelLoop)
    assert named <= known


@pytest.mark.parametrize("hook", sorted(Projector.__abstractmethods__))
def test_the_page_names_what_a_projector_must_define(hook: str) -> None:
    assert f"`{hook}`" in LABELS
