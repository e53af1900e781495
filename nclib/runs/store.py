"""Recorded runs as tables: one row a run, their curves beside it, and the digests of both.

A table ``robust`` is three files in one folder:

``robust.csv``
    One row a run, in the order of their names. A heading is the place of a value in the record, such as
    ``settings.method_options.rho``. A cell is a JSON value, or text without quotes where it can be nothing
    else; an empty cell is a value that the record does not have. A row ends with its last value, so that a
    new column changes no other row.
``robust.npz``
    The curves of these runs (:mod:`nclib.runs.curves`), read when they are needed.
``SHA256SUMS``
    The digests of both files, as ``sha256sum -c`` reads them; a table without them is not read.

Each row has the digest that the file of its run had, curves included, so that a change is traced to a run.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from nclib.common.files import digest, write_atomically
from nclib.common.options import Rule, check
from nclib.runs.curves import Curves, Epochs, packed
from nclib.runs.digests import ADVICE, LIST, check_digest, digests, note_digests
from nclib.runs.identity import naming, own_code
from nclib.runs.record import SUM, TASKS, OtherFileError, Record, check_form, completed, content_of, own_sum
from nclib.runs.request import Request, checksum, moved, outdated
from nclib.runs.tasks import experiment_of
from nclib.runs.words import flattened

if TYPE_CHECKING:
    from nclib.runs.options import Settings

REMARKS = "remarks"
LOCK = ".tables.lock"
FIRST = ("name", SUM, REMARKS)  # the first columns of a table
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
WORDS = {"true": True, "false": False, "null": None}
TIMES = ("seconds", "cpu_seconds", "test_seconds", "peak_memory_mb")  # numbers that no run repeats
COMPARED = ("data", "noise", "metrics", "diagnostics", "best_epoch")


@dataclass(frozen=True)
class Stored:
    """A record where it is stored: in a file of its own, or as a row of a table.

    Parameters
    ----------
    path : Path
        The file; of a row the table's, with the name of the run below it: ``robust.csv/NAME``.
    content : mapping
        All but the curves, for reading: many readers share it.
    curves : callable
        Returns the curves, or those with the given names; they are read when they are needed.
    remarks : str
        As :attr:`Record.remarks`, joined.
    sha256 : str
        The own digest of a row, curves included; :meth:`record` compares it.
    """

    path: Path
    content: Mapping[str, Any]
    curves: Callable[..., Epochs]
    remarks: str = ""
    sha256: str = ""

    @property
    def task(self) -> str:
        """``pairs`` or ``labels``."""
        return TASKS["map_avg" in self.content["metrics"]["test"]]

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The settings with the parameters that came since, at their defaults."""
        return completed(self.content["settings"])

    @functools.cached_property
    def naming(self) -> dict[str, Any]:
        """The settings that name the run."""
        return naming(self.settings)

    def record(self) -> Record:
        """Return the record, with its curves; a ValueError for a row that is not what its digest states."""
        curves = self.curves()
        if self.sha256 not in ("", own_sum({**self.content, "curves": curves})):
            raise ValueError(
                f"{self.path} does not match its own digest: its numbers and its curves are of two moments, "
                f"or were changed. {ADVICE}"
            )
        content = copy.deepcopy({**self.content, "settings": self.settings, "curves": curves})
        return Record(**content, folder=str(self.path.parent))

    @property
    def numerics(self) -> int:
        """The number of the numerics under which the run was made."""
        return int(self.content["environment"].get("numerics", 1))

    @property
    def outdated(self) -> str:
        """Why the record no longer holds the numbers of its run, in words; empty where it does."""
        return outdated(self.settings, self.numerics)

    @property
    def made_on(self) -> str:
        """What made the run, in words: the device, its machine and the version of torch."""
        facts = self.content["environment"]
        machine = (facts.get("platform"), f"torch {facts.get('versions', {}).get('torch', 'unknown')}")
        return ", ".join(filter(None, (facts["device"], *machine)))

    @functools.cached_property
    def key(self) -> str:
        """Return what runs share that must have the same numbers: settings, data, code of the user's."""
        facts = self.content["data"].get("checksum"), self.content["environment"].get("own_code")
        return json.dumps([self.naming, *facts], sort_keys=True)

    def numbers(self) -> dict[str, Any]:
        """Return what runs of the same settings must agree in, by its place."""
        return numbers(self.content, self.curves())


def numbers(content: Mapping[str, Any], epochs: Epochs) -> dict[str, Any]:
    """Return what runs of the same settings must agree in, by its place, such as ``metrics.test.rsum``."""
    curves = {str(i): {k: v for k, v in row.items() if k not in TIMES} for i, row in enumerate(epochs, 1)}
    return flattened({k: content[k] for k in COMPARED} | {"curves": curves})


# -------------------------------------------------------------------------------------------------- readers


def stored(source: str | Path, task: str = "", broken: list[str] | None = None) -> list[Stored]:
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
    first: dict[str, Stored] = {}
    for one in every:
        before = first.setdefault(one.key, one)
        first[one.key] = max(before, one, key=lambda each: each.numerics)  # the first of equal ones
    if copies := [one for one in every if first[one.key] is not one]:
        for one in copies:
            if said := _conflict(first[one.key], one):
                _tell(ValueError(said), broken)
        said = f"{copies[0].path} is a run that {first[copies[0].key].path} holds as well"
        more = f", and {len(copies) - 1} more are copies" if len(copies) > 1 else ""
        warnings.warn(f"{said}{more}; each run counts once", UserWarning, stacklevel=2)
    return [one for one in every if first[one.key] is one and task in ("", one.task)]


def _conflict(one: Stored, other: Stored) -> str:
    """Say in which number two records of one run differ that must not; empty for none.

    Those must not between which the numbers of the run did not move. A value that one lacks is not compared.
    """
    if min(one.numerics, other.numerics) < moved(one.settings) and one.numerics != other.numerics:
        return ""
    a, b = one.numbers(), other.numbers()
    place = next((k for k in a if k in b and a[k] != b[k]), "")
    if not place:
        return ""
    (here, there), (x, y) = (one.made_on, other.made_on), (a[place], b[place])
    return (
        f"{one.path} and {other.path} are records of one run, but {place} is {x} (made on {here}) and {y} "
        f"(made on {there}); keep one of them"
    )


def find(source: str | Path, settings: Settings) -> Record | None:
    """Return the record of the run with these settings, if there is one.

    Parameters
    ----------
    source : path
        As for :func:`stored`.
    settings : Settings
        As :func:`nclib.resolve` returns them. A record answers as of :class:`nclib.runs.request.Request`: its
        data have the same checksum, code of the user's is the same, and its numbers did not move since.

    Returns
    -------
    Record or None

    Raises
    ------
    ValueError
        As :func:`stored`.
    """
    one, unlike = nearest(source, requests([settings.flat()]))[0]
    return one.record() if one and not unlike else None


def requests(wanted: Iterable[Mapping[str, Any]]) -> list[Request]:
    """Return the requests for runs with these settings; data that several share are loaded once."""
    once = functools.cache(checksum)
    return [Request(one, own_code(experiment_of(one["method"]).parts(one)), once) for one in wanted]


def nearest(source: str | Path, wanted: Iterable[Request]) -> list[tuple[Stored | None, list[str]]]:
    """Return for each request the record that comes nearest, and in what it differs: nothing if it answers.

    Every file is read once. Nearest are records of the same method, model, data, preset and seed; None where
    there are none.
    """
    there: dict[str, list[Stored]] = {}
    for one in stored(source):
        there.setdefault(_kind(one.settings), []).append(one)
    found = list[tuple[Stored | None, list[str]]]()
    for asked in wanted:
        best: tuple[Stored | None, list[str]] = None, []
        for one in there.get(_kind(asked.settings), ()):
            unlike = asked.unlike({**one.content, "settings": one.settings})
            if best[0] is None or _distance(unlike) < _distance(best[1]):
                best = one, unlike
            if not unlike:
                break
        found.append(best)
    return found


def _distance(unlike: Sequence[str]) -> tuple[bool, int]:
    """Return what is smaller for a nearer record: one of other settings is farther than any of the same."""
    return all(name.isidentifier() for name in unlike) and bool(unlike), len(unlike)


def _kind(settings: Mapping[str, Any]) -> str:
    return str([settings.get(k) for k in ("method", "model", "dataset", "preset", "seed")])


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


def _every(source: Path, broken: list[str] | None = None) -> Iterator[Stored]:
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
        said = f"{error}; it is left out of what is read here until the run is made again"
        warnings.warn(said, UserWarning, stacklevel=4)


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the tables and the JSON files in a folder and below."""
    for path in sorted(p for p in folder.rglob("*.*") if p.suffix in (".json", ".csv")):
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # a folder, a dead link, what editors keep of opened files
        if path.suffix == ".json" or path.with_suffix(".npz").is_file():  # curves make a table of it
            yield path


def as_stored(path: Path, content: Mapping[str, Any]) -> Stored:
    """Return the record with this content, which stands in a file of its own."""
    content = dict(content)
    epochs = content.pop("curves")

    def curves(*names: str) -> Epochs:
        return [{k: v for k, v in row.items() if not names or k in names} for row in epochs]

    record = Stored(path, content, curves).record()
    return Stored(path, content, curves, "; ".join(record.remarks))


def rows(table: str | Path) -> list[Stored]:
    """Return the records in a table, in the order of their names.

    Raises
    ------
    ValueError
        When the table has no digest, or not the stated one: the message names the runs that were changed.
    OSError
        When it cannot be read.
    """
    path = Path(table)
    try:
        data = _rows_file(path).read_bytes()
    except FileNotFoundError:  # its writer finished meanwhile
        data = path.read_bytes()
    check_digest(path, data, _changed)
    return list(_rows(path, data))


def _next(table: Path) -> Path:
    """Return where the new rows of a table stand until its new curves are in place."""
    return table.with_name(f".{table.name}.next")


def _rows_file(table: Path) -> Path:
    """Return the file of a table's rows: the next one if its writer stopped after the curves."""
    following, curves = _next(table), table.with_suffix(".npz")
    if not following.is_file() or not curves.is_file():
        return table
    listed = digests(table.parent)
    stated, whole = listed.get(curves.name, []), listed.get(table.name, [])
    replaced = len(stated) > 1 and digest(curves) == stated[-1]
    return following if replaced and whole and digest(following) == whole[-1] else table


@functools.lru_cache(maxsize=64)
def _rows(path: Path, data: bytes) -> tuple[Stored, ...]:
    """Return the records in a table with this content."""
    curves = functools.cache(functools.partial(_curves_of, path))  # read once, for all rows

    def stored(content: Mapping[str, Any], remarks: str, own: str) -> Stored:
        where = path / str(content.get("name"))
        if not own:
            raise ValueError(f"{where} has no digest, so {path} is not read. {ADVICE}")
        check_form({**content, "curves": []}, where)
        name = content["name"]
        return Stored(where, content, lambda *names: curves().of(name, names), remarks, own)

    return tuple(stored(*row) for row in parsed(data))


def parsed(data: bytes) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield of each row the content of its record without curves, its remarks and its digest."""
    lines = csv.reader(io.StringIO(data.decode("utf8"), newline=""))
    places = [heading.rpartition(".")[::2] for heading in next(lines, [])]
    known: dict[str, Any] = {}
    for line in lines:
        content: dict[str, Any] = {}
        part, above = content, ""
        for (parts, name), cell in zip(places, line, strict=False):
            if not cell:
                continue
            if cell not in known:
                known[cell] = _value(cell)
            if parts != above:  # neighbouring columns mostly belong to one part
                part, above = content, parts
                for one in filter(None, parts.split(".")):
                    part = part.setdefault(one, {})
            part[name] = known[cell]
        yield content, content.pop(REMARKS, ""), content.pop(SUM, "")


def _value(cell: str) -> Any:
    if cell in WORDS:
        return WORDS[cell]
    if number := NUMBER.fullmatch(cell):
        return float(cell) if number[1] or number[2] else int(cell)
    return json.loads(cell) if cell[0] in '"[{' else cell


def _cell(value: Any) -> str:
    """Return the text of a value in a table, of which :func:`_value` makes the same value."""
    bare = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    if bare and value[0] not in '"[{' and value not in WORDS and not NUMBER.fullmatch(value):
        return str(value)
    return json.dumps(value, allow_nan=False)


def _curves_of(table: Path) -> Curves:
    path = table.with_suffix(".npz")
    data = path.read_bytes()
    check_digest(path, data, _changed)
    return Curves(data)


def _changed(path: Path) -> str:
    """Say which runs of a table do not match their own digests."""
    try:
        curves = Curves(path.with_suffix(".npz").read_bytes())
        found = []
        for content, remarks, stated in parsed(path.with_suffix(".csv").read_bytes()):
            own = curves.of(content["name"])
            whole = {**content, "curves": own}
            if stated != own_sum(whole) or remarks != as_stored(path, whole).remarks:
                found.append(content["name"])
    except Exception as error:  # damaged content may raise anything
        return f"It cannot be read either ({error}). "
    if not found:
        return "Each run matches its own digest: rows were added, left out or moved, or the list was edited. "
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"Changed: {', '.join(found[:3])}{more}. "


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
    new = [one for item in given for one in _given(item)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / LOCK):  # of all tables in the folder: they share a list of digests
        return _added(path, new, replace)


def _added(path: Path, new: Iterable[Stored], replace: bool) -> int:
    """Add records to a table of which this process is the only writer, and read back what was written."""
    _settle(path)
    kept = {one.key: one for one in rows(path)} if path.exists() else {}
    added = 0
    for one in new:
        before = kept.get(one.key)
        older = before is not None and before.outdated and not one.outdated
        if before is not None and not older and not (other := _differs(before, one)):
            continue
        if before is not None and not older and not replace:
            raise ValueError(
                f"{one.path} has the settings and data of {before.path.name} in {path}, but other numbers: "
                f"{other}. Find out why; to keep the new ones, collect it with replace=True (--replace)"
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


def _settle(table: Path) -> None:
    """Complete or discard what a stopped writer of a table left."""
    if not _next(table).is_file():
        return
    if _rows_file(table) != table:
        os.replace(_next(table), table)
    listed = digests(table.parent)
    files = [path for path in (table, table.with_suffix(".npz")) if path.is_file()]
    if all(digest(path) in listed.get(path.name, []) for path in files):  # none was edited
        note_digests({path: path for path in files})
    _next(table).unlink(missing_ok=True)


def _given(item: Record | str | Path) -> list[Stored]:
    if isinstance(item, Record):
        check_form(content := item.content(), item.name)
        return [as_stored(Path(item.name), content)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            return list(_every(Path(item)))
        except UserWarning as said:
            raise ValueError(str(said)) from None


def _differs(one: Stored, other: Stored) -> str:
    """Return the first number in which two runs differ, in words."""
    was, now = one.numbers(), other.numbers()
    places = (k for k in {**was, **now} if k not in was or k not in now or was[k] != now[k])
    place = next(places, "")
    return place and f"{place} is {was.get(place, 'missing')} and {now.get(place, 'missing')}"


def write(table: Path, records: Sequence[Stored]) -> None:
    """Write a table with its curves and their digests.

    The new rows are written beside the table first. The renaming of the curves is the moment from which the
    new table is read; the rows follow.
    """
    records = sorted(records, key=lambda one: str(one.content["name"]))
    curves, lines = dict[str, Epochs](), list[dict[str, str]]()
    for one in records:
        name = one.content["name"]
        if name in curves:
            raise ValueError(f"{one.path}: two different runs are called {name}")
        curves[name] = one.curves()
        own = own_sum({**one.content, "curves": curves[name]})
        row = {"name": name, SUM: own, **({REMARKS: one.remarks} if one.remarks else {})}
        lines.append({k: _cell(v) for k, v in {**row, **flattened(one.content)}.items()})
    head = list(dict.fromkeys([*FIRST, *_head(table), *(k for line in lines for k in line)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for line in lines:
        cells = [line.get(k, "") for k in head]
        while not cells[-1]:
            cells.pop()
        writer.writerow(cells)
    beside = table.with_suffix(".npz")
    files = {beside: packed(curves), table: text.getvalue().encode("utf8")}
    write_atomically(_next(table), files[table])
    note_digests(files, keep=True)
    write_atomically(beside, files[beside])
    os.replace(_next(table), table)
    note_digests(files)


def _head(table: Path) -> list[str]:
    """Return the columns of a table that is there: new ones come after them."""
    if not table.exists():
        return []
    with table.open(encoding="utf8", newline="") as file:
        return next(csv.reader(file))
