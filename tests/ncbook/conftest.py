import ncbook
import pytest


@pytest.fixture(scope="session")
def nothing(tmp_path_factory):
    """No records at all."""
    return ncbook.load_runs(tmp_path_factory.mktemp("empty"))
