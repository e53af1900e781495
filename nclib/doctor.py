"""Check of the machine, the packages and the bundled data: ``nclib doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from nclib.common.extras import DISTRIBUTION, MissingExtraError, needed_by

Finding = tuple[bool | None, str, str]  # good or not (None: something optional lacks), name, text
MARKS = {True: "ok", False: "NO", None: "-"}


def examine() -> int:
    """Print what is installed and whether it can be used; return the exit status, 0 or 1."""
    findings = [*_environment(), *_packages(), *_folders(), *_data()]
    for good, name, text in findings:
        print(f"{MARKS[good]:<4}{name:<22}{text}")
    return int(any(good is False for good, *_ in findings))


def _environment() -> Iterator[Finding]:
    import nclib

    where = f"{nclib.__version__}, {Path(nclib.__file__).parent}"
    try:
        with needed_by("training"):
            from nclib.runs.machine import choose_device, environment
    except MissingExtraError as error:
        yield True, "nclib", where
        yield True, "Python", platform.python_version()
        yield None, "device", str(error)
        return
    here = environment(choose_device("auto"))
    yield True, "nclib", f"{where}, commit {here['commit']}"
    yield True, "Python", f"{here['python']}, {here['platform']}"
    yield True, "device", here["device"]
    yield True, "threads", f"torch takes {here['threads']} of {here['cores']} cores"
    if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        yield True, "", "on busy cores set OMP_WAIT_POLICY=PASSIVE: waiting threads take a core otherwise"


def _packages() -> Iterator[Finding]:
    """Check the packages that nclib needs, then those of each extra."""
    from packaging.requirements import Requirement

    needs = [Requirement(text) for text in requires(DISTRIBUTION) or []]
    usual = [n for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
    for extra in ("", *(metadata(DISTRIBUTION).get_all("Provides-Extra") or [])):
        more = [n for n in needs if n not in usual and n.marker and n.marker.evaluate({"extra": extra})]
        own = more if extra else usual
        has = {n.name: _version(n.name) for n in own}
        lacking = [f"{n.name}{n.specifier}" for n in own if not n.specifier.contains(has[n.name], True)]
        text = f"lacks {', '.join(lacking)}" if lacking else ", ".join(f"{n} {v}" for n, v in has.items())
        good = not lacking or (None if extra else False)
        yield good, f"extra {extra}" if extra else "packages", text


def _version(name: str) -> str:
    """Return the installed version; without one, a version that no requirement accepts."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "0.dev0"


def _folders() -> Iterator[Finding]:
    from nclib.common.files import cache_folder

    for name, path in (("cache", cache_folder()), ("records", Path("runs").resolve())):
        there = next(p for p in (path, *path.parents) if p.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                yield True, name, f"{path}, {shutil.disk_usage(there).free / 1e9:.0f} GB free"
        except OSError as error:
            yield False, name, f"{path} cannot be written ({error.strerror})"


def _data() -> Iterator[Finding]:
    from nclib.data import available
    from nclib.data.emoji.assets import asset_bytes

    try:
        asset_bytes()
        yield True, "bundled data", "as shipped"
    except ValueError as error:
        yield False, "bundled data", str(error)
    yield True, "data sets", ", ".join(available())
