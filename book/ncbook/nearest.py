"""Recorded runs by what was asked for: the record that answers, or the one that comes nearest."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nclib.common.source import own_code
from nclib.runs.request import Request, checksum
from nclib.runs.store import stored_records
from nclib.runs.tables import StoredRun
from nclib.runs.tasks import experiment_of


def requests(wanted: Iterable[Mapping[str, Any]]) -> list[Request]:
    """Return the requests for runs with these settings; data that several share are loaded once."""
    once = functools.cache(checksum)
    return [Request(one, own_code(experiment_of(one["method"]).parts(one)), once) for one in wanted]


def nearest(source: str | Path, wanted: Iterable[Request]) -> list[tuple[StoredRun | None, list[str]]]:
    """Return for each request the record that comes nearest, and in what it differs: nothing if it answers.

    Every file is read once. Nearest are records of the same method, model, data, preset and seed; None where
    there are none.
    """
    there: dict[str, list[StoredRun]] = {}
    for one in stored_records(source):
        there.setdefault(_kind(one.settings), []).append(one)
    answers = list[tuple[StoredRun | None, list[str]]]()
    for asked in wanted:
        best: tuple[StoredRun | None, list[str]] = None, []
        for one in there.get(_kind(asked.settings), ()):
            unlike = asked.unlike({**one.content, "settings": one.settings})
            if best[0] is None or _distance(unlike) < _distance(best[1]):
                best = one, unlike
            if not unlike:
                break
        answers.append(best)
    return answers


def _distance(unlike: Sequence[str]) -> tuple[bool, int]:
    """Return what is smaller for a nearer record: one of other settings is farther than any of the same."""
    return all(name.isidentifier() for name in unlike) and bool(unlike), len(unlike)


def _kind(settings: Mapping[str, Any]) -> str:
    return str([settings.get(k) for k in ("method", "model", "dataset", "preset", "seed")])
