"""The candidates for the largest entries of rows, against a full sort."""

import numpy as np
import pytest

from nclib.common.largest import candidates, first, largest


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("m", "k"), [(700, 32), (700, 1), (130, 40), (5, 5)])
def test_the_largest_entries_of_every_row(order, m, k):
    rng = np.random.default_rng(m + k)
    x = np.asarray(rng.normal(size=(40, m)).round(1), np.float32, order=order)  # with many ties
    x[:, 0] = np.linspace(-3, 3, 40)
    np.testing.assert_array_equal(largest(x, k), np.argsort(-x, axis=1, kind="stable")[:, :k])
    above = np.sort(x, axis=1)[:, -k] + np.linspace(-1, 1, 40, dtype=np.float32)
    values, columns = candidates(x, k, above)
    for row, found, at, least in zip(x, values, columns, above, strict=True):
        assert (row[at[at >= 0]] == found[at >= 0]).all()
        assert (found[at < 0] == -np.inf).all()
        best = np.sort(row[row > least])[::-1][:k]
        np.testing.assert_array_equal(np.sort(found)[::-1][: len(best)], best)
    if m > 500:
        assert values.shape[1] < m / 3


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_first_of_a_full_sort_ties_by_position(kind):
    x = np.random.default_rng(0).normal(size=(40, 90)).round(1).astype(kind)  # with many ties
    x[1], x[2, ::3], x[3, ::2], x[3, 1::2], x[4, :5] = -np.inf, -np.inf, 0.0, -0.0, np.inf
    x[5] = np.linspace(-1e-40, 1e-40, 90, dtype=kind)
    np.testing.assert_array_equal(first(x, 32), np.argsort(-x, axis=1, kind="stable")[:, :32])


def test_entries_of_minus_infinity_are_passed_over():
    x = np.full((3, 300), -np.inf)
    x[1, 7] = 2
    values, columns = candidates(x, 4)
    assert (values.tolist(), columns.tolist()) == ([[-np.inf], [2], [-np.inf]], [[-1], [7], [-1]])
