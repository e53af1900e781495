"""Generated data stay bit for bit what recorded runs were trained on."""

import numpy as np
import pytest

from nclib.common.files import digest
from nclib.data import load
from nclib.data.emoji import generate

FEW = {"n_train": 60, "n_val": 10, "n_test": 30}
#: Documents enough for every axis of the text features.
ENOUGH = FEW | {"n_train": 600}
#: Checksum in records, and digest of scenes and stated facts. Where one changes on purpose, raise
#: ``generate.RECIPE``, so that the caches of users are made again, and say so in the changelog.
PAIRS = {
    "emoji": ("e296e24ad3052299", "42fe6b313cf531a9"),
    "planted": ("5b1cb3484f2fca6e", "e3b0c44298fc1c14"),
}
#: Checksum in records, which leaves out the features; sums of their absolute values.
CATEGORIES = {
    "emoji_category": ("386e7fdfb7937678", (11427.117, 1642.0887)),
    "planted_category": ("02c750bd9b73c7d8", (4985.1185, 2547.1923)),
}


def beside(data):
    """Digest of what the checksum of a data set leaves out."""
    return digest(
        part
        for split in data.splits.values()
        for part in (split.details[key] for key in sorted(split.details))
    )


def sums(data):
    return tuple(float(np.abs(x).sum(dtype=np.float64)) for x in (data.test.images, data.test.texts))


def test_the_recipe_is_the_one_of_the_stored_sums():
    assert generate.RECIPE == 1


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name):
    data = load(name, **FEW)
    assert (data.checksum[:16], beside(data)[:16]) == PAIRS[name]


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories(name):
    data = load(name, **ENOUGH)
    assert (data.checksum[:16], pytest.approx(sums(data), rel=1e-5)) == CATEGORIES[name]
