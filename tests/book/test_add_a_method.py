"""The page on adding a method tells the truth: its files run as they are, inside the package and outside."""

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
from nclib.label_noise import DeepMethod, LabelLoop, Projector
from nclib.methods import Loop, Method
from nclib.runs.label_trainer import LabelTrainer
from nclib.runs.pair_trainer import PairTrainer

BOOK = Path(__file__).resolve().parents[2] / "book"
FILE = BOOK / "add_a_method.md"
PAGE, BLOCKS = FILE.read_text("utf8"), blocks(FILE)
METHODS, _, MODELS = PAGE.partition("\n## A model\n")
PAIRS, LABELS = METHODS.split("## A method for wrong labels")
MODEL = BLOCKS["best-region"].code
USE = BLOCKS["run-best-region"].code.replace("import best_region", "#")  # its file lies in nclib/models/
PACKAGE = Path(nclib.__file__).parent
FEW = 'dataset="planted", data_options={"n_train": 64, "n_val": 20, "n_test": 20}'


def copied(folder: Path, **files: str) -> Path:
    """Copy the package into a folder, write blocks of the page into it, and return the folder."""
    shutil.copytree(PACKAGE, folder / "nclib", ignore=shutil.ignore_patterns("__pycache__"))
    for name, place in files.items():
        (folder / "nclib" / place / f"{name}.py").write_text(BLOCKS[name.replace("_", "-")].code, "utf8")
    return folder


def smaller(code: str) -> str:
    """Return code whose runs have few pairs."""
    assert 'dataset="planted"' in code
    return code.replace('dataset="planted"', FEW)


def test_every_block_of_the_page_is_one_that_is_run() -> None:
    methods = ["dropped", "check-dropped", "run-dropped", "compare-dropped", "counted"]
    labels, model = ["trimmed", "run-trimmed"], ["best-region", "run-best-region", "check-best-region"]
    assert list(BLOCKS) == [*methods, *labels, *model]
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


METHOD_CHECK = """
import pathlib
assert pathlib.Path(nclib.__file__).parent == pathlib.Path.cwd() / "nclib"
assert nclib.methods.available()["dropped"].startswith("Gaussian-mixture split")
assert nclib.label_noise.available()["trimmed"].startswith("cross entropy")
assert nclib.methods.settings("dropped", "f30k") == {"warmup_epochs": 5, "epochs": 30}
assert [row["phase"] for row in record.curves] == ["warm-up", "training"]
assert record.diagnostics["auc"] > 0.5
assert record.settings["method_options"] == {"tau": 0.05, "threshold": 0.5}
try:
    print(nclib.run("dropped", thresold=0.4) and "not refused")
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_one_new_file_is_a_method(tmp_path: Path) -> None:
    copied(tmp_path, dropped="methods", trimmed="label_noise")
    out = run(BLOCKS["run-dropped"].code + METHOD_CHECK + BLOCKS["run-trimmed"].code, tmp_path, tmp_path)
    assert "unknown parameter 'thresold'; did you mean 'threshold'?" in out
    assert list((tmp_path / "runs").glob("dropped-vse-planted-*/record.json"))
    assert 0 < float(out.splitlines()[-1]) <= 1


LOAD = """
import sys, warnings
warnings.filterwarnings("ignore", message="epoch 2: network 0 took one step")  # of so few pairs
sys.path.insert(0, ".")
import dropped, counted, best_region, trimmed, nclib
"""
LOOK = """
assert "dropped" in nclib.methods.available() and "trimmed" in nclib.label_noise.available()
rows = sorted(set(zip(table["method"], table["model"], table["mrate"])))
assert rows == [(m, "best_region", rate) for m in ("dropped", "plain") for rate in (0.2, 0.6)]
assert table[table["method"] == "dropped"]["auc"].between(0, 1).all()
"""


COUNT = """
import pathlib
from nclib.runs import checkpoint
nclib.run("counted", dataset="planted", model="vse", warmup_epochs=1, epochs=2, progress=False)
saved = checkpoint.load(next(pathlib.Path("runs").glob("counted-*/checkpoint.safetensors")))["method"]
again = nclib.methods.build("counted")
again.load_state(None, saved)
assert again.n_steps > 2 and again.state() == saved
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_methods_and_a_model_outside_the_package_come_as_far_as_a_figure(tmp_path: Path) -> None:
    for name in ("dropped", "counted", "trimmed", "best-region"):
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(BLOCKS[name].code, "utf8")
    compare = smaller(BLOCKS["compare-dropped"].code).replace('model="vse"', 'model="best_region"')
    assert compare.count("best_region") == 1
    checks = "\n".join(BLOCKS[name].code for name in ("check-dropped", "check-best-region"))
    run(f"{LOAD}\n{checks}\n{compare}{LOOK}{smaller(COUNT)}", tmp_path, PACKAGE.parent)
    assert (tmp_path / "dropped.svg").stat().st_size > 1000
    assert len(list((tmp_path / "runs").glob("*-best_region-planted-*/record.json"))) == 4


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cell_of_a_notebook_is_enough_and_may_run_again(tmp_path: Path) -> None:
    cell = f"exec(compile({BLOCKS['dropped'].code!r}, 'cell', 'exec'))\n"
    steps = [smaller(BLOCKS[name].code) for name in ("run-dropped", "compare-dropped")]
    assert "rSum" in run(cell + cell + "\n".join(steps), tmp_path, PACKAGE.parent)


MODEL_CHECK = """
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["package", pytest.param("cell", marks=pytest.mark.exhaustive)], ids=["package", "cell"]
)
def test_one_new_file_or_cell_is_a_model(place: str, tmp_path: Path) -> None:
    if place == "package":
        out = run(USE + MODEL_CHECK, copied(tmp_path, best_region="models"), tmp_path)
    else:
        cell = f"exec(compile({MODEL!r}, 'cell', 'exec'))\n"
        out = run(2 * cell + USE + MODEL_CHECK, tmp_path, PACKAGE.parent)
    assert all(said in out for said in ("rSum", "softness=-1: must be a number", "'softness': 0.1"))


def offered(*loops: type) -> set[str]:
    """Return the public names of loops, methods and models."""
    names = {name for loop in loops for name in {*dir(loop), *getattr(loop, "__annotations__", ())}}
    return {name for name in names if not name.startswith("_")}


def test_what_the_page_names_exists() -> None:
    named = set(re.findall(r"`loop\.(\w+)`", PAIRS))
    assert offered(Loop) - {"networks", "n_pairs", "batch_size", "device", "lr"} <= named <= offered(Loop)
    assert {name for name in named if callable(getattr(Loop, name, None))} <= set(dir(PairTrainer))
    hooks = {name for name in offered(Method) if f"`{name}`" in PAIRS}
    assert hooks > {"settings", "step", "begin_epoch", "end_epoch", "state", "load_state", "clean_share"}
    of_labels = set(re.findall(r"`(\w+)`", LABELS))
    assert Projector.__abstractmethods__ <= of_labels <= offered(DeepMethod, Projector, LabelLoop)
    assert {name for name in of_labels if callable(getattr(LabelLoop, name, None))} <= set(dir(LabelTrainer))
    assert {f"`{name}`" in MODELS for name in ("similarity", "paired_similarity", "own_loss")} == {True}
    assert set(re.findall(r"~nclib\.models\.(\w+)`", MODELS)) <= set(models.__all__)
    rows = re.findall(r"^\| (.*?) \|", MODELS[MODELS.index("| option of a model") :], re.MULTILINE)[1:]
    options = {*rules(models.options("vse")), *rules(models.options("clip")), "clip"}
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) <= options
