"""Make the tables of ``book/results`` from the files that held a run each, and compare every value.

``python tools/convert_records.py`` reads the former files out of the repository's history (:data:`COMMIT`)
and compares them with the tables and measurements that are there now; ``--write`` makes these first. The
result is ``tools/converted_records.txt``: how many values of which types are the same to the last bit, and
for every former file its digest and where its content is. Runs that came later are passed over.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from nclib.common.files import digest, write_atomically
from nclib.runs import store
from nclib.runs.digests import note_digests
from nclib.runs.record import SUM, own_sum

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "3f9bc151060d97ecc7b7ddb6ab81393205096383"  # the last one with the former files
FORMER, TABLES, MEASURED = "book/results", ROOT / "book" / "results", ROOT / "book" / "measured"
RESULT = Path(__file__).with_name("converted_records.txt")
RENAMED = {"noise": "protocol", "noise_scope": "scope", "clip": "grad_clip"}  # settings of the oldest files
PREFIX = {
    "audit": "audit",
    "bench": "bench",
    "diagnosis": "probe",
    "omit": "bench",
}  # of measurements, by folder


def former() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every former file, in the order of their names."""
    command = ["git", "archive", COMMIT, FORMER]
    data = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if (file := archive.extractfile(member)) is not None:
                yield member.name, file.read()


def record_in(data: bytes) -> dict[str, Any] | None:
    """Return the record in a former file, its settings under their present names; None where it is none."""
    content = json.loads(data)
    if not (isinstance(content, dict) and content.keys() >= {"schema", "settings"}):
        return None
    stated = content.pop(SUM, None)
    if stated not in (None, own_sum(content)):
        raise ValueError("a former file does not match its own digest")
    settings = {RENAMED.get(name, name): value for name, value in content["settings"].items()}
    assert len(settings) == len(content["settings"])  # no file has a setting under both names
    return {**content, "settings": settings}


def measured(name: str) -> Path:
    """Return the file that holds a former file which is no record."""
    path = PurePosixPath(name)
    kind = PREFIX[path.parent.name]
    return MEASURED / f"{kind}_{'omit' if path.parent.name == 'omit' else path.stem}.json"


def write() -> None:
    """Make the tables and the files of measurements."""
    grids: dict[str, list[store.Stored]] = {}
    files: dict[Path, bytes] = {}
    for name, data in former():
        content = record_in(data)
        if content is None:
            files[measured(name)] = data
            continue
        one = store.as_stored(Path(name), content)
        grids.setdefault(PurePosixPath(name).parent.name, []).append(one)
    for grid, records in grids.items():
        store.write(TABLES / f"{grid}.csv", records)
    for path, data in files.items():
        write_atomically(path, data)
    note_digests(files)


def same(was: Any, now: Any, place: str, counts: Counter[str]) -> Iterator[str]:
    """Yield the places at which two values differ, in type or in a bit, and count the values."""
    if type(was) is not type(now):
        yield f"{place}: {was!r} has become {now!r}"
    elif isinstance(was, dict):
        for key in sorted({*was, *now}):
            if key in was and key in now:
                yield from same(was[key], now[key], f"{place}.{key}", counts)
            else:
                yield f"{place}.{key}: only in one of both"
    elif isinstance(was, list):
        if len(was) != len(now):
            yield f"{place}: {len(was)} values have become {len(now)}"
        for number, pair in enumerate(zip(was, now, strict=False)):
            yield from same(*pair, f"{place}.{number}", counts)
    else:
        counts[type(was).__name__] += 1
        equal = struct.pack("<d", was) == struct.pack("<d", now) if isinstance(was, float) else was == now
        if not equal:
            yield f"{place}: {was!r} has become {now!r}"


def compare() -> tuple[str, list[str]]:
    """Compare every former file with what is there now; return a report, and what differs."""
    counts: Counter[str] = Counter()
    lines, wrong = list[str](), list[str]()
    records = files = 0
    tables: dict[str, dict[str, store.Stored]] = {}
    for name, data in former():
        content = record_in(data)
        if content is None:
            path = measured(name)
            files += 1
            place = path.relative_to(ROOT).as_posix()
            if not path.is_file() or path.read_bytes() != data:
                wrong.append(f"{name}: not the bytes of {place}")
        else:
            records += 1
            grid = PurePosixPath(name).parent.name
            if grid not in tables:
                rows = store.rows(TABLES / f"{grid}.csv")
                tables[grid] = {str(one.content["name"]): one for one in rows}
            place = f"{grid}.csv/{content['name']}"
            one = tables[grid].get(content["name"])
            if one is None:
                wrong.append(f"{name}: {place} is not there")
            else:
                wrong += same(content, {**one.content, "curves": one.curves()}, name, counts)
        lines.append(f"{digest(data)}  {name.removeprefix(FORMER + '/')} -> {place}")
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in counts.most_common())
    head = [
        f"Files below {FORMER} at commit {COMMIT}, and where their content is now.",
        f"{records:,} records: {counts.total():,} values compared by type and to the last bit ({kinds});",
        f"{files} measurements: compared byte by byte. {len(wrong)} differences.",
        "Settings of the oldest records have their present names: "
        + ", ".join(f"{was} is {now}" for was, now in RENAMED.items()),
        f"SHA-256 of each former file, its name below {FORMER}, and the row or file that has its content:",
        "",
    ]
    return "\n".join([*head, *lines]) + "\n", wrong


def main() -> int:
    """Compare, after writing where it is asked for; return 0 when nothing differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the tables first")
    if parser.parse_args().write:
        write()
    report, wrong = compare()
    for place in wrong[:20]:
        print(place, file=sys.stderr)
    print("\n".join(report.splitlines()[:4]))
    if not wrong:
        write_atomically(RESULT, report)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
