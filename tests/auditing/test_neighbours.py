"""Neighbour lists against a full sort, their restart, and the search in groups."""

from __future__ import annotations

import numpy as np
import pytest

from nclib.auditing import neighbours
from nclib.auditing.neighbours import find_neighbours
from nclib.auditing.pairs import Pairs


def some_pairs(n=30, m=50, d=6, seed=0):
    rng = np.random.default_rng(seed)
    images, captions = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    captions[7] = np.nan
    return Pairs(images, captions, rng.integers(0, n, m), [str(i) for i in range(m)])


def small_tiles(monkeypatch):
    monkeypatch.setattr(neighbours, "ROWS", 8)
    monkeypatch.setattr(neighbours, "COLUMNS", 12)


def test_lists_equal_a_full_sort_with_small_tiles(monkeypatch):
    small_tiles(monkeypatch)
    pairs = some_pairs()
    found = find_neighbours(pairs, k=5, similar=4, progress=False)
    x, y = pairs.unit_images(slice(None)), pairs.unit_captions(slice(None))
    cosine = y @ x.T
    cosine[7] = -np.inf
    rows = np.arange(50) != 7
    np.testing.assert_array_equal(found.pictures[rows], np.argsort(-cosine, 1)[rows, :5])
    np.testing.assert_array_equal(found.captions, np.argsort(-cosine.T, 1)[:, :5])
    np.testing.assert_allclose(found.caption_cosines, -np.sort(-cosine.T, 1)[:, :5], atol=1e-6)
    own = x @ x.T
    np.fill_diagonal(own, -np.inf)
    np.testing.assert_array_equal(found.similar_images, np.argsort(-own, 1)[:, :4])
    assert (found.pictures[7] == -1).all()
    assert not (found.similar_captions == 7).any()


@pytest.mark.parametrize("exact", [50_000, 10])
def test_a_stopped_search_goes_on(monkeypatch, tmp_path, exact):
    small_tiles(monkeypatch)
    monkeypatch.setattr(neighbours, "EXACT", exact)  # 10: in groups, all of which are searched
    monkeypatch.setattr(neighbours, "AT_ONCE", 16)
    monkeypatch.setattr(neighbours, "SAVE_EVERY", 0.0)
    pairs, whole = some_pairs(), find_neighbours(some_pairs(), k=5, progress=False)
    update, calls = neighbours._Best.update, []

    def counted(self, *args):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        update(self, *args)

    monkeypatch.setattr(neighbours._Best, "update", counted)
    stop_at = 0
    find_neighbours(pairs, k=5, work=tmp_path / "whole", progress=False)
    total = len(calls)
    stop_at = 2 * total // 3
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        find_neighbours(pairs, k=5, work=tmp_path / "part", progress=False)
    calls.clear()
    stop_at = 0
    again = find_neighbours(pairs, k=5, work=tmp_path / "part", progress=False)
    assert 0 < len(calls) < 2 * total // 3
    np.testing.assert_array_equal(again.pictures, whole.pictures)
    np.testing.assert_array_equal(again.captions, whole.captions)
    np.testing.assert_array_equal(again.similar_captions, whole.similar_captions)
    for kept in (tmp_path / "whole").glob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"\.npz is damaged; delete it to search again"):
        find_neighbours(pairs, k=5, work=tmp_path / "whole", progress=False)


def test_groups_find_nearly_all_neighbours_and_say_how_many(monkeypatch):
    rng = np.random.default_rng(0)
    topic = rng.normal(size=(40, 16))[rng.integers(0, 40, 1500)]
    images = topic + 0.5 * rng.normal(size=topic.shape)
    captions = images + 0.3 * rng.normal(size=topic.shape)
    captions[7] = np.nan
    pairs = Pairs(images, captions, np.arange(1500), [str(i) for i in range(1500)])
    exact = find_neighbours(pairs, k=6, similar=4, progress=False)
    monkeypatch.setattr(neighbours, "EXACT", 100)
    monkeypatch.setattr(neighbours, "PROBES", 32)
    monkeypatch.setattr(neighbours, "AT_ONCE", 400)  # four parts of the rows
    found = find_neighbours(pairs, k=6, similar=4, progress=False)
    assert exact.recall == 1
    for name in ("pictures", "captions", "similar_images", "similar_captions"):
        ours, best = getattr(found, name), getattr(exact, name)
        assert (ours[:, :, None] == best[:, None]).any(2)[best >= 0].mean() > 0.9
        assert all(len(set(row)) == len(row) for row in ours.tolist() if -1 not in row)
    held = (exact.pictures[:, :, None] == found.pictures[:, None]).any(2)
    assert found.recall == pytest.approx(held[np.arange(1500) != 7].mean(), abs=0.05)
    assert (found.pictures[7] == -1).all()
    assert not (found.similar_images == np.arange(1500)[:, None]).any()
