"""Shared by the tests of category retrieval: a cache folder of their own."""

import pytest


@pytest.fixture(scope="session")
def category_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("category_cache")


@pytest.fixture(scope="module", autouse=True)
def use_cache(category_cache):
    """Point to the folder while a module runs: other folders of tests have caches of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_CACHE", str(category_cache))
        yield
