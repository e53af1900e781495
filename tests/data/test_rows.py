"""Rows of a large file: the same numbers as an array in memory, without keeping them."""

import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nclib
from nclib.common.npy import RowFileError
from nclib.data import Captions, Split, Vocabulary
from nclib.data.rows import RowFile
from nclib.data.vocabulary import SPECIAL

SHAPE = (23, 3, 4)


@pytest.fixture
def array():
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


@pytest.fixture
def path(tmp_path, array):
    np.save(tmp_path / "ims.npy", array)
    return tmp_path / "ims.npy"


def split_of(images):
    n = len(images)
    captions = Captions(np.tile(np.int32([1, 2]), n), np.arange(n + 1) * 2, Vocabulary(SPECIAL))
    return Split("train", images, captions, np.arange(n), 1)


ENDS = st.none() | st.integers(-30, 30)
slices = st.builds(slice, ENDS, ENDS, st.integers(-4, 4).filter(bool))


@given(cuts=st.lists(slices, max_size=3), data=st.data())
def test_any_rows_of_any_slice_are_those_of_the_array(path, array, cuts, data):
    rows = RowFile(path)
    for cut in cuts:
        rows, array = rows[cut], array[cut]
    assert isinstance(rows, RowFile)  # still on disk
    assert (rows.shape, rows.ndim, rows.dtype, rows.nbytes) == (array.shape, 3, array.dtype, array.nbytes)
    assert np.array_equal(rows, array)
    n = len(rows)
    if n:
        chosen = data.draw(st.lists(st.integers(-n, n - 1), max_size=40))
        assert np.array_equal(rows[chosen], array[np.array(chosen, np.int64)])
        assert np.array_equal(rows[chosen[0] if chosen else -1], array[chosen[0] if chosen else -1])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    assert np.array_equal(rows[mask], array[mask])


@pytest.mark.parametrize("most", [1, 7, 50, 200])
def test_a_read_that_gives_less_than_asked_goes_on(path, array, monkeypatch, most):
    def short(fd, views, at):
        data = os.pread(fd, min(most, sum(map(len, views))), at)
        stream = io.BytesIO(data)
        for view in views:
            stream.readinto(view)
        return len(data)

    monkeypatch.setattr(os, "preadv", short)
    assert np.array_equal(RowFile(path)[[4, 5, 6, 1]], array[[4, 5, 6, 1]])


def test_take_fills_the_buffer_it_is_given(path, array):
    out = np.empty((2, 3, 4), np.float32)
    assert RowFile(path).take(np.array([3, 1]), out) is out
    assert np.array_equal(out, array[[3, 1]])
    for bad in (np.empty((3, 3, 4), np.float32), out.astype(np.float64), np.empty((2, 3, 8), "f4")[..., ::2]):
        with pytest.raises(ValueError, match="out must be C-ordered float32"):
            RowFile(path).take(np.array([3, 1]), bad)


@pytest.mark.parametrize("key", [(0, 1), 1.5, "a", [[0]], None, [True]])
def test_other_keys_are_refused(path, key):
    with pytest.raises(IndexError, match="chosen by a slice, a row number"):
        RowFile(path)[key]


def test_a_file_that_is_cut_is_noticed(path, monkeypatch):
    rows = RowFile(path)
    os.truncate(path, 500)
    looks = [lambda: None, look := rows._source.check]  # cut between the look and the read
    for check, said in (
        (look, "changed while it was in use"),
        (lambda: looks.pop(0)(), "changed while it was in use"),
        (lambda: None, "ends at byte"),  # a file system whose times say nothing
    ):
        monkeypatch.setattr(rows._source, "check", check)
        with pytest.raises(RowFileError, match=said):
            rows[[20]]
    assert not looks


def test_threads_read_at_the_same_time(path, array):
    rows = RowFile(path)

    def equal(seed):
        chosen = np.random.default_rng(seed).integers(0, 23, (100, 8))
        return all(np.array_equal(rows[one], array[one]) for one in chosen)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(equal, range(4))) == [True] * 4


def test_features_for_a_gpu_are_read_into_pinned_memory(path, array, monkeypatch):
    asked, real = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, pin_memory: asked.append(pin_memory) or real(shape))
    for images in (RowFile(path), array, np.load(path, mmap_mode="r")):
        found = split_of(images).features([2, 1], pinned=True)
        assert np.array_equal(found, array[[2, 1]])
    assert asked == [True] * 3


GROWTH = """
import sys
import numpy as np
from nclib.data.rows import RowFile

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile"))) / 1024

rows = RowFile(sys.argv[1]) if sys.argv[2] == "rows" else np.load(sys.argv[1], mmap_mode="r")
before = resident()
for chosen in np.random.default_rng(0).permutation(len(rows)).reshape(-1, 8):
    rows[chosen].sum()
print(resident() - before)
"""


@pytest.mark.slow
def test_random_rows_do_not_stay_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((160, 36, 2048), np.float32))  # 47 MB
    grown = {}
    for kind in ("rows", "memmap"):
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, str(tmp_path / "x.npy"), kind],
            env={**os.environ, "PYTHONPATH": str(Path(nclib.__file__).parents[1])},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        grown[kind] = float(done.stdout)
    assert grown["memmap"] > 35  # MB: what happens without
    assert grown["rows"] < 15
