"""Make recorded runs again and compare every number: ``nclib records verify``.

Records that were made before the numbers of their method or model moved are counted apart and not made again.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nclib.common.options import Rule, check, rules
from nclib.data.registry import datasets
from nclib.runs.identity import DATA, since
from nclib.runs.record import Record
from nclib.runs.store import numbers, read
from nclib.runs.tasks import experiment_of


@dataclass(frozen=True)
class Comparison:
    """A record beside a run that was made again with its settings.

    Parameters
    ----------
    n : int
        Compared values.
    differs : dict of str to tuple
        Stored and new value of those that differ, by place, such as ``metrics.test.rsum``.
    """

    n: int
    differs: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        if not self.differs:
            return f"{self.n} of {self.n} values are the same"
        tests = [k for k in ("metrics.test.rsum", "metrics.test.map_avg") if k in self.differs]
        place = tests[0] if tests else next(iter(self.differs))
        was, now = self.differs[place]
        return f"{len(self.differs)} of {self.n} values differ; {place} is {was}, now {now}"


def compare(stored: Record, now: Record) -> Comparison:
    """Compare data, noise, metrics, curves and diagnostics of two records, to the last digit.

    Times are left out, and values that only the newer record has.
    """
    was, new = (numbers(content, content["curves"]) for content in (stored.content(), now.content()))
    return Comparison(len(was), {k: (v, new.get(k)) for k, v in was.items() if v != new.get(k)})


def make_again(record: Record, out: str | Path, root: str = "") -> Record:
    """Run with the settings of a record, on as many threads, in a folder ``out``.

    Parameters
    ----------
    record : Record
    out : path
    root : str
        Folder of the data, which a record does not hold.

    Returns
    -------
    Record

    Raises
    ------
    ValueError, OSError, RuntimeError
        As :func:`nclib.run`, for example where files are missing.
    """
    record.check_is_one_run()
    experiment = experiment_of(record.settings["method"])
    settings: Any = experiment.read(record.settings)
    run = replace(settings.run, out=str(out), threads=record.environment.get("threads", 0))
    place = next((name for name in DATA if name in rules(datasets.options(run.dataset))), None)
    data = {**settings.data_options, **({place: root} if root and place else {})}
    settings = replace(settings, run=run, data_options=data)
    experiment.check_settings(settings)
    return experiment.run(settings, progress=False)


def main(words: Sequence[str]) -> int:
    """Run ``nclib records verify``; return 0 when every record that is not older was made again exactly."""
    parser = argparse.ArgumentParser(
        prog="nclib records verify", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=Path("runs"), help="folder of records; by default runs")
    add("--sample", type=int, default=20, help="records to make again, drawn at random; 0: all")
    add("--seed", type=int, default=0, help="seed of the drawing")
    add("--match", default="", help="only records with this text in their path")
    add("--root", default="", help="folder of the data, for runs on files")
    asked = parser.parse_args(words)
    check({"sample": Rule(int, low=0)}, sample=asked.sample)
    every = [(path, record) for path, record in read(asked.folder) if asked.match in str(path)]
    if not every:
        raise ValueError(f"{asked.folder} holds no record with {asked.match!r} in its path")
    chosen = every
    if 0 < asked.sample < len(every):
        chosen = random.Random(asked.seed).sample(every, asked.sample)
    counts = {"same": 0, "differs": 0, "not made": 0, "older": 0}
    for path, stored in chosen:
        made = stored.environment.get("numerics", 1)
        moved = since(method=stored.settings["method"], model=stored.settings.get("model", ""))
        if made < moved:
            counts["older"] += 1
            print(
                f"older     {path.relative_to(asked.folder)}: numerics {made}, its numbers moved at {moved}"
            )
            continue
        with tempfile.TemporaryDirectory() as out:
            try:
                now = make_again(stored, out, asked.root)
                found = compare(stored, now)
                state, said = "differs" if found.differs else "same", str(found)
                was, here = (record.environment.get("device") for record in (stored, now))
                if found.differs and was != here:
                    said += f" (made on {was}, now on {here}: sums are rounded in another order there)"
            except (ValueError, OSError, RuntimeError) as error:
                state, said = "not made", str(error)
        counts[state] += 1
        commit = stored.environment.get("commit", "unknown")
        print(f"{state:<8}  {path.relative_to(asked.folder)} (commit {commit}): {said}", flush=True)
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n) + f", of {len(every)} records")
    return int(counts["same"] + counts["older"] < len(chosen))
