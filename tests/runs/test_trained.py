"""A finished run as an object, and as a folder that stands alone."""

import json
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from small import QUIET

import nclib
from nclib.data import Vocabulary


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return nclib.run("ncr", **QUIET | {"warmup_epochs": 1}, out=tmp_path_factory.mktemp("runs"))


def test_captions_of_other_data_are_not_scored_in_silence(record, recwarn):
    model = nclib.load(record)
    own = [model.told[0]] * 30
    with pytest.raises(ValueError, match=r"has no word of 'ein Hund'; .*\(caption 30; 2 of 32 are so\)"):
        model.score(model.images, [*own, "ein Hund", "..."])
    with pytest.warns(UserWarning, match=r"'word0', .* 'word9' and 2 more; .*word \(\d+% of all words\)"):
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
    x = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    frame = pd.DataFrame({"image": [f"{i}.png" for i in of], "caption": [f"this is number {i}" for i in of]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.save(tmp_path / "i.npy", x)
    where = {"pairs": str(tmp_path / "t.csv"), "image_emb": str(tmp_path / "i.npy")}
    own = QUIET | {"dataset": "own", "data_options": where, "mrate": 0, "warmup_epochs": 1}
    model = nclib.load(nclib.run("ncr", **own, out=tmp_path / "runs"))
    for found, text in ((model.pairs(), "text"), (model.search("this is number"), "caption")):
        own = [name.removesuffix(".png").rpartition("/")[2] for name in found["picture"]]
        assert own == [told.split()[-1] for told in found[text]]


def test_a_saved_folder_stands_alone(record, tmp_path):
    model = nclib.load(record)
    texts = ["concept1a concept2b", "concept3a"]
    again = nclib.load(model.save(tmp_path / "model"))
    assert np.array_equal(again.score(model.images, texts), model.score(model.images, texts))
    pd.testing.assert_frame_equal(again.pairs(), model.pairs())
    card = (tmp_path / "model" / "README.md").read_text()
    assert "bow trained by ncr" in card
    assert f"{record.metrics['test']['i2t_r1']:.1f}" in card
    with pytest.raises(ValueError, match="no pictures to search"):
        again.search("concept1a")


def test_what_is_no_model_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither settings\.json"):
        nclib.load(tmp_path)


@pytest.fixture
def saved(record, tmp_path):
    """A folder of a saved model."""
    return nclib.load(record).save(tmp_path / "model")


FILES = ["model.safetensors", "settings.json", "vocabulary.json", "README.md", "pairs.csv"]


@pytest.mark.parametrize("name", FILES)
def test_a_saved_model_is_bound_together(saved, record, tmp_path, name):
    """A flipped bit, the file of another model, a missing file, one without digest: each is named."""
    path, right = saved / name, (saved / name).read_bytes()
    for where in (0, len(right) // 2, len(right) - 1):
        path.write_bytes(right[:where] + bytes([right[where] ^ 1]) + right[where + 1 :])
        with pytest.raises(
            ValueError, match=rf"{re.escape(str(path))} was changed: .*SHA256SUMS states another"
        ):
            nclib.load(saved)
    other = nclib.load(record)
    other.settings["facts"]["seed"] = 1
    other.networks[0].load_state_dict({k: v + 1 for k, v in other.networks[0].state_dict().items()})
    other.matched = other.matched.assign(p_clean=0.5)
    other.vocabulary = Vocabulary([*other.vocabulary.words[:4], *other.vocabulary.words[:3:-1]])
    path.write_bytes((other.save(tmp_path / "other") / name).read_bytes())
    with pytest.raises(ValueError, match=rf"{name} was changed"):
        nclib.load(saved)
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=name):
        nclib.load(saved)
    path.write_bytes(right)
    nclib.load(saved)
    sums = (saved / "SHA256SUMS").read_text().splitlines(keepends=True)
    (saved / "SHA256SUMS").write_text("".join(line for line in sums if name not in line))
    with pytest.raises(ValueError, match=rf"{name} has no digest in .*SHA256SUMS"):
        nclib.load(saved)


def relist(folder):
    """Write the list of digests anew."""
    subprocess.run("sha256sum *.* > SHA256SUMS", shell=True, cwd=folder, check=True)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"method_options": {"threshold": "0.5"}}, "threshold='0.5': must be a number"),
        ({"sizes": {"feature_dim": 3, "vocab_size": 30, "n_regions": 12}}, "(?s:.)*size mismatch"),
        ({"model": "nothing"}, "unknown model 'nothing'"),
    ],
)
def test_settings_of_a_saved_model_are_checked(saved, part, said):
    path = saved / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | part))
    relist(saved)
    with pytest.raises(ValueError, match=f"model is not a saved model that can be loaded here: .*{said}"):
        nclib.load(saved)


def test_a_model_saved_over_another_leaves_nothing_of_it(saved, record):
    model = nclib.load(record)
    model.matched = None
    model.save(saved)
    assert not (saved / "pairs.csv").exists()
    assert nclib.load(saved).matched is None
    assert nclib.table(saved.parent).empty  # a table of pairs beside a list of digests is no table of runs
