"""Code of one's own, imported by its path before a run: ``nclib run --import``, and ``import`` in grids."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def import_own(what: str | Path, root: Path = Path()) -> None:
    """Import a file, a package or a module, so that it registers its methods, models and data sets.

    A file or folder is imported under its own name; within a package, under its name in that package. What
    was imported before stays as it is.

    Parameters
    ----------
    what : str or Path
        A Python file, a folder with ``__init__.py``, or the name of a module that Python finds.
    root : Path
        Folder of relative paths.

    Raises
    ------
    ValueError
        If it is none of these, or has the name of another module that is in use.
    """
    path = (root / what).resolve()
    file = path / "__init__.py" if path.is_dir() else path
    if file.suffix == ".py" and file.is_file():
        names, folder = [path.stem], path.parent
        while (folder / "__init__.py").is_file():
            names, folder = [folder.name, *names], folder.parent
        name = ".".join(names)
        known = sys.modules.get(name)
        if known is not None and Path(known.__file__ or "").resolve() != file:
            raise ValueError(f"import {what}: {name!r} is the name of another module; rename the file")
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    elif not _is_module(name := str(what)):
        raise ValueError(
            f"import {what}: must be a Python file, a folder with __init__.py, or the name of a module"
        )
    importlib.import_module(name)


def _is_module(module: str) -> bool:
    """Return whether Python finds a module."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of a package around it; of a text that is not a name
        return False
