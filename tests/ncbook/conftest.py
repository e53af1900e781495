import ncbook as tables
import pytest


@pytest.fixture(scope="session")
def nothing(tmp_path_factory):
    """No records at all."""
    return tables.load_runs(tmp_path_factory.mktemp("empty"))
