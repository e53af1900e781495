"""Shared by the data tests: a cache folder of their own."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_CACHE", str(folder))
        yield folder
