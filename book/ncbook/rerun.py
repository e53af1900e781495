"""Runs that fill the cells of a printed table, as calls and as commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ncbook.layouts import layout_of
from ncbook.match import DATASETS, TESTED, RunSpec, run_of
from ncbook.papers import rows_of
from nclib.runs.words import words_of


@dataclass(frozen=True)
class Rerun:
    """One run of the preset ``paper``, and the printed cells that it fills.

    Parameters
    ----------
    row, data, rate : str
        Of the table, as printed; ``rate`` is empty where no noise is added.
    arguments : mapping
        What :func:`nclib.run` is called with, besides the place of the data.
    """

    row: str
    data: str
    rate: str
    arguments: Mapping[str, Any]

    def command(self, root: str, seed: int = 0) -> str:
        """Return the run as one line for a shell, with the folder of the data."""
        given = {**self.arguments, "seed": seed, "data_options": {"root": root}}
        method = given.pop("method")
        return " ".join(["nclib run", method, *words_of(given)])


def reruns(
    paper: str, table: str, *, row: str = "", data: str = "", rate: str = ""
) -> tuple[list[Rerun], list[str]]:
    """Return the runs behind a printed table, and the rows without a run here.

    Parameters
    ----------
    paper, table : str
        As in :func:`ncbook.paper_table`.
    row, data, rate : str
        Only this row, data set (as printed) or rate; all where empty.

    Returns
    -------
    runs : list of Rerun
        Each once, though it fills several cells.
    without : list of str
        Rows of methods, weights or data that this package lacks.

    Raises
    ------
    ValueError
        For an unknown table, row, data set or rate; the message lists those of the table.
    """
    layout = layout_of(paper, table)
    lines = rows_of(paper, table)
    for name, value, key in (("row", row, _label), ("data", data, _data), ("rate", rate, _rate)):
        known = list(dict.fromkeys(key(line) for line in lines))
        if value and value not in known:
            raise ValueError(f"{name}={value!r}: {layout.name} has {', '.join(map(repr, known))}")
    runs: dict[tuple[str, str, str], Rerun] = {}
    without: dict[str, None] = {}
    for line in lines:
        place = _label(line), _data(line), _rate(line)
        if any(value and value != own for value, own in zip((row, data, rate), place, strict=True)):
            continue
        run = run_of(layout, line)
        known_data = DATASETS.get(line["dataset"])
        if run is None or known_data is None or line.get("protocol", "test-1k") not in TESTED:
            without.setdefault(place[0])
        else:
            runs.setdefault(place, Rerun(*place, dict(_arguments(run, known_data, line, layout.noise))))
    made = {r.row for r in runs.values()}
    return list(runs.values()), [label for label in without if label not in made]


def _label(line: Mapping[str, str]) -> str:
    """Name of a row: its method, and what is printed about its setting."""
    setting = line.get("setting", "")
    return f"{line['method']}, {setting}" if setting else line["method"]


def _data(line: Mapping[str, str]) -> str:
    return line["dataset"]


def _rate(line: Mapping[str, str]) -> str:
    return line.get("noise_rate", "")


def _arguments(run: RunSpec, dataset: str, line: Mapping[str, str], noise: str) -> Iterator[tuple[str, Any]]:
    from nclib import models

    rate = float(line["noise_rate"]) if line.get("noise_rate") else 0.0
    yield "method", run.method
    yield "dataset", dataset
    yield "preset", "paper"
    if not run.model:  # category retrieval
        yield "noise_rate", rate
        yield from run.options.items()
        return
    own = set(models.options(run.model))
    yield "model", run.model
    yield "mrate", rate
    if rate and noise:
        yield "protocol", noise
    yield from ((k, v) for k, v in run.options.items() if k not in own)
    of_model = {k: v for k, v in run.options.items() if k in own}
    if of_model:
        yield "model_options", of_model
