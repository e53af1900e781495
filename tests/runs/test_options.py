"""Settings that cannot be misspelt."""

import os
from dataclasses import dataclass
from typing import Literal

import pytest

from nclib.common.options import Options, Rule, make, option, options_of, plain_values, problems, rules


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


def test_plain_values_leave_modules_and_notebook_names_alone():
    namespace = {"mrate": 0.6, "_hidden": 1, "In": [], "pytest": pytest, "names": ["a"], "f": make}
    assert plain_values(namespace) == {"mrate": 0.6, "names": ["a"]}


def test_rules_describe_themselves():
    assert rules(Knobs)["rate"].describe() == "must be a number, at least 0 and at most 1"
    assert rules(Knobs)["size"].describe() == "must be a number, above 0"
    assert Rule(int, high=2**31 - 1).describe() == "must be a whole number, at most 2147483647"
    assert Rule(str, choices=("x",)).describe() == "must be one of 'x'"
    assert rules(Knobs)["most"].describe() == "must be None or a number, at least 0 and below 1"
    assert problems({"mode": "a", "most": None}, rules(Knobs)) == []
    assert str(Knobs.catalogue()).splitlines()[-1] == (
        "most   None  largest share; None or a number, at least 0 and below 1"
    )


def factory(
    *,
    root: str | os.PathLike[str],
    n: int | None = None,
    rate: float = 0.5,
    mass: float | str = "uniform",
    flag: bool = False,
    mode: Literal["a", "b"] = "a",
    sizes: tuple[int, ...] = (),
    free=0,
): ...


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("root", 2024, "root=2024: must be a path as text, such as './2024' for a folder of that name"),
        ("n", "abc", "n='abc': must be None or a whole number"),
        ("n", 10.5, "n=10.5: must be None or a whole number"),
        ("n", True, "n=True: must be None or a whole number"),
        ("n", [32, 64], "n=[32, 64]: must be None or a whole number"),
        ("rate", None, "rate=None: must be a number"),
        ("mass", False, "mass=False: must be a number or text"),
        ("flag", "maybe", "flag='maybe': must be True or False"),
        ("flag", 1, "flag=1: must be True or False"),
        ("mode", "c", "mode='c': must be one of 'a', 'b'"),
    ],
)
def test_values_are_checked_against_type_hints(name, value, said):
    assert problems({name: value}, rules(options_of(factory))) == [said]


def test_values_that_fit_their_type_hints_pass():
    fits = {
        "root": "2024",
        "n": None,
        "rate": 1,
        "mass": 0.2,
        "flag": True,
        "mode": "b",
        "sizes": 3,
        "free": "x",
    }
    assert problems(fits, rules(options_of(factory))) == []
    assert problems({**fits, "n": 3, "mass": "uniform"}, rules(options_of(factory))) == []
    with pytest.raises(ValueError, match="root is needed: a path"):
        make(options_of(factory), {"n": 3})


def test_hints_that_cannot_be_evaluated_allow_everything():
    def unknown(*, a: "NotImported"): ...  # noqa: F821

    assert problems({"a": 3}, rules(options_of(unknown))) == []
