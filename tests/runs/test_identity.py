"""What names a run: settings, and the code that its method, model and data reach."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nclib
from nclib.common.code import Code
from nclib.methods.base import METHODS
from nclib.methods.l2rm import L2RM
from nclib.runs import experiment_of, identity
from nclib.runs.pair_trainer import PairTrainer

PACKAGE = Path(nclib.__file__).parent


def name(method: str, **values) -> str:
    experiment = experiment_of(method)
    return experiment.fingerprint(experiment.resolve(**values))


def test_the_place_of_a_run_and_what_computes_it_do_not_name_it():
    one = {"dataset": "planted", "model": "saf"}
    for free in ({"out": "elsewhere"}, {"device": "cuda"}, {"threads": 3}):
        assert name("l2rm", **one, **free) == name("l2rm", **one)
    others = ({"lr": 1.0}, {"seed": 5}, {"model": "vse"}, {"dataset": "emoji"})
    assert len({name("l2rm", **{**one, **other}) for other in ({}, *others)} | {name("ncr", **one)}) == 6


def test_the_place_of_data_does_not_name_a_run_and_their_content_does():
    experiment = experiment_of("plain")

    def of(root: str, content: str = "") -> str:
        return experiment.name(experiment.resolve(dataset="f30k", data_options={"root": root}), content)

    assert len({of(root) for root in ("/data", "/data/", "data", "./data", "/elsewhere")}) == 1
    assert of("/data", "a") == of("data", "a") != of("/data", "b")


def test_records_are_found_wherever_the_data_lay():
    one, other = ({"data_options": {"root": root, "size": "small"}, "threads": 1} for root in ("/a", "/b"))
    assert identity.naming(one) == identity.naming(other) == {"data_options": {"size": "small"}}


def test_a_noise_file_counts_by_its_content():
    one = {"noise_file": "/a/noise.npz", "noise_sha256": "12"}
    assert identity.naming(one) == identity.naming({**one, "noise_file": "noise.npz"})
    assert identity.naming({"noise_file": ""}) == {"noise_file": ""}


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the package whose code the fingerprints read."""
    folder = tmp_path / "nclib"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(identity, "nclib_code", lambda: Code({"nclib": folder}))
    monkeypatch.setattr(identity, "_within", identity._within.__wrapped__)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "place", "renamed"),
    [
        ("plots/__init__.py", "", ""),
        ("cli.py", "", ""),
        ("runs/record.py", "", ""),
        ("methods/ncr.py", "", ""),
        ("models/vse.py", "", ""),
        ("models/sgraf.py", "class SGR(", ""),  # beside the class of the model
        ("models/sgraf.py", "class SAF(", "l2rm"),
        ("methods/l2rm.py", "class L2RM(", "l2rm"),
        ("methods/l2rm.py", "", "l2rm"),
        ("losses/ranking.py", "", "l2rm"),
        ("data/emoji/__init__.py", "", "l2rm uot_rcl"),  # the package around what both use
        ("data/emoji/features.py", "", "l2rm uot_rcl"),
        ("runs/loop.py", "class SavedLoop(", "l2rm uot_rcl"),
        ("label_noise/uot_rcl.py", "", "uot_rcl"),
        ("ot/transport.py", "class Transport", "l2rm uot_rcl"),
        ("data/emoji/codebook.npz", "", "l2rm uot_rcl"),
        ("data/emoji/ATTRIBUTION.md", "", ""),
    ],
)
def test_only_code_that_a_run_reaches_renames_it(copied, file, place, renamed):
    every = {"l2rm": {"model": "saf", "dataset": "emoji"}, "uot_rcl": {"dataset": "emoji_category"}}
    before = {method: name(method, **values) for method, values in every.items()}
    path = copied / file
    if place:
        text, found = re.subn(
            rf"^({re.escape(place)}.*:\n)", r"\1    new = 1\n", path.read_text("utf8"), flags=re.M
        )
        assert found == 1
        path.write_text(text, "utf8")
    else:
        path.write_bytes(path.read_bytes() + (b"\nprint(1)\n" if path.suffix == ".py" else b"x"))
    now = {method: name(method, **values) for method, values in every.items()}
    assert [method for method in every if now[method] != before[method]] == renamed.split()


@pytest.mark.slow
def test_words_rename_no_run(copied):
    before = name("l2rm", model="saf", dataset="emoji")
    for path in copied.rglob("*.py"):
        path.write_text(
            "# A remark.\n" + path.read_text("utf8").replace('"""', '"""Other words. ', 1), "utf8"
        )
    assert name("l2rm", model="saf", dataset="emoji") == before


@pytest.mark.slow
def test_the_first_fingerprint_is_quick_and_the_next_ones_cost_nothing():
    code = (
        "from time import process_time as now; from nclib.runs import experiment_of;"
        "e = experiment_of('l2rm'); s = e.resolve(); a = now(); e.fingerprint(s); b = now();"
        "e.fingerprint(s); print(b - a, now() - b)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())
    assert first < 2
    assert second < 0.05


CELLS = {
    "first": """
        SCALE = 2.0
        def helper(x): return x.sum()
        class Base:
            def prepare(self): return 1
        class Options:
            rho = 0.1
        class Mine(Base):
            Options = Options
            def step(self, loop, batch):
                loss = helper(loop.similarity(batch)) + losses.triplet(batch, 0.2).sum()
                return {"loss": SCALE * loss}
    """,
    "again": "",
    "comments": """
        class Mine(Base):
            '''Words.'''
            Options = Options
            def step(self, loop, batch):  # more words
                loss = (helper(loop.similarity(batch))
                        + losses.triplet(batch, 0.2).sum())
                return {"loss": SCALE * loss}
    """,
    "a variable of the same name": "loss = 7",
    "nothing": """
        class Mine(Base):
            Options = Options
            def step(self, loop, batch):
                loss = helper(loop.similarity(batch)) + losses.triplet(batch, 0.2).sum()
                return {"loss": 0 * SCALE * loss}
    """,
    "helper": "def helper(x): return 2 * x.sum()",
    "constant": "SCALE = 3.0",
    "base": """
        class Base:
            def prepare(self): return 2
        class Mine(Base):
            Options = Options
            def step(self, loop, batch):
                loss = helper(loop.similarity(batch)) + losses.triplet(batch, 0.2).sum()
                return {"loss": 0 * SCALE * loss}
    """,
    "options": "class Options:\n    rho = 0.2\nMine.Options = Options",
    "patched": "L2RM.step = lambda self, loop, batch: {}",
}


@pytest.mark.slow
def test_a_class_in_a_notebook_cell_counts_by_its_source(tmp_path):
    script = tmp_path / "session.py"
    script.write_text(
        "import textwrap\nfrom IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('from nclib import losses; from nclib.runs import identity; "
        "from nclib.methods.l2rm import L2RM', store_history=True)\n"
        f"for name, cell in {CELLS!r}.items():\n"
        "    shell.run_cell(textwrap.dedent(cell), store_history=True).raise_error()\n"
        "    shell.run_cell('code = identity.code_of([Mine, L2RM])').raise_error()\n"
        "    shell.run_cell('''print('code', hash(str(code)), \"triplet\" in str(code))''')\n",
        "utf8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("code")]
    assert len(lines) == len(CELLS), done.stdout + done.stderr
    code = dict(zip(CELLS, (line[1] for line in lines), strict=True))
    assert {line[2] for line in lines} == {"True"}  # the part of nclib that it uses counts too
    same = ("first", "again", "comments", "a variable of the same name")
    assert len({code[name] for name in same}) == 1
    others = ("nothing", "helper", "constant", "base", "options", "patched")
    assert len({code[name] for name in ("first", *others)}) == len(others) + 1


def test_a_file_of_the_users_counts_with_the_files_beside_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def code() -> dict:
        for name in ("own_method", "own_helpers"):
            sys.modules.pop(name, None)
        import own_method

        return identity.code_of([own_method.Mine])

    helpers, method = tmp_path / "own_helpers.py", tmp_path / "own_method.py"
    helpers.write_text("def scale(x): return 2 * x\ndef unused(x): return x\n", "utf8")
    method.write_text(
        "import math\nimport own_helpers\nfrom nclib.noise import unit_interval\n"
        "TABLE = {'f': own_helpers.scale}\n"
        "class Mine:\n    def step(self, x): return TABLE['f'](unit_interval(x)) + math.pi\n",
        "utf8",
    )
    first = code()
    assert "unit_interval" in str(first)
    assert code() == first
    helpers.write_text("def scale(x): return 2 * x  # words\n\ndef unused(x): return 1\n", "utf8")
    assert code() == first
    helpers.write_text("def scale(x): return 0 * x\n", "utf8")
    assert code() != first


HEAD = "from types import SimpleNamespace as Space\nfrom nclib.noise import unit_interval\n"
OWN = {
    "first": """
        import torch
        SCALE, SHIFT = 2.0, 3.0
        cfg = Space(scale=4.0)
        head = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(head.weight), torch.nn.init.zeros_(head.bias)
        def loss(x):
            return x * SCALE + SHIFT
        class Mine:
            scale = 5.0
            loss = staticmethod(loss)
            @property
            def rate(self): return 0.1
            @torch.no_grad()
            def step(self, x, by=1.0):
                try:
                    return self.loss(unit_interval(x)) + head(x) + cfg.scale * by
                except ValueError:
                    return 0
    """,
    "a method put in place": "Mine.loss = lambda self, x: 0 * x",
    "a function put in place": "def other(x): return x\nMine.loss = other",
    "an attribute set later": "Mine.scale = 6.0",
    "an attribute added": "Mine.further = 1",
    "a property": "Mine.rate = property(lambda self: 0.2)",
    "values exchanged": "SCALE, SHIFT = SHIFT, SCALE",
    "an attribute of an object": "cfg.scale = 5.0",
    "weights": "head.weight.data[0, 1] += 1e-6",
    "a default": "Mine.step.__wrapped__.__defaults__ = (2.0,)",
    "a function of nclib replaced": "unit_interval = lambda x: x",
    "a function in a closure": "Mine.loss = (lambda f: lambda self, x: f(x))(lambda x: 2 * x)",
    "another function in a closure": "Mine.loss = (lambda f: lambda self, x: f(x))(lambda x: 3 * x)",
}


@pytest.mark.slow
def test_what_the_users_objects_hold_now_counts_without_any_source():
    script = (
        "import itertools, json, sys, textwrap\nfrom nclib.runs import identity\n"
        "cells, head = json.load(sys.stdin), " + repr(HEAD) + "\n"
        "for bare, (name, cell) in itertools.product((False, True), cells.items()):\n"
        "    space = {} if bare else {'__name__': '__main__'}\n"
        "    exec(head + textwrap.dedent(cells['first']), space)\n"
        "    exec(textwrap.dedent(cell) if name != 'first' else '', space)\n"
        "    code = identity.code_of([space['Mine']])\n"
        "    print('code', identity.short_digest(json.dumps(code)), 'unit_interval' in str(code))\n"
    )

    def codes(seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(OWN),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        return re.findall("^code (.*)", done.stdout, flags=re.M)

    once = codes("1")
    assert once == codes("2")  # in another process
    for found in (once[: len(OWN)], once[len(OWN) :]):  # in a script, and in a space without a name
        assert len(found) == len(set(found)) == len(OWN)
        assert [code.endswith("True") for code in found] == ["nclib" not in name for name in OWN]


def test_what_contains_itself_and_what_is_equal_but_not_the_same():
    loop: list = [1]
    loop.append(loop)
    space = {"loop": loop, "one": (1, [2]), "two": {"a": {3, 4}}}
    exec("def step(): return loop, one, two", space)
    before = identity.code_of([space["step"]])
    assert before == identity.code_of([space["step"]])
    space["two"] = {"a": {4, 3}}
    assert before == identity.code_of([space["step"]])
    space["one"] = (1, [3])
    assert before != identity.code_of([space["step"]])


def test_an_import_within_a_function_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def code(scale: int) -> dict:
        sys.modules.pop("inner_helpers", None)
        (tmp_path / "inner_helpers.py").write_text(f"def scale(x): return {scale} * x\n", "utf8")
        importlib.invalidate_caches()
        space: dict = {}
        source = "from inner_helpers import scale\n    from nclib.noise import unit_interval\n    import math"
        exec(f"def step(x):\n    {source}\n    return math.pi * scale(unit_interval(x))", space)
        return identity.code_of([space["step"]])

    assert "unit_interval" in str(code(2))
    assert code(2) == code(2)
    assert code(10) != code(2)


def test_a_file_that_is_edited_but_not_reloaded_counts_as_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    old, new = (f"class Mine:\n    def step(self, x): return {n} * x\n" for n in (2, 10))
    path = tmp_path / "stale_method.py"
    path.write_text(old, "utf8")
    stale = importlib.import_module("stale_method")
    path.write_text("# Words.\n" + new, "utf8")  # before the first look
    before = identity.code_of([stale.Mine])
    path.write_text("# Words.\n\n" + new, "utf8")
    assert identity.code_of([stale.Mine]) == before
    fresh = importlib.reload(stale)
    now = identity.code_of([fresh.Mine])
    assert now != before
    path.write_text("# More.\n" + old.replace("def", "'Words.'\n    def"), "utf8")
    assert identity.code_of([importlib.reload(fresh).Mine]) == before


def test_a_reloaded_method_is_registered_again_and_renames_its_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "reloaded_method.py"
    source = (
        "from nclib import methods\nfrom nclib.methods.ncr import NCR\n"
        "@methods.register('reloaded', summary='for a test')\n"
        "class Mine(NCR):\n    scale = 2.0\n"
    )
    path.write_text(source, "utf8")
    try:
        module = importlib.import_module("reloaded_method")
        before = name("reloaded", dataset="planted")
        path.write_text(source.replace("2.0", "12.0"), "utf8")
        assert name("reloaded", dataset="planted") == before
        importlib.reload(module)
        assert name("reloaded", dataset="planted") != before
    finally:
        METHODS.remove("reloaded")


def test_files_of_the_package_count_as_they_were_when_it_was_imported(tmp_path):
    (tmp_path / "a.py").write_text("def f(): return 1\n", "utf8")
    code = Code({"p": tmp_path})
    (tmp_path / "a.py").write_text("def f(): return 2\n", "utf8")
    assert code.reach([("p.a", "f")]) != Code({"p": tmp_path}).reach([("p.a", "f")])
    assert identity.nclib_code.cache_info().currsize == 1  # read at import


def test_values_of_a_class_of_the_package_count(monkeypatch):
    before = identity.code_of([L2RM])
    monkeypatch.setattr(L2RM, "n_networks", 7)
    assert identity.code_of([L2RM]) != before


@pytest.mark.slow
def test_a_run_that_goes_on_elsewhere_says_so_and_is_recorded(tmp_path, monkeypatch):
    tiny = {"dataset": "planted", "model": "vse", "epochs": 2, "warmup_epochs": 1, "batch_size": 16}
    tiny |= {"data_options": {"n_train": 40, "n_val": 10, "n_test": 10}, "out": str(tmp_path)}
    train = PairTrainer._train_epoch

    def fails(self, progress):
        if self.epoch == 1:
            raise KeyboardInterrupt
        return train(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(PairTrainer, "_train_epoch", fails)
        with pytest.raises(KeyboardInterrupt):
            nclib.run("plain", **tiny, threads=1, progress=False)
    with pytest.warns(
        UserWarning, match=r"continued on CPU.*, threads=2, .* from epoch 2; before that on CPU"
    ) as said:
        record = nclib.run("plain", **tiny, threads=2, progress=False)
    assert len(said) == 1
    on = [(entry["from_epoch"], entry["threads"]) for entry in record.environment["computed_on"]]
    assert on == [(1, 1), (2, 2)]
    # a finished run is returned whatever is asked
    assert nclib.run("plain", **tiny, threads=1, progress=False) == record
    assert len(list(tmp_path.glob("*/record.json"))) == 1
