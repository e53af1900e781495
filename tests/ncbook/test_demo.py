"""The store of runs that chapters show gives back what the runs were."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ncbook import demo
from ncbook.demo import Keep, is_stored, kept_arrays, opened, store, stored_runs, trained
from ncbook.training import finished, recalls

import nclib

SIZES = {"n_train": 40, "n_val": 20, "n_test": 20}
GIVEN: dict[str, Any] = {"dataset": "planted", "model": "vse", "mrate": 0.4, "epochs": 2, "warmup_epochs": 1}
GIVEN |= {"batch_size": 20, "data_options": SIZES}

READERS: dict[str, Callable[[nclib.Record], object]] = {demo.ARRAYS: kept_arrays, demo.WEIGHTS: opened}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[nclib.Record, Path]:
    """A run with two networks, and a store with it."""
    folder = tmp_path_factory.mktemp("demo")
    record = trained("ncr", "train", out=folder / "runs", progress=False, **GIVEN)
    store(record, folder / "demo/ncr/one", Keep(("loss",), last=("p_clean",), weights=True))
    return record, folder / "demo"


@pytest.fixture
def stored(made: tuple[nclib.Record, Path], monkeypatch: pytest.MonkeyPatch) -> nclib.Record:
    """The stored run, as a chapter gets it."""
    monkeypatch.setattr(demo, "DEMO", made[1])
    monkeypatch.setattr(demo, "stored_runs", stored_runs.__wrapped__)  # not those of the cache
    return trained("ncr", "recorded", progress=False, **GIVEN)


def test_a_stored_run_is_the_run(made: tuple[nclib.Record, Path], stored: nclib.Record) -> None:
    own = made[0]
    assert stored == own
    assert (is_stored(stored), is_stored(own)) == (True, False)
    every, some = kept_arrays(own), kept_arrays(stored)
    assert list(some) == list(every) == [2, 3]
    assert {epoch: set(arrays) for epoch, arrays in some.items()} == {2: {"loss"}, 3: {"loss", "p_clean"}}
    assert some[3]["p_clean"].dtype == np.float32
    np.testing.assert_allclose(some[3]["p_clean"], every[3]["p_clean"], rtol=2e-5)
    one, other = opened(own), opened(stored)
    scores = (run.trainer.score(run.dataset.test) for run in (one, other))
    torch.testing.assert_close(*scores, atol=2e-3, rtol=0)  # weights have 16 bits in the store
    run = finished(stored)
    np.testing.assert_array_equal(run.matched, one.noise.matched)
    assert run.last.keys() == {"loss", "p_clean"}


def test_a_run_tested_in_its_warm_up_has_no_bar(made: tuple[nclib.Record, Path]) -> None:
    record, _ = made
    assert record.settings["warmup_epochs"] == 1
    runs = {name: dataclasses.replace(record, best_epoch=best) for name, best in (("a", 1), ("b", 2))}
    assert list(recalls(runs)) == ["b"]
    assert recalls({"a": runs["a"]}).shape == (6, 0)


def test_a_stored_run_whose_numbers_moved_or_whose_data_are_others_does_not_answer(
    stored: nclib.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("nclib.runs.identity.MOVED", {"method ncr": 9})
        with pytest.raises(ValueError, match=r"nearest one has numerics \d, its numbers moved at 9"):
            trained("ncr", "recorded", progress=False, **GIVEN)
        for read in READERS.values():  # what is kept of it follows
            with pytest.raises(ValueError, match=r"has numerics \d, its numbers moved at 9; make demo"):
                read(stored)
    monkeypatch.setattr("ncbook.nearest.checksum", lambda *_: "another")
    with pytest.raises(ValueError, match=r"nearest one has data\.checksum"):
        trained("ncr", "recorded", progress=False, **GIVEN)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("changed", [*READERS, demo.RECORD, "SHA256SUMS"])
def test_a_stored_run_with_a_changed_or_a_lost_file_is_not_read(
    name: str, changed: str, made: tuple[nclib.Record, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(made[1] / "ncr/one", tmp_path / "one")
    record, path = nclib.Record.load(folder / demo.RECORD), folder / changed
    assert READERS[name](record)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = [rf"{changed} was changed: .*SHA256SUMS states another digest", f"{changed} is not there, but in"]
    if changed == "SHA256SUMS":
        said = ["SHA256SUMS|was changed|has no digest in", "has no digest in"]
    with pytest.raises(ValueError, match=said[0]):
        READERS[name](record)
    path.unlink()
    with pytest.raises(ValueError, match=said[1]):
        READERS[name](record)


def test_every_file_of_the_book_s_store_has_its_digest() -> None:
    for record in stored_runs():
        assert kept_arrays(record) is not None
