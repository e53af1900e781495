"""Settings that cannot be misspelt."""

import os
from dataclasses import dataclass
from typing import Literal

import pytest

from nclib.common.options import Options, make, option, options_of, problems, rules


@dataclass(frozen=True)
class Knobs(Options):
    rate: float = option(0.5, low=0, high=1)
    steps: int = option(3, low=1)
    size: float = option(2.0, above=0)
    mode: str = option("a", choices=("a", "b"))
    flag: bool = option(True)
    most: float = option(None, kind=float, low=0, below=1, help="largest share")


def test_defaults_and_whole_numbers_for_floats():
    assert make(Knobs, {}) == Knobs()
    made = make(Knobs, {"rate": 1})
    assert made.rate == 1.0
    assert isinstance(made.rate, float)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 1.1), ("rate", -0.1), ("rate", "0,6"), ("rate", True), ("rate", float("nan")),
        ("steps", 0), ("steps", 2.5), ("steps", True), ("size", 0), ("size", float("inf")),
        ("mode", "c"), ("flag", 1), ("flag", "true"), ("most", 1), ("most", True),
    ],
)  # fmt: skip
def test_bad_values_are_named_with_what_is_allowed(name, value):
    with pytest.raises(ValueError, match=f"{name}=.*must be"):
        make(Knobs, {name: value})


def test_misspelt_name_gets_a_suggestion_and_all_problems_are_listed():
    with pytest.raises(ValueError, match=r"unknown parameter 'rat'; did you mean 'rate'\?.*steps=0: must be"):
        make(Knobs, {"rat": 0.2, "steps": 0})


def factory(
    *, root: str | os.PathLike[str], n: int | None = None, rate: float = 0.5, mass: float | str = "uniform",
    flag: bool = False, mode: Literal["a", "b"] = "a", sizes: tuple[int, ...] = (), free=0,
): ...  # fmt: skip


def test_values_that_fit_their_type_hints_pass():
    fits = {"root": "2024", "n": None, "rate": 1, "mass": 0.2, "flag": True, "mode": "b", "sizes": 3}
    for more in ({"free": "x"}, {"n": 3, "mass": "uniform"}):
        assert problems({**fits, **more}, rules(options_of(factory))) == []
    with pytest.raises(ValueError, match="root is needed: a path"):
        make(options_of(factory), {"n": 3})
