"""Recorded runs as tables: one row a run, their curves beside it, and the digests of both.

A table ``robust`` is three files in one folder:

``robust.csv``
    One row a run, in the order of their names. A heading is the place of a value in the record, such as
    ``settings.method_options.rho``. A cell is a JSON value, or text without quotes where it can be nothing
    else; an empty cell is a value that the record does not have. A row ends with its last value, so that a
    new column changes no other row. What many runs have in common (their settings, data, noise and machine)
    stands once, in a row of its own above the runs. Its name is ``@`` and the start of a digest of its cells,
    and the column ``shared`` of a run lists the names of its rows.
``robust.npz``
    The curves of these runs (:mod:`nclib.runs.curves`), unpacked when they are needed.
``SHA256SUMS``
    The digests of both files, as ``sha256sum -c`` reads them; a table without them is not read.

Each row has the digest that the file of its run had, curves included; it is compared as a run is loaded. The
curves hold the digest of the whole ``robust.csv``, and an edit is noticed though the list is made again.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib.common.files import digest, write_atomically
from nclib.common.row_writer import some
from nclib.runs.curves import Curves, Epochs, pack_curves, table_digest
from nclib.runs.digests import ADVICE, PAUSE, TRIES, read_checked, together
from nclib.runs.identity import naming
from nclib.runs.record import SUM, TASKS, Record, check_form, completed_settings, own_sum
from nclib.runs.request import outdated
from nclib.runs.words import flatten

REMARKS, SHARED = "remarks", "shared"
FIRST = ("name", SUM, REMARKS, SHARED)  # the first columns of a table
PARTS = ("settings", "data", "noise", "environment")  # of a record, which runs have in common
OWN = {  # but these
    *(f"settings.{name}" for name in ("seed", "mrate", "noise_rate", "protocol", "noise_file")),
    *("environment.code", "environment.parts"),
}
MARK = "@"  # begins the name of a row that runs share
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
WORDS = {"true": True, "false": False, "null": None}
TIMES = ("seconds", "cpu_seconds", "test_seconds", "peak_memory_mb")  # numbers that no run repeats
COMPARED = ("data", "noise", "metrics", "diagnostics", "best_epoch")


@dataclass(frozen=True)
class StoredRun:
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
        return completed_settings(self.content["settings"])

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
    return flatten({k: content[k] for k in COMPARED} | {"curves": curves})


def as_stored(path: Path, content: Mapping[str, Any]) -> StoredRun:
    """Return the record with this content, which stands in a file of its own."""
    content = dict(content)
    epochs = content.pop("curves")

    def curves(*names: str) -> Epochs:
        return [{k: v for k, v in row.items() if not names or k in names} for row in epochs]

    record = StoredRun(path, content, curves).record()
    return StoredRun(path, content, curves, "; ".join(record.remarks))


def rows(table: str | Path) -> list[StoredRun]:
    """Return the records in a table, in the order of their names.

    Raises
    ------
    ValueError
        When the table has no digest, or not the stated one: the message names the first runs that changed.
    OSError
        When it cannot be read.
    """
    path = Path(table)
    try:
        for _ in range(TRIES):
            data, curves = read_checked(path), read_checked(path.with_suffix(".npz"))
            if table_digest(curves) == digest(data):
                return list(_rows(path, data, curves))
            time.sleep(PAUSE)  # a writer came between
        raise ValueError(f"{path} was changed: {path.stem}.npz belongs to another one. {ADVICE}")
    except ValueError as error:
        raise ValueError(f"{error}{_changed(path)}") from None


def _changed(table: Path) -> str:
    """Name the first runs of a table that do not match their own digests, to end a message."""
    try:
        runs = _rows(table, table.read_bytes(), table.with_suffix(".npz").read_bytes())
        changed = [
            one.path.name for one in runs if one.sha256 != own_sum({**one.content, "curves": one.curves()})
        ]
    except Exception:  # damaged content may raise anything
        return ""
    return f". Changed: {some(changed)}" if changed else ""


@functools.lru_cache(maxsize=64)
def _rows(path: Path, data: bytes, packed_curves: bytes) -> tuple[StoredRun, ...]:
    """Return the records in a table with this content."""
    curves = functools.cache(lambda: Curves(packed_curves))  # unpacked once, for all rows

    def stored(content: Mapping[str, Any], remarks: str, own: str) -> StoredRun:
        where = path / str(content.get("name"))
        if not own:
            raise ValueError(f"{where} has no digest, so {path} is not read. {ADVICE}")
        check_form({**content, "curves": []}, where)
        name = content["name"]
        return StoredRun(where, content, lambda *names: curves().of(name, names), remarks, own)

    return tuple(stored(*row) for row in parse_rows(data))


def parse_rows(data: bytes) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield of each row the content of its record without curves, its remarks and its digest."""
    lines = csv.reader(io.StringIO(data.decode("utf8"), newline=""))
    places = [heading.rpartition(".")[::2] for heading in next(lines, [])]
    known: dict[str, Any] = {}
    shared: dict[str, dict[str, Any]] = {}
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
        if line and line[0].startswith(MARK):
            shared[content.pop("name")] = content
            continue
        for key in content.pop(SHARED, "").split():
            for group, values in shared[key].items():
                content[group] = {**values, **content.get(group, {})}
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


def write(table: Path, records: Sequence[StoredRun]) -> None:
    """Write a table with its curves and their digests, all or none of them."""
    records = sorted(records, key=lambda one: str(one.content["name"]))
    curves, lines, shared = dict[str, Epochs](), list[dict[str, str]](), dict[str, dict[str, str]]()
    for one in records:
        name = one.content["name"]
        if name in curves:
            raise ValueError(f"{one.path}: two different runs are called {name}")
        curves[name] = one.curves()
        own = own_sum({**one.content, "curves": curves[name]})
        row = {"name": name, SUM: own, **({REMARKS: one.remarks} if one.remarks else {})}
        cells = {k: _cell(v) for k, v in {**row, **flatten(one.content)}.items()}
        lines.append(_apart(cells, shared))
    rows_of_many = [{"name": key, **cells} for key, cells in shared.items()]
    head = list(dict.fromkeys([*FIRST, *_head(table), *(k for line in lines + rows_of_many for k in line)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for line in rows_of_many + lines:
        row_of_cells = [line.get(k, "") for k in head]
        while not row_of_cells[-1]:
            row_of_cells.pop()
        writer.writerow(row_of_cells)
    data = text.getvalue().encode("utf8")
    with together(table.parent) as new:
        write_atomically(new / table.name, data)
        write_atomically(new / f"{table.stem}.npz", pack_curves(curves, digest(data)))


def _apart(cells: Mapping[str, str], shared: dict[str, dict[str, str]]) -> dict[str, str]:
    """Move the cells that many runs have in common to ``shared``; return the others and its names."""
    own, keys = dict(cells), list[str]()
    for group in PARTS:
        part = {k: own.pop(k) for k in cells if k.startswith(f"{group}.") and k not in OWN}
        if not part:
            continue
        key = MARK + digest(json.dumps(part, sort_keys=True))[:6]
        while shared.setdefault(key, part) != part:  # another part has the same name
            key += "+"
        keys.append(key)
    return {**own, SHARED: " ".join(keys)}


def _head(table: Path) -> list[str]:
    """Return the columns of a table that is there: new ones come after them."""
    if not table.exists():
        return []
    with table.open(encoding="utf8", newline="") as file:
        return next(csv.reader(file))
