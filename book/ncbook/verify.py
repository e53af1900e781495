"""Make recorded runs again and compare every number: ``ncbook verify``.

Records that were made before the numbers of their method or model moved are counted apart and not made again.
On the machine of the record every number must be the same. Another one takes sums in another order, and
training carries that on: there data and noise must be the same, and the test results near, see
:data:`NEAR`.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nclib.common.options import Rule, check, rules
from nclib.data.registry import datasets
from nclib.runs.identity import since
from nclib.runs.paths import DATA
from nclib.runs.record import Record
from nclib.runs.store import stored_records
from nclib.runs.tables import StoredRun, numbers
from nclib.runs.tasks import experiment_of

STATES = ("same", "partly", "older", "near", "differs", "not made", "broken")  # as they are counted
FINE = STATES[:4]  # every number that was compared is what it should be
MACHINE = ("device", "platform")  # what is another one where numbers may be near in place of the same
NEAR = 2e-3
"""Largest relative difference of a test result on another machine; measured between an Intel and an AMD."""
NEAR_OF = {"uot_rcl": 3e-2}
"""The same for methods that amplify rounding: 1.6 % between two hosts of one make, 2.4 % of two makes."""


@dataclass(frozen=True)
class Comparison:
    """A record beside a run that was made again with its settings.

    Parameters
    ----------
    n : int
        Compared values.
    differs : dict of str to tuple
        Stored and new value of those that differ, by place, such as ``metrics.test.rsum``.
    lacking : sequence of str
        Places of values that the new run has and the record lacks: they are not compared.
    """

    n: int
    differs: dict[str, tuple[Any, Any]]
    lacking: Sequence[str] = ()

    @property
    def state(self) -> str:
        """``same``, ``differs``, or ``partly`` the same, where the record lacks values."""
        return "differs" if self.differs else "partly" if self.lacking else "same"

    def __str__(self) -> str:
        said = f"{self.n} of {self.n} values are the same"
        if self.differs:
            tests = [k for k in ("metrics.test.rsum", "metrics.test.map_avg") if k in self.differs]
            place = tests[0] if tests else next(iter(self.differs))
            was, now = self.differs[place]
            said = f"{len(self.differs)} of {self.n} values differ; {place} is {was}, now {now}"
        if self.lacking:
            more = f" and {len(self.lacking) - 3} more" if len(self.lacking) > 3 else ""
            said += f"; not compared, since the record lacks them: {', '.join(self.lacking[:3])}{more}"
        return said


def compare(old: Record, now: Record) -> Comparison:
    """Compare data, noise, metrics, curves and diagnostics of two records, to the last digit.

    Times are left out. A value that only the stored record has differs; one that only the newer record has
    is named and not compared.
    """
    was, new = (numbers(content, content["curves"]) for content in (old.content(), now.content()))
    pairs = {k: (v, new.get(k, "missing")) for k, v in was.items()}
    differs = {k: pair for k, pair in pairs.items() if pair[0] != pair[1]}
    return Comparison(len(was), differs, [k for k in new if k not in was])


def beyond(differs: Mapping[str, tuple[Any, Any]], method: str) -> dict[str, tuple[Any, Any]]:
    """Return of the values that differ those that must not on another machine."""
    most = NEAR_OF.get(method, NEAR)

    def far(place: str, was: Any, now: Any) -> bool:
        if not place.startswith("metrics.test."):
            return place.startswith(("data.", "noise."))
        numbers = all(isinstance(one, (int, float)) for one in (was, now))
        return not (numbers and abs(now - was) <= most * abs(was))

    return {place: pair for place, pair in differs.items() if far(place, *pair)}


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
    if record.settings.get("networks", 1) == 1:
        record.check_is_one_run()
    experiment = experiment_of(record.settings["method"])
    settings: Any = experiment.read(record.settings)
    run = replace(settings.run, out=str(out), threads=record.environment.get("threads", 0))
    place = next((name for name in DATA if name in rules(datasets.options(run.dataset))), None)
    data = {**settings.data_options, **({place: root} if root and place else {})}
    settings = replace(settings, run=run, data_options=data)
    experiment.check_settings(settings)
    return experiment.run(settings, progress=False)


def verified(one: StoredRun, root: str = "") -> tuple[str, str, int]:
    """Make a stored run again; return how it compares, in a word and in a line, and the number of values.

    The word is one of :data:`STATES`, ``not made`` for a run that fails.
    """
    try:
        record = one.record()
        made = record.environment.get("numerics", 1)
        moved = since(method=record.settings["method"], model=record.settings.get("model", ""))
        if made < moved:
            return "older", f"numerics {made}, its numbers moved at {moved}", 0
        with tempfile.TemporaryDirectory() as out:
            now = make_again(record, out, root)
        comparison = compare(record, now)
    except Exception as error:  # whatever a run raises, the others are made all the same
        kind = "" if isinstance(error, (ValueError, OSError, RuntimeError)) else f"{type(error).__name__}: "
        return "not made", kind + " ".join(str(error).split()), 0
    state, said, method = comparison.state, str(comparison), record.settings["method"]
    was, here = ([one.environment.get(k) for k in MACHINE] for one in (record, now))
    if comparison.differs and was != here:
        said += f" (made on {', '.join(map(str, was))}, now on {', '.join(map(str, here))}"
        if beyond(comparison.differs, method):
            said += ": sums are rounded in another order there)"
        else:
            state = "near"
            said += f": only test results are compared, within {NEAR_OF.get(method, NEAR):.1%})"
    return state, said, comparison.n


def verify(folder: Path, sample: int = 20, seed: int = 0, match: str = "", root: str = "") -> bool:
    """Make records of a folder again, print a line for each, and tell whether all are what they should be.

    Parameters
    ----------
    folder : Path
    sample : int
        Records to make again, drawn at random; 0 for all.
    seed : int
        Of the drawing.
    match : str
        Only records with this text in their path.
    root : str
        Folder of the data, for runs on files.

    Raises
    ------
    ValueError
        Where the folder has no such record.
    """
    check({"sample": Rule(int, low=0)}, sample=sample)
    broken: list[str] = []
    every = [one for one in stored_records(folder, broken=broken) if match in str(one.path)]
    broken = [said for said in broken if match in said]
    if not every and not broken:
        raise ValueError(f"{folder} holds no record with {match!r} in its path")
    chosen = random.Random(seed).sample(every, sample) if 0 < sample < len(every) else every
    for said in broken:
        print(f"broken    {said}")
    counts, values = Counter({"broken": len(broken)}), 0
    for one in chosen:
        state, said, n = verified(one, root)
        counts[state] += 1
        values += n
        commit = one.content["environment"].get("commit", "unknown")
        print(f"{state:<8}  {one.path.relative_to(folder)} (commit {commit}): {said}", flush=True)
    total = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    print(f"{total}, of {len(every) + len(broken)} records; {values:,} values compared")
    return sum(counts[state] for state in FINE) == counts.total()
