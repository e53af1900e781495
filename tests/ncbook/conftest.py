import ncbook
import pytest


@pytest.fixture(scope="session")
def nothing(tmp_path_factory):
    """No records at all."""
    return ncbook.load_runs(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def book():
    """The ledger of the book's own records, by claim."""
    return ncbook.ledger(ncbook.load_runs()).set_index("id")
