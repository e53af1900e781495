"""Groups of captions: every caption once, within bounds, and the best cut by exhaustive search."""

import itertools
import random

import pytest

from nclib.models.grouping import buckets, group_captions


def price(runs, counts, group_cost):
    total = 0.0
    for low, high in runs:
        inside = [length for length in counts if low <= length <= high]
        n = sum(counts[length] for length in inside)
        total += group_cost + n * (high + 1)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_buckets_are_the_best_cut(seed):
    rng = random.Random(seed)
    counts = {length: rng.randint(1, 9) for length in rng.sample(range(1, 30), 7)}
    group_cost = rng.choice([0.0, 5.0, 40.0, 1e6])
    lengths = sorted(counts)
    every = []
    for cuts in itertools.product([False, True], repeat=len(lengths) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(lengths)]
        every.append([(lengths[a], lengths[b - 1]) for a, b in itertools.pairwise(edges)])
    best = min(price(runs, counts, group_cost) for runs in every)
    runs = buckets(counts, group_cost=group_cost)
    assert runs in every
    assert price(runs, counts, group_cost) == pytest.approx(best)


@pytest.mark.parametrize("group_cost", [0.0, 12.0, 1e9])
@pytest.mark.parametrize("max_words", [1, 40, 10_000])
def test_groups_hold_every_caption_once(group_cost, max_words):
    rng = random.Random(1)
    lengths = tuple(rng.randint(2, 12) for _ in range(50))
    groups = group_captions(lengths, group_cost=group_cost, max_words=max_words)
    assert sorted(row for group in groups for row in group.rows) == list(range(50))
    for group in groups:
        assert group.lengths == tuple(lengths[row] for row in group.rows)
        assert group.width == max(group.lengths)
        assert len(group.rows) == 1 or len(group.rows) * (group.width + 1) <= max_words
        assert group.padded == (len(set(group.lengths)) > 1)
    if group_cost == 0.0:
        assert not any(group.padded for group in groups)
    if group_cost == 1e9 and max_words == 10_000:
        assert len(groups) == 1
