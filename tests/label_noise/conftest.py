"""Shared by the tests of category retrieval: a cache folder of their own."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def category_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("category_cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_CACHE", str(folder))
        yield folder
