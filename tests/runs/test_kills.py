"""Sets of files that are replaced while their writer is killed: what is read is the old set or the new one.

A script in a process of its own makes each set, and replaces it in forked children that kill themselves by
SIGKILL before their first, second, ... step on the disk, until one comes to its end.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import fact, made

STEPS = ("replace", "unlink", "rmdir", "fsync")
KINDS = ("table", "stored run", "measurement", "audit's work")

Write = Callable[[Path, int], object]
Read = Callable[[Path], Any]


def audited(root: Path, work: Path) -> Any:
    """Embed ten pictures and their captions, drawn as is the network, and search their neighbours."""
    import local_weights
    from PIL import Image

    from nclib.auditing.embed import read_pairs
    from nclib.auditing.neighbours import find_neighbours

    clip, pictures = root / "clip", root / "pictures"
    if not clip.exists():
        local_weights.clip_folder(clip)
        size = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
        (clip / "preprocessor_config.json").write_text(
            json.dumps({**size, "image_processor_type": "CLIPImageProcessor"})
        )
        pictures.mkdir()
        rng, rows = np.random.default_rng(0), ["image,caption"]
        for i in range(10):
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(pictures / f"{i}.png")
            rows.append(f"{i}.png,a red tea pot number {i}")
        (pictures / "t.csv").write_text("\n".join(rows))
    pairs = read_pairs(pictures / "t.csv", model=clip, work=work, progress=False)
    near = find_neighbours(pairs, 3, work=work, progress=False)
    return np.asarray(pairs.images), np.asarray(pairs.captions), near


def kinds(root: Path) -> dict[str, tuple[Write, Read]]:
    """Return how each set is written in one of two states, and read."""
    from ncbook import demo, measurements

    import nclib
    from nclib.runs import append, load_record, tables

    data = {"n_train": 32, "n_val": 8, "n_test": 8}
    short = {"dataset": "planted", "model": "vse", "mrate": 0.4, "epochs": 1, "warmup_epochs": 1}
    run = [
        nclib.run("ncr", out=str(root / "runs"), seed=i, progress=False, data_options=data, **short)
        for i in (0, 1)
    ]
    demo.DEMO = root / "demo"

    def table(folder: Path, i: int) -> None:
        curves = [{"epoch": 1, "phase": "training", "loss": float(i), "seconds": 0.5}]
        records = [made("a", 0, 300.0 + i, curves=curves), made("b", 1)]
        append(folder / "g.csv", records, replace=True)

    def rows(folder: Path) -> Any:
        tables._rows.cache_clear()
        record = load_record(folder / "g.csv" / "a")
        return record.metrics, record.curves, len(nclib.table(folder))

    def stored(folder: Path) -> Any:
        demo.DEMO = folder
        (record,) = demo.stored_runs.__wrapped__()
        return record.content(), demo.kept_arrays(record)

    def measured(folder: Path) -> Any:
        measurements.MEASURED = folder
        return measurements.measurement("m")

    keep = demo.Keep(last=("p_clean",), weights=True)
    return {
        "table": (table, rows),
        "stored run": (lambda folder, i: demo.store(run[i], folder / "ncr" / "one", keep), stored),
        "measurement": (lambda folder, i: measurements.write(folder / "m.json", {"i": i}), measured),
        "audit's work": (lambda folder, i: audited(root, folder) if i else None, lambda f: audited(root, f)),
    }


def killed(change: Callable[[], object], at: int) -> bool:
    """Make a change in a child that kills itself before a step on the disk; return whether it came so far."""
    from tqdm import tqdm

    if child := os.fork():
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    tqdm.set_lock(threading.RLock())  # the lock that forks share would stay taken
    left = iter(range(at, -1, -1))

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(*words: Any, **more: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*words, **more)

        return stopped

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    try:
        change()
    finally:
        os._exit(0)


def main(root: Path) -> None:
    """Print for each kind what was read after each kill, and after the change was made again."""
    for kind, (write, read) in kinds(root).items():
        states = []
        for i in (0, 1):
            write(root / kind / str(i), i)
            states.append(fact(read(root / kind / str(i))))
        found, at = [], 0
        while True:
            folder = root / kind / f"killed-{at}"
            write(folder, 0)
            stopped = killed(functools.partial(write, folder, 1), at)
            after = fact(read(folder))
            write(folder, 1)
            again = fact(read(folder))
            write(folder, 0)  # clears what is left
            found.append([after in states, again == states[1], [*map(str, folder.rglob(".next-*"))]])
            shutil.rmtree(folder)
            if not stopped:
                break
            at += 1
        print(json.dumps([kind, at, states[0] != states[1], found]))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        code = f"import sys; sys.path[:0] = {sys.path!r}\nimport pathlib, test_kills\n"
        words = [sys.executable, "-c", f"{code}test_kills.main(pathlib.Path({root!r}))"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert not done.returncode, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {kind: rest for kind, *rest in lines}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_killed_at_any_step_leaves_the_old_set_or_the_new_one(
    kind: str, found: dict[str, Any]
) -> None:
    kills, differ, reads = found[kind]
    assert kills >= 3
    assert differ == (kind != "audit's work")
    assert reads == [[True, True, []]] * (kills + 1)  # after the kill, made again, nothing left
