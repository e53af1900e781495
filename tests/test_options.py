"""Settings that cannot be misspelt."""

from dataclasses import dataclass

import pytest

from nclib._options import Rule, make, option, plain_values, problems, rules


@dataclass(frozen=True)
class Knobs:
    rate: float = option(0.5, low=0, high=1)
    steps: int = option(3, low=1)
    size: float = option(2.0, above=0)
    mode: str = option("a", choices=("a", "b"))
    flag: bool = option(True)


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
        ("mode", "c"), ("flag", 1), ("flag", "true"),
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
    assert Rule(str, choices=("x",)).describe() == "must be one of 'x'"
    assert problems({"mode": "a"}, rules(Knobs)) == []
