"""Every method, model and solver gives the numbers of the golden runs; a change that moves one says so."""

from pathlib import Path

import pytest
from cases import entries
from golden import differences, moved_in, stored, trace_of

from nclib.runs.identity import MOVED, NUMERICS

ENTRIES = entries()
ROOT = Path(__file__).resolve().parents[2]
WHAT_TO_DO = (
    "Where that is meant, raise NUMERICS in nclib/runs/identity.py and run "
    "python tests/golden/golden.py --write; see its first lines. "
)


@pytest.fixture(scope="module")
def references():
    return stored()


@pytest.mark.parametrize("name", ENTRIES)
def test_the_numbers_are_those_that_are_stored(name, references):
    said, moved = differences(references["entries"].get(name, {}), trace_of(name, ENTRIES[name]).values)
    what = f"{len(said)} numbers moved beyond rounding. {WHAT_TO_DO}" if moved else "Store what is new. "
    assert not said, what + "; ".join(said[:5])


def test_the_code_names_the_number_of_the_stored_runs_and_what_moved(references):
    others = stored(ROOT / "book" / "baselines" / "omit" / "tests" / "omit_cases.py")
    assert references["numerics"] == others["numerics"] == NUMERICS
    assert moved_in(references["entries"] | others["entries"]) == MOVED


def test_no_stored_entry_is_without_a_run(references):
    assert list(references["entries"]) == list(ENTRIES)
