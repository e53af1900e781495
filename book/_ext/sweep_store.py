"""The folder of a grid of notebook runs: what lies where, what is finished, and who is at work.

``plan.json`` names the runs. Each leaves a record, an executed notebook (and its page as HTML) and a log. A
seal, written last, holds the digests of record and notebook: without a seal that fits, nothing counts as
finished. Locks are those of the operating system (``flock``): they end with the processes that hold them,
however these end, so that none is ever stale. Standard library only: every job starts with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nclib.runs.identity import naming

SUBFOLDERS = ("records", "notebooks", "logs", "state", "work")


def put(path: pathlib.Path, data: bytes | str) -> None:
    """Write ``data`` so that ``path`` holds either the old content or the new, whatever happens."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as handle:
            handle.write(data.encode() if isinstance(data, str) else data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Return what a JSON file holds; nothing where it is absent or damaged."""
    try:
        content = json.loads(path.read_text("utf8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def digest(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file, or nothing where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


@contextlib.contextmanager
def lock(path: pathlib.Path, *, wait: bool = True, shared: bool = False) -> Iterator[int | None]:
    """Hold the lock on a file; yield its descriptor, or None where another process holds it.

    The lock lives as long as any process has the descriptor, children that inherited it among them.
    """
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class State:
    """How a run stands: ``done``, ``running``, ``failed`` or ``missing``, and what is known of it."""

    name: str
    known: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """The folder of one grid.

    Parameters
    ----------
    folder : Path
        Holds ``plan.json``, as :func:`Store.create` wrote it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        self.plan = read_json(self.folder / "plan.json")
        self.runs: dict[str, dict[str, Any]] = {run["label"]: run for run in self.plan.get("runs", [])}

    @classmethod
    def create(cls, folder: pathlib.Path, plan: Mapping[str, Any]) -> Store:
        """Write the plan into the folder, whose other content stays."""
        put(folder / "plan.json", json.dumps(plan, indent=1))
        return cls(folder)

    def record(self, label: str) -> pathlib.Path:
        return self.folder / "records" / f"{label}.json"

    def notebook(self, label: str) -> pathlib.Path:
        return self.folder / "notebooks" / f"{label}.ipynb"

    def part(self, label: str) -> pathlib.Path:
        """The notebook while it runs."""
        return self.folder / "work" / f"{label}.part.ipynb"

    def html(self, label: str) -> pathlib.Path:
        return self.folder / "notebooks" / f"{label}.html"

    def log(self, label: str) -> pathlib.Path:
        return self.folder / "logs" / f"{label}.txt"

    def work(self, label: str) -> pathlib.Path:
        """Checkpoints, arrays and the first copy of the record."""
        return self.folder / "work" / label

    def mark(self, label: str, kind: str) -> pathlib.Path:
        """``done``: the seal; ``failed``: the last failure; ``flag``: for Snakemake; ``lock``."""
        return self.folder / "state" / f"{label}.{kind}"

    def journal(self, event: str, label: str = "", **more: Any) -> None:
        """Add a line to the journal: what happened when, never changed afterwards."""
        line = {"time": time.time(), "event": event, "run": label, "pid": os.getpid(), **more}
        with open(self.folder / "journal.jsonl", "ab", buffering=0) as handle:
            handle.write(json.dumps(line).encode() + b"\n")

    def seal(self, label: str, **known: Any) -> None:
        """Declare a run finished; its record and notebook are in place."""
        files = {"record": digest(self.record(label)), "notebook": digest(self.notebook(label))}
        put(self.mark(label, "done"), json.dumps({**files, **known}))

    def problem(self, label: str) -> str:
        """Return why a run does not count as finished; empty when it does."""
        seal = read_json(self.mark(label, "done"))
        if not seal:
            return "not finished"
        for name, path in (("record", self.record(label)), ("notebook", self.notebook(label))):
            if digest(path) != seal.get(name):
                return f"the {name} is {'not what was written' if path.exists() else 'gone'}"
        if not same_settings(read_json(self.record(label)).get("settings", {}), self.runs[label]["settings"]):
            return "the record has other settings than the plan"
        return ""

    def state(self, label: str) -> State:
        """Return how a run stands; reads no record."""
        if seal := read_json(self.mark(label, "done")):
            return State("done", seal)
        if self.is_running(label):
            return State("running")
        failed = read_json(self.mark(label, "failed"))
        return State("failed", failed) if failed else State("missing")

    def is_running(self, label: str) -> bool:
        path = self.mark(label, "lock")
        if not path.exists():
            return False
        with lock(path, wait=False, shared=True) as free:
            return free is None


def same_settings(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Return whether two settings name one run."""
    return naming({"data_options": {}, **have}) == naming({"data_options": {}, **want})


@contextlib.contextmanager
def gpu(devices: int, runs_per_device: int) -> Iterator[int | None]:
    """Hold a place on one of the GPUs of this machine and show only that GPU to the processes started within.

    Waits until a place is free. All grids of this user on this machine share the places.

    Parameters
    ----------
    devices : int
        How many GPUs to use; 0 leaves the choice to others and yields None.
    runs_per_device : int
        How many runs share a GPU.
    """
    if not devices:
        yield None
        return
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible or [str(i) for i in range(devices)]
    folder = pathlib.Path(tempfile.gettempdir()) / f"nclib-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        for place in range(runs_per_device):  # an empty GPU before one that is shared
            for name in names[:devices]:
                with lock(folder / f"{name}-{place}.lock", wait=False) as fd:
                    if fd is not None:
                        os.environ["CUDA_VISIBLE_DEVICES"] = name
                        yield fd
                        return
        time.sleep(0.5)
