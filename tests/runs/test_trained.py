"""A finished run as an object."""

import re

import numpy as np
import pandas as pd
import pytest
from small import QUIET

import nclib


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return nclib.run("ncr", **QUIET | {"warmup_epochs": 1}, out=tmp_path_factory.mktemp("runs"))


def test_captions_of_other_data_are_not_scored_in_silence(record, recwarn):
    model = nclib.load(record)
    own = [model.captions[0]] * 30
    with pytest.raises(ValueError, match=r"has no word of 'ein Hund'; .*\(caption 30; 2 of 32 are so\)"):
        model.score(model.images, [*own, "ein Hund", "..."])
    with pytest.warns(UserWarning, match=r"'word0', .* 'word4' and 7 more; .*word \(\d+% of all words\)"):
        model.score(model.images, [*own, "concept1a " + " ".join(f"word{i}" for i in range(12))])
    assert not recwarn.list
    assert model.score(model.images, own).shape == (len(model.images), 30)


@pytest.mark.parametrize("value", [np.nan, 3e38, -1e19])
def test_features_that_cannot_be_squared_are_not_scored(record, value):
    model = nclib.load(record)
    images = np.array(model.images)
    images[4, 2, 1] = value
    with pytest.raises(ValueError, match=f"images, row 4, region 2, feature 1 is {re.escape(f'{value:g}')};"):
        model.search("concept1a", images)


def test_pictures_have_names_where_the_data_knows_them(tmp_path):
    of = np.repeat(np.arange(60), 2)
    frame = pd.DataFrame({"image": [f"{i}.png" for i in of], "caption": [f"this is number {i}" for i in of]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.save(tmp_path / "i.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    where = {"pairs": str(tmp_path / "t.csv"), "image_emb": str(tmp_path / "i.npy")}
    own = QUIET | {"dataset": "own", "data_options": where, "mrate": 0, "warmup_epochs": 1}
    model = nclib.load(nclib.run("ncr", **own, out=tmp_path / "runs"))
    for found, text in ((model.pairs(), "text"), (model.search("this is number"), "caption")):
        own = [name.removesuffix(".png").rpartition("/")[2] for name in found["picture"]]
        assert own == [told.split()[-1] for told in found[text]]


@pytest.mark.parametrize("images", [None, np.ones((2, 12)), np.ones((2, 12, 3))])
def test_pictures_that_the_model_cannot_read(record, images):
    model = nclib.load(record.folder)
    model.images = None
    with pytest.raises(ValueError, match="images"):
        model.search("concept1a", images)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"record\.json"):
        nclib.load(tmp_path)
