"""Importing costs torch and little else; every public name is documented."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import nclib

HEAVY = ("scipy", "sklearn", "pandas", "matplotlib", "seaborn", "PIL", "h5py", "ot", "IPython")


@pytest.mark.slow
def test_heavy_libraries_are_imported_where_they_are_used():
    code = f"""if True:
        import importlib, sys
        for what in ("nclib", "nclib.ot", "nclib.runs", "nclib.runs.record", "nclib.plots"):
            importlib.import_module(what)
            print(what, *sorted(m for m in {HEAVY} if m in sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert [line for line in lines if " " in line] == []


def test_the_package_alone_does_not_import_torch():
    code = "import sys, nclib; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


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
