"""Runs of methods that are not of this book: checked, kept in a table of their own, shown apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ncbook import board
from ncbook.board import NOISE, PLACE, scored
from ncbook.runs import load_runs
from nclib.label_noise.base import METHODS as OF_LABELS
from nclib.methods.base import METHODS as OF_PAIRS
from nclib.runs import Record, append, load_record
from nclib.runs.store import stored

SAME = ("model_options", "data_options")  # settings that a submitted run shares with the book's runs


def submit(files: Sequence[Path]) -> int:
    """Check records of methods that are not of this book, and add them to the submitted runs.

    Parameters
    ----------
    files : sequence of Path
        Records that ``nclib run --import FILE METHOD`` wrote, tables of records, or folders of either.

    Returns
    -------
    int
        How many were added; a record that is there already is passed over.

    Raises
    ------
    ValueError
        For a record that is damaged or changed, whose method is of this book, or that was made under other
        conditions than the book's runs which it would stand beside: other data, noise, options of model or
        data, or more epochs. Then nothing is added.
    """
    broken: list[str] = []
    records = [one.record() for file in files for one in stored(file, broken=broken)]
    if broken or not records:
        raise ValueError(broken[0] if broken else f"no record of a run in {', '.join(map(str, files))}")
    book = scored(load_runs())
    for record in records:
        if wrong := _wrong(record, book):
            raise ValueError(f"{record.name}: {wrong}")
    table = board.SUBMITTED / "submitted.csv"
    before = [one.record() for one in stored(table)] if table.exists() else []
    _check_is_one_setting([*before, *records])
    board.SUBMITTED.mkdir(exist_ok=True)
    return append(table, records)


def _wrong(record: Record, book: pd.DataFrame) -> str:
    """Return what keeps a record from standing beside the book's runs; empty for nothing."""
    s, method = record.settings, record.settings["method"]
    if method in OF_PAIRS or method in OF_LABELS:
        return f"{method} is a method of this book; ncbook collect GRID FILE adds its runs"
    if not record.environment.get("own_code"):
        return "it has no digest of the method's code; make the run with nclib run --import FILE METHOD"
    if s.get("networks", 1) > 1:
        return f"networks={s['networks']}: submit runs of the method itself"
    where = {
        **dict(zip(PLACE, (record.task, s["dataset"], s["preset"], s.get("model", "")), strict=True)),
        **dict(zip(NOISE, (s["protocol"], record.noise_rate), strict=True)),
    }
    beside, found = book, list[str]()
    for name, value in {**where, "seed": s["seed"]}.items():
        same = beside[beside[name] == value]
        if same.empty:
            there = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in sorted(set(beside[name])))
            return f"{name}={value!r}: {' and '.join(found) or 'the book'} has runs with {there}"
        beside, found = same, [*found, f"{name}={value}"]
    others = [load_record(path) for path in beside["path"].unique()]
    for name, this, there in (
        ("data", record.data["checksum"], others[0].data["checksum"]),
        ("noise", record.noise["checksum"], others[0].noise["checksum"]),
    ):
        if this != there:
            return f"its {name} has the checksum {this}, that of the book's runs {there}"
    for name in SAME:
        given, known = s.get(name) or {}, [other.settings.get(name) or {} for other in others]
        if given not in known:
            return f"{name}={given}: the book's runs there have {known[0]}"
    most = max(len(other.curves) for other in others)
    if len(record.curves) > most:
        return f"{len(record.curves)} epochs: the book's runs there have at most {most}"
    return ""


def _check_is_one_setting(records: Sequence[Record]) -> None:
    """Raise a ValueError where the runs of one name have several codes or options."""
    known: dict[str, tuple[str, str]] = {}
    for record in records:
        method, options = record.settings["method"], record.settings["method_options"]
        this = (record.environment["own_code"], str(options))
        if (other := known.setdefault(method, this)) != this:
            what = "code" if other[0] != this[0] else f"options ({other[1]}, {this[1]})"
            raise ValueError(
                f"{record.name}: other runs of {method!r} have other {what}; give it another name"
            )


def submitted_runs() -> pd.DataFrame:
    """Return the submitted runs, as :func:`ncbook.board.scored` returns those of the book."""
    if not board.SUBMITTED.is_dir():
        return pd.DataFrame(columns=["task"])
    runs = load_runs(board.SUBMITTED)
    for table in (runs.retrieval, runs.category):
        table["variant"] = ""  # a method that this version does not know has no usual settings
    return scored(runs)
