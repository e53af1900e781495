"""Every notebook runs in another size, writes what it promises, and refuses wrong parameters at once.

Notebooks of tables have one size, and ``make html`` executes them as they are. It executes the others with
stored runs; here, every chapter trains, and some show the same from a store of what they trained.
"""

import json
import os
import re
import sys
import types
import warnings
from pathlib import Path

import nbformat
import pytest
import yaml
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # papermill's imports
    import papermill
    from papermill.parameterize import parameterize_notebook

from ncbook import demo

import nclib
from nclib.label_noise.base import METHODS as LABELS
from nclib.methods.base import METHODS as PAIRS
from nclib.models.registry import MODELS

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
FEW = {"n_train": 96, "n_val": 40, "n_test": 40}
PLANTED = {"dataset": "planted", "model": "vse", "epochs": 2, "mrate": 0.4, "data_options": FEW}
ALONE = {**PLANTED, "warmup_epochs": 1, "batch_size": 16, "baseline": "none"}
TINY = {
    **dict.fromkeys(("l2rm", "others"), PLANTED),
    **dict.fromkeys(("repair", "crank"), ALONE),
    "noisy_correspondence": {"scenes": 120, "epochs": 2},
    "which_noise": {"dataset": "planted"},
    "audit": {"marks": 40, "score": "cosine", "seed": 1},
    "audit_benchmark": {"data": "wikipedia", "measure": "ap"},
    "costs": {"batch": 64, "epochs": 5},
    "detectors": {"rate": 0.4, "overlap": 1.5},
    "field": {"rate": "0.6"},
    "linear": {"dataset": "planted", "mrate": 0.4},
    "omit": {"dataset": "planted", "epochs": 1},
    "one_run": {"dataset": "planted", "options": {"epochs": 2}},
    "uot_rcl": {
        **{"data_options": {"n_train": 120, "n_val": 40, "n_test": 40}, "epochs": 8, "hidden": 16, "dim": 16},
        **{"neighbours": 5, "shown": 24, "compare": "mrl"},
    },
}
RESULTS = {f"results_{name}" for name in ("l2rm", "omit", "repair", "uot_rcl")}
ONE_SIZE = {"claims", "losses", "methods_map", "photographs", "transport", *RESULTS}
# Methods of the page on the others, besides the one that it trains by itself with InfoNCE beside it.
OTHERS = [
    *({"method": name} for name in ("bicro", "mscn", "decl", "rcl", "gsc_plus", "sps")),
    {"method": "crcl", "options": {"schedules": 2, "schedule_epochs": 1}},
    *({"method": name, "options": {"warmup_epochs": 1}} for name in ("cream", "pcsr", "in2r")),
]
OTHERS = [("others", {**given, "baseline": "none"}) for given in OTHERS]
# Chapters that show the same from a store of what they trained; the build executes all others from theirs.
SHOWN_AGAIN = {"crank"}
OF_TABLES = {"costs", "field"}
pytestmark = pytest.mark.filterwarnings("ignore")  # the kernel's own warnings are not ours


@pytest.fixture(scope="module")
def kernel():
    """A kernel for all chapters: importing the libraries takes longer than most of them."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=ROOT / "notebooks", env={**os.environ, "MPLBACKEND": ""})
    yield manager
    manager.shutdown_kernel(now=True)


def execute(kernel, name, parameters, store=demo.DEMO):
    """Execute a notebook with a store of runs, in a kernel from which the last one's variables are gone."""
    nb = parameterize_notebook(papermill.iorw.load_notebook_node(str(NOTEBOOKS[name])), parameters)
    begin = f"""import pathlib, ncbook.demo
ncbook.demo.DEMO = pathlib.Path({str(store)!r})
ncbook.demo.stored_runs.cache_clear()
%reset -f"""
    nb.cells.insert(0, nbformat.v4.new_code_cell(begin, id="begin"))
    client = NotebookClient(nb, km=kernel, timeout=280)
    try:
        return client.execute()
    finally:
        client.kc.stop_channels()


def test_every_notebook_has_another_size_or_one_alone():
    assert set(NOTEBOOKS) == {*TINY, *ONE_SIZE}
    assert not ONE_SIZE & set(TINY)


def printed(nb):
    """Return the texts of a notebook's outputs by cell, less the log of training and the record's place."""
    found = {}
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.id not in ("run", "record", "baseline"):
            data = [o.get("data", {}) for o in cell.outputs]
            drawn = [re.findall("<!-- (.*) -->", d.get("image/svg+xml", "")) for d in data]
            said = [d.get("text/html") or d.get("text/markdown") for d in data]
            text = "".join(o.get("text", "") for o in cell.outputs)  # which a busy kernel sends in pieces
            found[cell.id] = [*filter(None, [*drawn, *said, text])]
    return {name: texts for name, texts in found.items() if texts}


@pytest.mark.parametrize(("name", "other"), [*((name, {}) for name in TINY), *OTHERS])
def test_runs(name, other, tmp_path, kernel):
    parameters = {**TINY[name], **other}
    known = set(papermill.inspect_notebook(str(NOTEBOOKS[name])))
    if "out" in known:
        parameters["out"] = str(tmp_path / "runs")
    assert set(parameters) <= known  # papermill itself would only warn
    done = execute(kernel, name, parameters)
    code = [c for c in done.cells if c.cell_type == "code" and c.source.strip()]
    assert all(c.execution_count for c in code)
    shown = [k for c in code for o in c.outputs for k in o.get("data", {})]
    assert sum("image" in k for k in shown) >= 2 or (name in OF_TABLES and "text/html" in shown)
    if "out" in known:
        records = [json.loads(p.read_text()) for p in (tmp_path / "runs").rglob("record.json")]
        assert records
        methods = {*nclib.methods.available(), *nclib.label_noise.available()}
        assert {r["settings"]["method"] for r in records} >= methods & {parameters.get("method", name)}
        assert all(max(r["metrics"]["test"].values()) > 0 for r in records)
    if name in SHOWN_AGAIN:
        keep = demo.declared(name)
        for path in (tmp_path / "runs").glob("*/record.json"):
            demo.store(nclib.Record.load(path), tmp_path / "demo" / name / path.parent.name, keep)
        given = {**parameters, "source": "recorded", "out": str(tmp_path / "none")}
        again = execute(kernel, name, given, tmp_path / "demo")
        assert not (tmp_path / "none").exists()
        assert printed(again) == printed(done)


TRAINING = sorted(name for name, path in NOTEBOOKS.items() if "source: str" in path.read_text("utf8"))
STORE = yaml.safe_load((ROOT / "book/demo/demo.yml").read_text("utf8"))
BEFORE = {"parameters", "check", "setup", "import", "imports", "watch"}  # cells that make a run's parameters


def test_the_store_is_declared_for_every_chapter_that_trains():
    assert sorted({keep.get("page", name) for name, keep in STORE.items()}) == TRAINING
    assert {path.name for path in (ROOT / "book/demo").iterdir() if path.is_dir()} == set(STORE)
    size = sum(path.stat().st_size for path in (ROOT / "book/demo").rglob("*") if path.is_file())
    assert size < 10e6


def test_a_chapter_shows_stored_runs_and_trains_nothing(tmp_path, kernel):
    done = execute(kernel, "l2rm", {"source": "recorded", "out": str(tmp_path / "runs")})
    text = "".join(o.text for c in done.cells if c.id == "run" for o in c.outputs)
    assert text.startswith("stored run, trained in ")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", sorted(set(STORE) - {"noisy_correspondence"}))
def test_the_store_has_what_a_chapter_would_train(name, monkeypatch):
    monkeypatch.setattr("nclib.run", lambda *names, **given: pytest.fail("trained"))
    for registry in (PAIRS, LABELS, MODELS):  # what a cell registers ends with its test
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    page = STORE[name].get("page", name)
    cells = {c.id: c.source for c in nbformat.read(NOTEBOOKS[page], 4).cells if c.cell_type == "code"}
    cells["parameters"] += '\nsource = "recorded"' + f"\nmethod = {name!r}" * (page != name)
    chosen = [
        source
        for key, source in cells.items()
        if key in BEFORE or key == "run" or re.match(r"change(-\w+)?$", key)
    ]
    # As in a kernel, whose cells are the source of the classes that they define.
    chapter = types.ModuleType("chapter")
    chapter.In = chosen
    monkeypatch.setitem(sys.modules, "chapter", chapter)
    exec("\n".join(chosen), vars(chapter))


def test_other_parameters_than_the_stored_ones_are_refused(tmp_path, kernel):
    given = {"source": "recorded", "rho": 0.3, "out": str(tmp_path / "runs")}
    with pytest.raises(CellExecutionError) as caught:
        execute(kernel, "l2rm", given)
    assert "no stored run has these parameters; the nearest one has rho=0.1 (not 0.3)" in caught.value.evalue
    assert "source='train' trains with the parameters given" in caught.value.evalue


def test_one_run_takes_methods_of_category_retrieval(tmp_path, kernel):
    sizes = {"n_train": 120, "n_val": 40, "n_test": 40}
    given = {"method": "uot_rcl", "dataset": "planted_category", "noise_rate": 0.4, "data_options": sizes}
    given |= {"out": str(tmp_path / "runs"), "options": {"epochs": 3, "warmup_epochs": 1}}
    done = execute(kernel, "one_run", given)
    (path,) = (tmp_path / "runs").rglob("record.json")
    record = json.loads(path.read_text())
    assert record["settings"]["epochs"] == 3
    cells = {c.id: c for c in done.cells}
    assert cells["record"].outputs[0].text.strip() == str(path)
    assert "image/svg+xml" in cells["noise"].outputs[-1].data
    assert "map_avg" in cells["results"].outputs[0].data["text/html"]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("l2rm", {"mrate": 60}, "mrate=60: must be a number, at least 0 and at most 1"),
        ("l2rm", {"rho": "0,1"}, "rho='0,1': must be a number, above 0 and at most 1"),
        ("l2rm", {"baseline": "no"}, "baseline='no': must be one of"),
        ("noisy_correspondence", {"mrate": -0.1}, "mrate=-0.1: must be a number"),
        ("results_omit", {"preset": "fast"}, "preset='fast': must be one of '', 'quick', 'standard', 'p"),
        ("repair", {"bank_size": 0}, "bank_size=0: must be"),
        ("repair", {"source": "stored"}, "source='stored': must be one of 'train', 'recorded'"),
        ("uot_rcl", {"noise_rate": 2}, "noise_rate=2: must be a number"),
        ("audit", {"marks": 5}, "marks=5: must be"),
        ("audit", {"score": "best"}, "score='best': must be one of"),
        ("audit_benchmark", {"data": "coco"}, "data='coco': must be one of"),
        ("omit", {"matching": "best"}, "matching='best'"),
        ("others", {"method": "l2rm"}, "method='l2rm': must be one of 'ncr', 'bicro', 'mscn', 'decl'"),
        ("others", {"options": {"rho": 0.1}}, "unknown parameter 'rho'"),
        ("others", {"options": {"seed": 1}}, "options: seed is a parameter of its own"),
        ("one_run", {"method": "l2rmm"}, "method='l2rmm': must be one of"),
        ("one_run", {"mrat": 0.6}, "unknown parameter 'mrat'; did you mean 'mrate'?"),
        ("one_run", {"options": {"rhoo": 0.1}}, "unknown parameter 'rhoo'; did you mean 'rho'?"),
        ("one_run", {"options": {"seed": 1}}, "options: seed is a parameter of its own"),
        ("one_run", {"noise_rate": 0.4, "mrate": 0.2}, "mrate and noise_rate are two names of one parameter"),
        ("one_run", {"method": "mrl", "model": "vse"}, "unknown parameter 'model'"),
    ],
)
def test_wrong_parameters_stop_before_any_work(name, wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nb = parameterize_notebook(papermill.iorw.load_notebook_node(str(NOTEBOOKS[name])), wrong)
    first = [cell.source for cell in nb.cells if cell.cell_type == "code"][:4]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        exec("\n".join(first), {})
    assert not list(tmp_path.iterdir())


def test_papermill_shows_the_message_and_goes_no_further(tmp_path):
    out, wrong = tmp_path / "out.ipynb", {"mrat": 0.6, "out": str(tmp_path / "runs")}
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(NOTEBOOKS["l2rm"], out, wrong, cwd=ROOT / "notebooks", progress_bar=False)
    assert "unknown parameter 'mrat'; did you mean 'mrate'?" in caught.value.evalue
    assert "Traceback" not in "".join(caught.value.traceback)
    assert not (tmp_path / "runs").exists()
    cells = [c for c in nbformat.read(out, 4).cells if c.cell_type == "code"]
    assert sum(bool(c.get("execution_count")) for c in cells) <= 3
