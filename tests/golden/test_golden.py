"""Every method, model and solver gives the numbers of the golden runs."""

import pytest
from cases import entries
from golden import differences, stored, trace_of

ENTRIES = entries()


@pytest.fixture(scope="module")
def references():
    return stored()["entries"]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_numbers_are_those_that_are_stored(name, references):
    found = list(differences(references.get(name, {}), trace_of(name, ENTRIES[name]).values))
    assert not found, f"{len(found)} numbers moved beyond rounding: " + "; ".join(found[:5])


def test_no_stored_entry_is_without_a_run(references):
    assert list(references) == list(ENTRIES)
