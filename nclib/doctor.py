"""Check of the machine, the packages and the data: ``nclib doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from nclib.common.extras import DISTRIBUTION, MissingExtraError, needed_by

Found = tuple[bool | None, str, str]  # good or not (None: something optional lacks), name, finding
MARKS = {True: "ok", False: "NO", None: "-"}


def examine(root: Path | None = None) -> int:
    """Print the findings; return 0 when what is installed can be used, and the data of ``root``.

    Parameters
    ----------
    root : Path, optional
        Folder of the papers' data.

    Returns
    -------
    int
        Exit status: 0 or 1.
    """
    found = [*_environment(), *_packages(), *_places(), *_bundled(), *_papers_data(root)]
    for good, name, text in found:
        print(f"{MARKS[good]:<4}{name:<22}{text}")
    return int(any(good is False for good, *_ in found))


def _environment() -> Iterator[Found]:
    import nclib

    place = Path(nclib.__file__).parent
    try:
        with needed_by("training"):
            import torch

            from nclib.runs.machine import choose_device, environment
    except MissingExtraError as error:
        yield True, "nclib", f"{nclib.__version__}, {place}"
        yield True, "Python", platform.python_version()
        yield None, "device", str(error)
        return
    here = environment(choose_device("auto"))
    yield True, "nclib", f"{nclib.__version__}, commit {here['commit']}, {place}"
    yield True, "Python", f"{here['python']}, {here['platform']}"
    yield True, "device", f"{here['device']} ({torch.cuda.device_count()} CUDA devices)"
    yield True, "threads", f"torch takes {here['threads']} of {here['cores']} cores"
    if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        yield True, "", "on busy cores set OMP_WAIT_POLICY=PASSIVE: waiting threads take a core otherwise"


def _packages() -> Iterator[Found]:
    """Check the packages that nclib needs, then those of each extra."""
    from packaging.requirements import Requirement

    needs = [Requirement(text) for text in requires(DISTRIBUTION) or []]
    usual = [n for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
    for extra in ("", *(metadata(DISTRIBUTION).get_all("Provides-Extra") or [])):
        own = [n for n in needs if n not in usual and n.marker and n.marker.evaluate({"extra": extra})]
        own = own if extra else usual
        has = {n.name: _version(n.name) for n in own}
        lacking = [f"{n.name}{n.specifier}" for n in own if not n.specifier.contains(has[n.name], True)]
        said = f"lacks {', '.join(lacking)}" if lacking else ", ".join(f"{n} {v}" for n, v in has.items())
        good = not lacking or (None if extra else False)
        yield good, f"extra {extra}" if extra else "packages", said


def _version(name: str) -> str:
    """Return the installed version; without one, a version that no requirement accepts."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "0.dev0"


def _places() -> Iterator[Found]:
    from nclib.common.files import cache_folder

    for name, place in (("cache", cache_folder()), ("records", Path("runs").resolve())):
        there = next(p for p in (place, *place.parents) if p.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                yield True, name, f"{place}, {shutil.disk_usage(there).free / 1e9:.0f} GB free"
        except OSError as error:
            yield False, name, f"{place} cannot be written ({error.strerror})"


def _bundled() -> Iterator[Found]:
    from nclib.data import available
    from nclib.data.emoji.assets import asset_bytes

    try:
        asset_bytes()
        yield True, "bundled data", "as shipped"
    except ValueError as error:
        yield False, "bundled data", str(error)
    yield True, "data sets", ", ".join(available())


def _papers_data(root: Path | None) -> Iterator[Found]:
    from nclib.data.feature_files import LAYOUTS, Reading, find_folder, missing_files

    if root is None:
        yield True, "papers' data", "not looked at; nclib doctor ROOT looks at a folder"
        return
    found = False
    for layout in LAYOUTS.values():
        folder = find_folder(layout, root, layout.images)
        missing = missing_files(layout, folder, layout.images, Reading())
        if len(missing) < 2 * len(layout.images):  # features and captions of each split
            found = True
            yield not missing, layout.name, f"{folder}" + (f" lacks {', '.join(missing)}" if missing else "")
    if not found:
        yield False, "papers' data", f"{root}: no region features; tools/data_check.py {root} NAME says more"
