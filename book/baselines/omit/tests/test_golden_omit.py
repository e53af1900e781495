"""The models give the numbers of their golden runs."""

from pathlib import Path

import omit_cases
import pytest
from baselines import omit
from golden import differences, stored, trace_of

from nclib.common.source import own_code
from nclib.models.registry import MODELS
from nclib.runs.identity import NUMERICS

ENTRIES = omit_cases.entries()


@pytest.fixture(scope="module")
def references():
    return stored(Path(omit_cases.__file__))


@pytest.mark.parametrize("name", ENTRIES)
def test_the_numbers_are_those_that_are_stored(name, references):
    said, _ = differences(references["entries"].get(name, {}), trace_of(name, ENTRIES[name]).values)
    assert not said, "; ".join(said[:5])


def test_their_code_does_not_name_runs():
    assert own_code([MODELS[name].factory for name in omit.MODELS]) == ""


def test_every_entry_is_stored_under_the_number_of_the_numerics(references):
    assert references["numerics"] == NUMERICS
    assert list(references["entries"]) == list(ENTRIES)
