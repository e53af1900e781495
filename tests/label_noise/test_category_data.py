"""Category data: the bundled set, and small files in every published layout."""

from functools import partial

import h5py
import numpy as np
import pytest
from refusals import refused
from scipy.io import savemat

from nclib.data import CategoryData, CategorySplit, load

SIZES = {"train": 12, "valid": 4, "test": 6}


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        split: (
            rng.standard_normal((n, 7)).astype(np.float32),
            rng.standard_normal((n, 3)),
            (np.arange(n) % 3).astype(np.int64),
        )
        for split, n in SIZES.items()
    }


def write_hdf5(path, arrays, text_key="text", first=1, splits=("train", "valid", "test")):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for split in splits:
            images, texts, labels = arrays[split]
            file[f"{split}_imgs_deep"], file[f"{split}_{text_key}"] = images, texts
            # the published files count from 1, and the images' validation labels are not shifted
            file[f"{split}_imgs_labels"] = labels + first
            file[f"{split}_texts_labels"] = labels + first


def save(path, arrays):
    """Write the exchange format, features in float64."""
    kinds = zip(("image", "text", "label"), (np.float64, np.float64, np.int64), strict=True)
    parts = [(s, k, three[i].astype(d)) for i, (k, d) in enumerate(kinds) for s, three in arrays.items()]
    np.savez(path, **{f"{s}_{k}": value for s, k, value in parts})


def same(data, arrays):
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        split = data.splits[ours]
        images, texts, labels = arrays[theirs]
        assert np.array_equal(split.images, images.astype(np.float32))
        assert np.array_equal(split.texts, texts.astype(np.float32))
        assert np.array_equal(split.labels, labels)
        assert split.images.dtype == split.texts.dtype == np.float32


FILES = {
    "wikipedia": "wiki/wiki_deep_doc2vec_data_corr_ae.h5py",
    "nuswide": "NUS-WIDE/nus_wide_deep_doc2vec_data_42941.h5py",
    "xmedianet": "XMediaNet/xmedianet_deep_doc2vec_data.h5py",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("key", ["text", "texts"])
def test_hdf5(tmp_path, arrays, name, key):
    write_hdf5(tmp_path / "data" / FILES[name], arrays, key)
    same(load(name, root=tmp_path, sizes="any"), arrays)
    same(load(name, root=tmp_path / "data" / FILES[name], sizes="any"), arrays)


def test_without_validation_arrays_the_first_test_rows_validate(tmp_path, arrays):
    write_hdf5(tmp_path / FILES["wikipedia"], arrays, splits=("train", "test"))
    data = load("wikipedia", root=tmp_path, sizes="any", n_val=2)
    assert np.array_equal(data.val.images, arrays["test"][0][:2])
    assert np.array_equal(data.test.labels, arrays["test"][2][2:])
    for options, given in (({"n_val": 6}, "n_val=6"), ({}, "n_val=231")):
        read = partial(load, "wikipedia", root=tmp_path, sizes="any", **options)
        refused(ValueError, read, given, "at least 1", "at most 5")


def test_other_sizes_than_published_are_refused(tmp_path, arrays):
    write_hdf5(tmp_path / FILES["wikipedia"], arrays)
    refused(ValueError, lambda: load("wikipedia", root=tmp_path), "(2173, 231, 462)")


def test_image_and_text_labels_must_agree(tmp_path, arrays):
    path = tmp_path / FILES["wikipedia"]
    write_hdf5(path, arrays)
    with h5py.File(path, "r+") as file:
        file["valid_texts_labels"][0] = 3
    refused(ValueError, lambda: load("wikipedia", root=tmp_path, sizes="any"), "val", "labels")


def test_all_labels_are_shifted_by_one_common_minimum(tmp_path, arrays):
    # validation without class 0: a minimum per array would call its classes 0 and 1
    arrays["valid"] = (*arrays["valid"][:2], np.array([1, 2, 1, 2]))
    write_hdf5(tmp_path / FILES["wikipedia"], arrays)
    data = load("wikipedia", root=tmp_path, sizes="any")
    assert data.val.labels.tolist() == [1, 2, 1, 2]
    assert data.n_classes == 10
    assert data.label_names[8] == "sport"


def test_exchange_format(tmp_path, arrays):
    save(tmp_path / "clip.npz", arrays)
    data = load("category_file", root=tmp_path / "clip.npz")
    same(data, arrays)
    assert data.n_classes == 3
    assert data.checksum != load("planted_category", n_train=9).checksum


def test_raw_wikipedia(tmp_path):
    rng = np.random.default_rng(0)
    content, expected = {}, {}
    for short, name, n in (("tr", "trainset", 5), ("te", "testset", 4)):
        content |= {f"I_{short}": rng.random((n, 128)), f"T_{short}": rng.random((n, 10))}
        expected[short] = rng.integers(0, 10, n)
        lines = [f"text{i}\timage{i}\t{k + 1}\n" for i, k in enumerate(expected[short])]
        (tmp_path / f"{name}_txt_img_cat.list").write_text("".join(lines))
    expected["tr"][0] = 0
    (tmp_path / "trainset_txt_img_cat.list").write_text("".join(f"t\ti\t{k + 1}\n" for k in expected["tr"]))
    savemat(tmp_path / "raw_features.mat", content)
    data = load("wikipedia", root=tmp_path, sizes="any", n_val=1)
    assert data.train.labels.tolist() == expected["tr"].tolist()
    assert data.test.labels.tolist() == expected["te"][1:].tolist()
    assert (data.image_dim, data.text_dim) == (128, 10)


def test_nothing_there_lists_what_was_looked_for(tmp_path):
    (tmp_path / "x.csv").write_text("")
    np.savez(tmp_path / "empty.npz", train_label=np.zeros(3))
    wikipedia = partial(load, "wikipedia", root=tmp_path)
    refused(FileNotFoundError, wikipedia, "wiki_deep_doc2vec", "raw_features.mat")
    refused(TypeError, partial(wikipedia, size="any"), "size", "'sizes'")
    refused(ValueError, lambda: load("category_file", root=tmp_path / "x.csv"), "npz", "np.savez")
    refused(ValueError, lambda: load("category_file", root=tmp_path / "empty.npz"), "train_image")


SMALL = {"n_train": 60, "n_val": 20, "n_test": 30}


@pytest.mark.slow
def test_bundled_set():
    data = load("emoji_category", **SMALL)
    assert data.n_classes == 10
    assert (data.image_dim, data.text_dim) == (512, 100)
    assert [len(s) for s in data.splits.values()] == [60, 20, 30]
    assert data.train.images.mean(0) == pytest.approx(np.zeros(512), abs=1e-4)
    assert data.train.picture(3).shape == (96, 96, 3)
    assert data.train.text(3).count(";") == 4
    again = load("emoji_category", **SMALL)
    assert np.array_equal(data.test.images, again.test.images)
    assert data.checksum == again.checksum
    assert load("emoji_category", **SMALL | {"seed": 1}).checksum != data.checksum


def test_bundled_topics_hold():
    from nclib.data.emoji.assets import read_names

    data = load("emoji_category", **SMALL)
    scenes = data.train.details["scenes"]
    on_topic = read_names().class_of[scenes["concept"]] == data.train.labels[:, None]
    assert on_topic[:, 0].all()  # the largest object names the topic
    others = (np.arange(4) < scenes["count"][:, None])[:, 1:]
    assert 0.65 < on_topic[:, 1:][others].mean() < 0.9  # three quarters, and a tenth of the rest


@pytest.mark.parametrize("split", SIZES)
@pytest.mark.parametrize("part", ["image", "text"])
@pytest.mark.parametrize("value", [np.nan, 3e38, -1e300])
def test_a_feature_that_cannot_be_squared_is_named_with_its_place(tmp_path, arrays, split, part, value):
    arrays = {s: [x.astype(np.float64) for x in three] for s, three in arrays.items()}
    arrays[split][part == "text"][2, 1] = value
    save(tmp_path / "own.npz", arrays)
    own = split.replace("valid", "val")
    shown = "-inf" if value == -1e300 else f"{value:g}"
    read = partial(load, "category_file", root=tmp_path / "own.npz")
    refused(ValueError, read, f"{own}_{part}", "row 2", "feature 1", shown)


def test_features_must_be_finite_and_labels_in_range():
    x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2])
    good = CategorySplit("train", x, x, y)
    nowhere = np.full_like(x, np.nan)
    refused(ValueError, lambda: CategorySplit("train", nowhere, x, y), "'train'", "images", "row 0", "nan")
    refused(ValueError, lambda: CategorySplit("train", x, x[:2], y), "texts")
    refused(ValueError, lambda: CategoryData("x", good, good, good, ("a", "b"), "0"), "0..1")
    refused(ValueError, lambda: good.picture(0), "pictures")


def test_features_do_not_depend_on_the_number_of_threads():
    from threadpoolctl import threadpool_limits

    from nclib.data.emoji.categories import _latent_semantics

    counts = np.random.default_rng(0).poisson(0.05, (60, 560)).astype(float)  # fewer documents than words
    others = np.random.default_rng(1).poisson(0.05, (20, 560)).astype(float)
    made = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            made.append(_latent_semantics(counts)(others))
    np.testing.assert_array_equal(*made)
