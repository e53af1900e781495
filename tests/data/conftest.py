"""Shared by the data tests: a cache folder of their own."""

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def use_cache(cache):
    """Point to the folder while a module runs: other folders of tests have caches of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_CACHE", str(cache))
        yield
