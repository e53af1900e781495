"""Tables of records: what they keep, what they refuse, and the book's own."""

import csv
import hashlib
import io
import json
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import made as make

import nclib
from nclib.runs import append, digests, load_record, store, tables
from nclib.runs.curves import Curves, pack_curves
from nclib.runs.record import own_sum

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results"
TABLES = sorted(RESULTS.glob("*.csv"))


@pytest.fixture
def table(tmp_path):
    """A table of two runs."""
    append(tmp_path / "g.csv", [make("a", 0), make("b", 1)])
    return tmp_path / "g.csv"


STRANGE = {
    "float": 1.0, "whole": 1, "tiny": 5e-324, "zero": -0.0, "long": 0.1 + 0.2, "large": 2**70, "none": None,
    "yes": True, "no": False, "text": "a, b", "quoted": 'say "a"', "number": "1e5", "word": "true",
    "empty": "", "blank": " a ", "lines": "a\nb", "list": [1, 1.0, [None, "x"]], "nothing": [], "dict": {},
    "brace": "{", "dotted": {"a.b": 1, "c": {"d": 2.0}}, "nan": "NaN", "minus": "-", "sheet": "=1",
}  # fmt: skip


def same(was, now):
    if isinstance(was, dict):
        return was.keys() == now.keys() and all(same(v, now[k]) for k, v in was.items())
    if isinstance(was, list):
        return len(was) == len(now) and all(map(same, was, now))
    equal = was == now and (not isinstance(was, float) or math.copysign(1, was) == math.copysign(1, now))
    return type(was) is type(now) and equal


def test_every_value_keeps_its_type_and_its_bits(tmp_path):
    curves = [{"epoch": 1, **STRANGE}, {"epoch": 2}, {"epoch": 3, "float": None, "whole": 2.5, "list": [7]}]
    record = make("strange", diagnostics=STRANGE, curves=curves, warnings=["a, b"])
    append(tmp_path / "g.csv", [record, make("none", seed=1, curves=[])])
    back = load_record(tmp_path / "g.csv" / "strange")
    assert same(record.content(), back.content())
    assert load_record(tmp_path / "g.csv" / "none").curves == []


def test_curves_of_any_epochs_are_unpacked_as_they_were():
    rng = np.random.default_rng(0)
    values = [0.5, -0.0, 3, None, True, "x", [1], 2**60]
    curves = {
        f"r{n}": [
            {f"c{k}": values[i] for k, i in enumerate(rng.integers(0, len(values) + 3, 4)) if i < len(values)}
            for _ in range(rng.integers(0, 5))
        ]
        for n in range(50)
    }
    there = Curves(pack_curves(curves, ""))
    assert all(same(rows, there.of(name)) for name, rows in curves.items())
    only = there.of("r1", ("c1",))
    assert only == [{k: v for k, v in row.items() if k == "c1"} for row in curves["r1"]]


def test_curves_that_follow_from_others_are_stored_once_and_come_back_to_the_last_bit():
    ways = [f"val_{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
    rows = [{name: 0.1 * k + i for k, name in enumerate(ways)} for i in range(4)]
    for row in rows[:2]:
        row["val_rsum"] = sum(row.values())
    rows[2]["val_rsum"] = np.nextafter(sum(rows[2].values()), 1e9).item()
    rows[3] = dict.fromkeys([*ways, "val_rsum"], -0.0)
    rows.append({"val_map_i2t": 0.1, "val_map_avg": (0.1 + 0.2) / 2, "val_map_t2i": 0.2})
    packed = pack_curves({"a": rows}, "")
    back = Curves(packed).of("a")
    assert same(rows, back)
    assert [*map(list, back)] == [*map(list, rows)]
    with np.load(io.BytesIO(packed)) as file:
        assert len(file["value.val_rsum"]) == 2
        assert len(file["value.val_map_avg"]) == 0


def test_what_runs_have_in_common_stands_once(tmp_path, monkeypatch):
    rows = [make(f"r{k}", k, environment={"device": f"card {k % 2}"}) for k in range(6)]
    append(tmp_path / "g.csv", rows)
    lines = [line.partition(",")[0] for line in (tmp_path / "g.csv").read_text().splitlines()[1:]]
    assert [*map(len, lines)] == [7] * (len(lines) - 6) + [2] * 6
    assert len(set(lines)) == len(lines) < 6 + 4 * 6
    monkeypatch.setattr(tables, "digest", lambda data: "000000")  # different parts with one name
    append(tmp_path / "h.csv", rows)
    assert [one.record() for one in store.rows(tmp_path / "h.csv")] == rows


def test_a_run_counts_once_and_a_table_grows_line_by_line(table):
    before = table.read_text().splitlines()
    assert append(table, [make("a", 0), make("b", 1, cost={"seconds": 9.0})]) == 0  # times may differ
    assert table.read_text().splitlines() == before
    assert append(table, [make("c", 2, diagnostics={"new": 1})]) == 1
    after = table.read_text().splitlines()
    assert [line for line in after[1:] if line in before] == before[1:]
    assert len(after) == len(before) + 1
    assert after[0] == before[0] + ",diagnostics.new"
    assert list(nclib.table(table)["name"]) == ["a", "b", "c"]


def test_files_of_single_runs_are_collected_with_their_digests(table, tmp_path):
    record = make("c", 2)
    path = record.save(tmp_path / "single" / "c.json")
    assert append(table, tmp_path / "single") == 1
    stated = json.loads(path.read_text())["sha256"]
    assert stated in table.read_text().splitlines()[-1]
    assert load_record(table / "c") == record
    path.write_text(path.read_text().replace("300.0", "301.0"))
    with pytest.raises(ValueError, match=r"c\.json was changed"):
        append(table, tmp_path / "single")


def test_the_same_settings_with_other_numbers_are_refused_and_named(table):
    before = table.read_bytes()
    other = make("z", 1, rsum=306.0)
    said = (
        r"z has the settings and data of b in .*g\.csv, but other numbers: metrics.val.rsum is 300.0 and 306"
    )
    with pytest.raises(ValueError, match=said):
        append(table, [make("c", 2), other])
    assert table.read_bytes() == before
    with pytest.raises(ValueError, match="two different runs are called a"):
        append(table, [make("a", 5)])
    assert append(table, [other], replace=True) == 1
    assert nclib.table(table)["rsum"].tolist() == [300.0, 306.0]
    assert append(table, [make("own", 0, rsum=1.0, environment={"own_code": "1"})]) == 1  # another run


def change(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: change(t, b"300.0", b"301.0"), r"g\.csv was changed: .*SHA256SUMS.*Changed: a$"),
        (lambda t: change(t, b"b,", b"b2,"), r"g\.csv was changed: .*SHA256SUMS"),
        (lambda t: t.write_text("\n".join(t.read_text().splitlines()[:2])), r"g\.csv was changed: "),
        (lambda t: (t.parent / "SHA256SUMS").unlink(), r"g\.csv has no digest in .*SHA256SUMS"),
        (lambda t: change(t.parent / "SHA256SUMS", b"  g.csv", b"  g.npz"), r"g\.csv has no digest in"),
    ],
)
def test_a_table_that_was_changed_is_refused_and_the_run_is_named(table, edit, said):
    edit(table)
    for read in (nclib.table, store.stored_records, lambda t: append(t, [make("c", 3)])):
        with pytest.raises(ValueError, match=said):
            read(table)
    with pytest.raises(ValueError, match=said):
        nclib.table(table.parent)


def listed_again(table, bound):
    """Make the list of digests of a table again, as ``sha256sum`` would; ``bound`` stands in its curves."""
    beside = table.with_suffix(".npz")
    with np.load(beside) as file:
        arrays = {name: file[name] for name in file.files if name != "table"}
    arrays["table"] = np.frombuffer(bound.encode(), np.uint8)
    np.savez_compressed(beside, **arrays)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (table, beside)]
    (table.parent / digests.LIST).write_text("".join(lines))


@pytest.mark.parametrize(
    ("column", "said"), [("sha256", "has no digest"), ("settings.method", "settings.method")]
)
def test_a_row_that_lacks_a_part_is_named(table, column, said):
    """Digests that were made again do not hide it."""
    head, *rest = list(csv.reader(table.read_text().splitlines()))
    place = head.index(column)
    line = next(line for line in rest if len(line) > place and line[place])  # of a run, or shared by both
    line[place] = ""
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rest])
    listed_again(table, hashlib.sha256(table.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match=rf"g\.csv/a.*{said}"):
        nclib.table(table)


@pytest.mark.parametrize(("old", "new"), [(b"0.6", b"0.5"), (b"300.0", b"290.0"), (b".a,", b".c,")])
def test_an_edit_with_a_list_made_again_is_refused(table, old, new):
    bound = hashlib.sha256(table.read_bytes()).hexdigest()
    listed_again(table, bound)
    assert list(nclib.table(table)["name"]) == ["a", "b"]
    change(table, old, new)
    listed_again(table, bound)
    for read in (nclib.table, lambda t: nclib.table(t.parent), lambda t: append(t, [make("z", 3)])):
        with pytest.raises(ValueError, match=r"g\.csv.*(was changed|does not match its own digest)"):
            read(table)


@given(st.floats(0, 1, exclude_max=True), st.sampled_from(b"0123456789,.abc"), st.booleans())
def test_any_byte_of_a_table_counts(where, byte, listed):
    """One byte is another one, also where the list was made again: refused, or the table says the same."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "g.csv"
        append(table, [make("a"), make("b", 1)])
        bound, right = hashlib.sha256(table.read_bytes()).hexdigest(), nclib.table(table)
        content = bytearray(table.read_bytes())
        content[int(where * len(content))] = byte
        table.write_bytes(bytes(content))
        if listed:
            listed_again(table, bound)
        try:
            found = nclib.table(table)
        except ValueError:
            return
        pd.testing.assert_frame_equal(found, right)


def test_curves_that_were_changed_are_refused(table):
    curves = {"a": [{"epoch": 1, "loss": 9.0}], "b": make().curves}
    beside = table.with_suffix(".npz")
    beside.write_bytes(pack_curves(curves, hashlib.sha256(table.read_bytes()).hexdigest()))
    with pytest.raises(ValueError, match=r"g\.npz was changed: .*Changed: a$"):
        nclib.table(table)
    data = beside.read_bytes()
    for where in range(10, len(data), len(data) // 9):
        beside.write_bytes(data[:where] + bytes([data[where] ^ 4]) + data[where + 1 :])
        with pytest.raises(ValueError, match=r"g\.npz was changed: "):
            load_record(table / "b")


def test_a_reader_that_outlives_a_replacement_keeps_the_old_row(table):
    before = store.rows(table)
    curves = [{"epoch": 1, "phase": "training", "loss": 9.0, "seconds": 0.5}]
    append(table, [make("b", 1, rsum=306.0, curves=curves)], replace=True)
    assert before[1].record() == make("b", 1)
    assert store.rows(table)[1].record().curves == curves


@given(st.data())
def test_two_writers_and_a_reader_of_one_table_lose_nothing(data):
    """Each writer adds runs of its own and runs that both have, and pauses between its steps on the disk."""
    batches = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4)
    pauses = st.lists(st.sampled_from([0, 1e-4, 3e-3]), max_size=9)
    work = data.draw(st.lists(st.tuples(batches, pauses), min_size=2, max_size=2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        running, status = {writer(path, *one) for one in work}, 0
        while running:
            for row in store.rows(path) if path.exists() else ():
                seed = row.settings["seed"]
                assert same(row.record().content(), make(f"run-{seed}", seed).content())
            child, ended = os.waitpid(-1, os.WNOHANG)
            running -= {child}
            status |= ended
        assert status == 0
        seeds = {seed for one, _ in work for batch in one for seed in batch}
        assert {row.settings["seed"] for row in (store.rows(path) if path.exists() else ())} == seeds


def writer(path, batches, pauses):
    """Start a process that adds batches of records to a table; return its number."""
    if child := os.fork():
        return child
    waits, replace, status = iter(pauses), os.replace, 1
    try:
        os.replace = lambda *names: (time.sleep(next(waits, 0)), replace(*names))
        for batch in batches:
            append(path, [make(f"run-{seed}", seed) for seed in batch])
        status = 0
    finally:
        os._exit(status)


# -- the book's tables ----------------------------------------------------------------------------------


def test_the_books_records_have_their_digests():
    folders = [RESULTS, RESULTS.parent / "measured"]
    for folder in folders:
        stated = digests.digests(folder)
        files = {path.name for path in folder.iterdir() if path.name[0] != "."} - {digests.LIST}
        assert files == stated.keys()
        for name, found in stated.items():
            assert found == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    size = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    runs = sum(len(store.rows(path)) for path in TABLES)
    assert size < 2400 * runs


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_sums_and_epochs_of_a_table_agree(path):
    for one, (_, remarks, stated) in zip(store.rows(path), tables.parse_rows(path.read_bytes()), strict=True):
        record = one.record()
        assert own_sum({**one.content, "curves": record.curves}) == stated, one.path
        assert "; ".join(record.remarks) == remarks == one.remarks
        if record.curves:
            row = record.curves[record.best_epoch - 1]
            assert 0 < record.best_epoch <= len(record.curves)
            assert all(row.get(f"val_{k}", v) == v for k, v in record.metrics["val"].items()), one.path
        rate = record.noise_rate
        assert rate is None or 0 <= rate <= 1
        assert {"method", "preset", "seed", "dataset"} <= record.settings.keys()
