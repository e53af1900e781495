"""Checks of arguments: what is refused, and that the message names argument, value and what is allowed."""

import numpy as np
import pytest

from nclib.common.checks import check_array, check_choice, check_count, check_number, check_rows, check_within

REFUSED = [
    (lambda: check_count("n", 0), "n=0: must be a whole number, at least 1"),
    (lambda: check_count("n", 5, 1, 4), "n=5: must be a whole number, at least 1 and at most 4"),
    (lambda: check_count("n", 2.0), "n=2.0: must be a whole number, at least 1"),
    (lambda: check_count("n", True), "n=True: must be a whole number, at least 1"),
    (lambda: check_number("tau", 0.0, above=0), "tau=0.0: must be a number, above 0"),
    (lambda: check_number("tau", float("inf"), low=0), "tau=inf: must be a number, at least 0"),
    (lambda: check_choice("ties", "x", ("a", "b")), "ties='x': must be one of 'a', 'b'"),
    (lambda: check_array("x", np.zeros(3), "float32", "n"), "x must be float32 (n,), got float64 (3,)"),
    (
        lambda: check_array("x", np.zeros((0, 2)), "numbers", "n", 2),
        "x must be numbers (n, 2), got float64 (0, 2)",
    ),
    (lambda: check_array("x", np.zeros(2, ">f4"), "float32", 2), "got float32 in foreign byte order (2,)"),
    (lambda: check_array("", [1], "booleans", 1), "must be booleans (1,), got list"),
    (lambda: check_within("rows", np.array([0, 3, -1]), 3), "rows must lie in 0..2, got 3 at place 1"),
    (lambda: check_rows("x", 4, pairs=3, pictures=2), "x must have 3 (pairs) or 2 (pictures) rows, got 4"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_what_is_refused_is_named(call, said):
    with pytest.raises(ValueError) as error:
        call()
    assert said in str(error.value)


def test_what_is_allowed_passes():
    assert (check_count("n", np.int32(4), 1, 4), check_number("x", 0, low=0)) == (4, 0.0)
    assert check_choice("ties", "a", ("a", "b")) == "a"
    check_array("x", np.zeros((2, 3), np.uint8), "float32 or uint8", 2, "d")
    check_within("rows", np.zeros(0, int), 0)
    check_rows("x", 2, pairs=3, pictures=2)
