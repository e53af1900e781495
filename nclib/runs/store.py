"""Recorded runs in files and tables: read, and added to a table."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from nclib.common.options import Rule, check
from nclib.runs.digests import ADVICE, LIST, digests, lock_of
from nclib.runs.record import TASKS, OtherFileError, Record, check_form, content_of
from nclib.runs.request import moved_at
from nclib.runs.tables import StoredRun, as_stored, rows, write

# -------------------------------------------------------------------------------------------------- readers


def stored_records(source: str | Path, task: str = "", broken: list[str] | None = None) -> list[StoredRun]:
    """Return the records in a file, a table, or a folder of either, in the order of their paths.

    Hidden files are skipped, and files that are neither. A run counts once: of records with the same
    settings, data and code the first one with the latest numerics; a warning names the first of the others.

    Parameters
    ----------
    source : path
    task : {"", "pairs", "labels"}
        Keep the records of one task only.
    broken : list of str, optional
        Gets what is wrong with each table and record that cannot be read, in place of an error or a warning.

    Raises
    ------
    ValueError
        When there is nothing at this path, for another task, for a table that was changed or has no digest,
        and for two records of one run that differ. A record of its own that is damaged is left out of a
        folder's with a warning.
    """
    check({"task": Rule(str, choices=("", *TASKS))}, task=task)
    every = list(_every(Path(source), broken))
    first: dict[str, StoredRun] = {}
    for one in every:
        before = first.setdefault(one.key, one)
        first[one.key] = max(before, one, key=lambda each: each.numerics)  # the first of equal ones
    if copies := [one for one in every if first[one.key] is not one]:
        for one in copies:
            if text := _conflict(first[one.key], one):
                _tell(ValueError(text), broken)
        text = f"{copies[0].path} is a run that {first[copies[0].key].path} holds as well"
        more = f", and {len(copies) - 1} more are copies" if len(copies) > 1 else ""
        warnings.warn(f"{text}{more}; each run counts once", UserWarning, stacklevel=2)
    return [one for one in every if first[one.key] is one and task in ("", one.task)]


def _conflict(one: StoredRun, other: StoredRun) -> str:
    """Say in which number two records of one run differ that must not; empty for none.

    Those must not between which the numbers of the run did not move. A value that one lacks is not compared.
    """
    if min(one.numerics, other.numerics) < moved_at(one.settings) and one.numerics != other.numerics:
        return ""
    other_number = _difference(one, other, missing=False)
    where = f"{one.path} (made on {one.made_on}) and {other.path} (made on {other.made_on})"
    return other_number and f"{where} are records of one run, but {other_number}; keep one of them"


def _difference(one: StoredRun, other: StoredRun, missing: bool = True) -> str:
    """Return the first number in which two runs differ, in words; ``missing``: also one that either lacks."""
    a, b = one.numbers(), other.numbers()
    places = {**a, **b} if missing else [k for k in a if k in b]
    place = next((k for k in places if k not in a or k not in b or a[k] != b[k]), "")
    return place and f"{place} is {a.get(place, 'missing')} and {b.get(place, 'missing')}"


def load(path: str | Path) -> Record:
    """Return the record in a file of its own, or at a row of a table: ``robust.csv/NAME``.

    Raises
    ------
    ValueError
        When there is none, or it was changed.
    """
    path = Path(path)
    if path.parent.suffix != ".csv" or path.exists():
        return Record.load(path)
    for one in rows(path.parent):
        if one.path.name == path.name:
            return one.record()
    raise ValueError(f"{path.parent} has no run {path.name}")


def _every(source: Path, broken: list[str] | None = None) -> Iterator[StoredRun]:
    """Yield the records of a file, a table or a folder; errors are put into ``broken`` if it is given."""
    if not source.exists():
        raise ValueError(f"{str(source)!r}: there is no such folder, table or record")
    for listed in sorted(source.rglob(LIST)):
        if gone := [name for name in digests(listed.parent) if not (listed.parent / name).is_file()]:
            _tell(ValueError(f"{listed.parent / gone[0]} is not there, but in {listed}. {ADVICE}"), broken)
    alone = source.is_file()
    for path in [source] if alone else _files_in(source):
        try:
            yield from rows(path) if path.suffix == ".csv" else [as_stored(path, content_of(path))]
        except (ValueError, OSError) as error:
            if alone or not isinstance(error, OtherFileError):
                _tell(error, broken, fatal=alone or path.suffix == ".csv")


def _tell(error: Exception, broken: list[str] | None, fatal: bool = True) -> None:
    if broken is not None:
        broken.append(str(error))
    elif fatal:
        raise error
    else:
        text = f"{error}; it is left out of what is read here until the run is made again"
        warnings.warn(text, UserWarning, stacklevel=4)


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the tables and the JSON files in a folder and below."""
    for path in sorted(p for p in folder.rglob("*.*") if p.suffix in (".json", ".csv")):
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # a folder, a dead link, what editors keep of opened files
        if path.suffix == ".json" or path.with_suffix(".npz").is_file():  # curves make a table of it
            yield path


# -------------------------------------------------------------------------------------------------- writers


def append(
    table: str | Path, records: str | Path | Iterable[Record | str | Path], *, replace: bool = False
) -> int:
    """Add records to a table, which is made when it is not there.

    A run counts once: one that the table has already, with the same numbers, is passed over. Its times may
    differ. A record that was made before the numbers of its run moved gives way to a newer one. A reader
    finds the former table or the new one, whatever happens meanwhile.

    Parameters
    ----------
    table : path
        The file ``GRID.csv``; beside it stand ``GRID.npz`` and ``SHA256SUMS``.
    records : path, or iterable of records and paths
        Records, files of records, tables, and folders of them.
    replace : bool
        Put a record in the place of one with the same settings and other numbers.

    Returns
    -------
    int
        How many records were added or replaced.

    Raises
    ------
    ValueError
        For a record that is damaged, has no digest or makes no sense; for one whose settings and data are
        those of a run in the table, but not its numbers, unless it may ``replace`` that run; and for two
        different runs of one name. The table is then what it was.
    """
    path = Path(table)
    if path.suffix != ".csv":
        raise ValueError(f"table={str(table)!r}: must be the path of a .csv file")
    given = [records] if isinstance(records, (str, Path)) else records
    new = [one for item in given for one in _records_in(item)]
    with lock_of(path.parent):  # all tables in the folder share a list of digests
        return _append(path, new, replace)


def _append(path: Path, new: Iterable[StoredRun], replace: bool) -> int:
    """Add records to a table of which this process is the only writer, and read back what was written."""
    kept = {one.key: one for one in rows(path)} if path.exists() else {}
    added = 0
    for one in new:
        before = kept.get(one.key)
        if before is not None and not (before.outdated and not one.outdated):
            if not (other := _difference(before, one)):
                continue
            if not replace:
                raise ValueError(
                    f"{one.path} has the settings and data of {before.path.name} in {path}, but other "
                    f"numbers: {other}. Find out why; replace=True (--replace) keeps the new ones"
                )
        kept[one.key] = one
        added += 1
    if added:
        for one in kept.values():
            one.record()  # a row that is two halves gets no digest that hides it
        write(path, list(kept.values()))
        if {one.key for one in rows(path)} != kept.keys():
            raise RuntimeError(f"{path} does not hold what was written into it: another program changed it")
    return added


def _records_in(item: Record | str | Path) -> list[StoredRun]:
    if isinstance(item, Record):
        check_form(content := item.content(), item.name)
        return [as_stored(Path(item.name), content)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            return list(_every(Path(item)))
        except UserWarning as warning:
            raise ValueError(str(warning)) from None
