"""Captions, splits, datasets and vocabularies: packing, padding, validation."""

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nclib
from nclib.common.files import digest, write_atomically
from nclib.data import Captions, CategoryData, Dataset, Split, Vocabulary, available, load, register
from nclib.data.registry import datasets
from nclib.data.vocabulary import SPECIAL

WORDS = Vocabulary((*SPECIAL, *"abcdefgh"))


def make_captions(texts):
    return Captions(*WORDS.encode_all(texts), WORDS)


def make_split(n=3, each=2, **changes):
    fields = {
        "name": "train",
        "images": np.zeros((n, 4, 5), np.float32),
        "captions": make_captions(["a b"] * (n * each)),
        "image_of": np.arange(n * each) // each,
        "captions_per_image": each,
    }
    return Split(**{**fields, **changes})


texts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=9).map(" ".join), min_size=1, max_size=20)


@settings(deadline=None)
@given(texts, st.data())
def test_batch_equals_padding_one_by_one(strings, data):
    captions = make_captions(strings)
    index = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=15))
    batch = captions.batch(index)
    rows = [captions.ids(i) for i in index]
    assert batch.lengths == tuple(len(row) for row in rows)
    width = max(map(len, rows), default=0)
    assert batch.ids.shape == (len(index), width)
    assert batch.ids.dtype == torch.int64
    for row, ids in zip(batch.ids.numpy(), rows, strict=True):
        assert np.array_equal(row, np.pad(ids, (0, width - len(ids))))


@settings(deadline=None)
@given(texts, st.data())
def test_take_and_text_keep_the_strings(strings, data):
    captions = make_captions(strings)
    index = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=15))
    taken = captions.take(index)
    assert [taken.text(k) for k in range(len(index))] == [strings[i] for i in index]
    assert np.array_equal(captions.lengths, [len(s.split()) + 2 for s in strings])


def test_batch_takes_booleans_arrays_and_tensors():
    captions = make_captions(["a", "b c", "d"])
    want = captions.batch([1, 2]).ids
    assert torch.equal(captions.batch(np.array([False, True, True])).ids, want)
    assert torch.equal(captions.batch(torch.tensor([1, 2])).ids, want)


@pytest.mark.parametrize("index", [[3], [-1], [0, 99]])
def test_rows_out_of_range_are_refused(index):
    with pytest.raises(IndexError, match=r"index must lie in 0\.\.2"):
        make_captions(["a", "b", "c"]).batch(index)


@pytest.mark.parametrize("index", [0, [0.5], [[0]], "a", [True]])
def test_wrong_kinds_of_index_are_refused(index):
    with pytest.raises(TypeError, match="index must be"):
        make_captions(["a", "b", "c"]).batch(index)


@pytest.mark.parametrize(
    ("tokens", "offsets", "words"),
    [
        (np.array([1, 2], np.int64), np.array([0, 2]), "tokens must be int32"),
        (np.array([1, 2], np.int32), np.array([0, 2], np.int32), "offsets must be int64"),
        (np.array([1, 2], np.int32), np.array([0, 1]), "offsets must run from 0 to 2 .* 0 to 1"),
        (np.array([1, 2], np.int32), np.array([0, 2, 2]), "rise at every caption, .* lengths from 0"),
        (np.array([1, 99], np.int32), np.array([0, 2]), r"tokens must lie in 0\.\.11"),
        (np.array([-1, 1], np.int32), np.array([0, 2]), r"tokens must lie in 0\.\.11"),
    ],
)
def test_bad_captions_are_refused(tokens, offsets, words):
    with pytest.raises(ValueError, match=words):
        Captions(tokens, offsets, WORDS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((3, 4, 5))}, "images must be float32"),
        ({"images": np.zeros((3, 4), np.float32)}, "images must be float32"),
        ({"captions_per_image": 3}, r"captions must have 9 \(3 of each image\) rows, got 6"),
        ({"image_of": np.array([0, 1, 2, 0, 1, 2])}, "image_of must group captions by image"),
        ({"labels": np.zeros(4, np.int64)}, r"must be int64 \(3,\)"),
        ({"label_sets": {"colour": np.zeros(3)}}, "colour must be int64"),
        ({"boxes": np.zeros((3, 4, 2), np.float32)}, "boxes must be float32"),
    ],
)
def test_bad_splits_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make_split(**changes)


def test_labels_default_to_the_first_classification():
    first, second = np.array([0, 1, 2]), np.array([1, 1, 0])
    split = make_split(label_sets={"one": first, "two": second})
    assert np.array_equal(split.labels, first)
    assert list(make_split(labels=second).label_sets) == ["class"]


def test_what_a_split_does_not_have_is_said():
    split = make_split()
    assert not split.has_pictures
    assert not split.has_relevance
    with pytest.raises(ValueError, match="has no pictures"):
        split.picture(0)
    with pytest.raises(ValueError, match="no ground-truth relevance"):
        split.relevance()


def test_features_are_copies_in_the_order_asked():
    images = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    split = make_split(images=images)
    got = split.features([2, 0, 2])
    assert torch.equal(got, torch.from_numpy(images[[2, 0, 2]]))
    got.zero_()
    assert images[2].any()
    assert split.features([]).shape == (0, 4, 5)


def test_a_dataset_refuses_splits_that_do_not_fit():
    good = {k: make_split(name=k) for k in ("train", "val", "test")}
    rest = {"vocabulary": WORDS, "checksum": "0", "licence": "none"}
    data = Dataset("toy", **good, **rest)
    assert (data.feature_dim, data.n_regions) == (5, 4)
    wide = make_split(name="test", images=np.zeros((3, 4, 6), np.float32))
    with pytest.raises(ValueError, match="splits must share"):
        Dataset("toy", **{**good, "test": wide}, **rest)
    with pytest.raises(ValueError, match="another vocabulary"):
        Dataset("toy", **good, **{**rest, "vocabulary": Vocabulary((*SPECIAL, "x"))})
    with pytest.raises(ValueError, match="labels 'kind' of split"):
        Dataset("toy", **good, **rest, label_names={"kind": ("a", "b")})


def test_vocabulary_round_trips_through_the_fields_json(tmp_path):
    words = Vocabulary.from_texts(["b a a", "a c b"], min_count=2)
    assert words.words == (*SPECIAL, "a", "b")
    words.to_json(tmp_path / "v.json")
    data = json.loads((tmp_path / "v.json").read_text())
    assert data["idx"] == 6
    assert data["idx2word"]["4"] == "a"
    assert data["word2idx"]["<pad>"] == 0
    assert Vocabulary.from_json(tmp_path / "v.json") == words
    assert words.encode("a zebra b").tolist() == [1, 4, 3, 5, 2]
    assert words.decode([1, 4, 3, 5, 2, 0]) == "a <unk> b"


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        '{"idx": 3}',
        '{"word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "a": 9}, "idx": 5}',
        '{"word2idx": {"a": 0, "b": 1, "c": 2, "d": 3}, "idx": 4}',
        '{"word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3}, "idx2word": {"0": "x"}, "idx": 4}',
        '{"word2idx": {"<pad>": 0, "<start>": 0}, "idx2word": {}, "idx": 2}',
        '{"word2idx": {"<pad>": 0}, "idx2word": ["<pad>"], "idx": 1}',
        '{"word2idx": {"<pad>": 0}, "idx2word": {}, "idx": "x"}',
    ],
)
def test_broken_vocabulary_files_are_refused(tmp_path, content):
    path = tmp_path / "v.json"
    path.write_text(content)
    with pytest.raises(
        ValueError,
        match=r"^.*v\.json: (not a vocabulary|word2idx must use every id|idx2word must map)|words must begin",
    ):
        Vocabulary.from_json(path)


def test_words_must_be_distinct():
    with pytest.raises(ValueError, match=r"more than once: \['a'\]"):
        Vocabulary((*SPECIAL, "a", "a"))


def test_checksum_sees_shape_type_order_and_content():
    a = np.arange(6, dtype=np.int32)
    sums = {
        digest([a]),
        digest([a.reshape(2, 3)]),
        digest([a.astype(np.int64)]),
        digest([a[::-1]]),
        digest([a[:3], a[3:]]),
        digest(["ab", "c"]),
        digest(["a", "bc"]),
    }
    assert len(sums) == 7
    assert digest([np.asfortranarray(a.reshape(2, 3))]) == digest([a.reshape(2, 3)])


@pytest.fixture
def own():
    """Give names of the catalogue back."""
    before = set(datasets)
    yield
    for name in set(datasets) - before:
        datasets.remove(name)


def test_one_catalogue_knows_the_task_of_every_name():
    pairs, categories = available("pairs"), available("categories")
    assert {"emoji", "planted", "f8k", "f30k", "coco", "cc152k", "region_files", "own"} <= set(pairs)
    assert {"emoji_category", "planted_category", "wikipedia", "category_file"} < set(categories)
    assert dict(available()) == {**pairs, **categories}
    assert not set(pairs) & set(categories)
    with pytest.raises(ValueError, match="task='labels': must be one of 'pairs', 'categories'"):
        available("labels")


def test_a_run_refuses_data_of_the_other_task():
    with pytest.raises(
        ValueError, match=r"='wikipedia': must be one of cc152k, .*; this one holds categories"
    ):
        nclib.resolve("plain", dataset="wikipedia")
    with pytest.raises(ValueError, match=r"='emoji': must be one of category_file, .*; this one holds pairs"):
        nclib.resolve("mrl", dataset="emoji")
    assert datasets.task("emoji") == "pairs"
    with pytest.raises(ValueError, match="did you mean 'wikipedia'"):
        datasets.task("wikipdia")


def test_own_data_are_registered_for_a_task(own):
    @register("mine", summary="two views", task="categories")
    def own_data(*, n_train: int = 5):
        return load("planted_category", n_train=n_train)

    assert len(load("mine", n_train=3).train) == 3
    assert "mine" in available("categories")
    register("mine", summary="again", task="categories")(own_data)  # the same function replaces itself
    assert available("categories")["mine"] == "again"
    with pytest.raises(ValueError, match="registered twice"):
        register("mine", summary="")(lambda: own_data())
    with pytest.raises(ValueError, match="registered twice"):
        register("emoji", summary="", task="categories")(own_data)
    assert datasets.task("emoji") == "pairs"


def test_mistakes_in_a_registration_are_told(own):
    with pytest.raises(ValueError, match=r"task=.*: must be one of"):
        register("mine", summary="", task="labels")
    with pytest.raises(TypeError, match=r"every option needs a name"):
        register("mine", summary="")(lambda **options: None)
    assert "mine" not in available()
    register("mine", summary="")(lambda: load("planted_category"))
    with pytest.raises(TypeError, match="task='pairs' and must return a Dataset, got CategoryData"):
        load("mine")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_atomically(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_printing_a_dataset_tells_its_size():
    assert "train 8x5" in repr(load("planted", n_train=8))


def contents(data):
    """Everything that a data set tells, with features, drawings and texts asked of its parts as well."""
    told = [repr(data), list(data.details), data.licence]
    for split in data.splits.values():
        if isinstance(data, CategoryData):
            told += [split.images, split.texts, split.labels]
            told += [x for row in (0, 1) if split.has_pictures for x in (split.picture(row), split.text(row))]
            continue
        for part in (split, split.part(1, 5).part(1, 3)):
            told += [part.features(np.arange(part.n_images)).numpy(), part.image_of]
            told += part.label_sets.values()
            told += [part.captions.text(i) for i in range(part.n_captions)]
            told += [part.relevance()] if part.has_relevance else []
            told += [part.picture(1)] if part.has_pictures else []
    return told


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("planted", {}),
        ("emoji", {}),
        ("emoji", {"features": "pixels"}),
        ("planted_category", {}),
        ("emoji_category", {}),
    ],
)
def test_data_are_the_same_in_another_process(name, options):
    data = load(name, n_train=12, n_val=6, n_test=6, **options)
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_equal(contents(again), contents(data))
