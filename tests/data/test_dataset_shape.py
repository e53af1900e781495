"""Captions, splits, datasets and vocabularies: packing, padding, validation."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nclib.data import Captions, CategoryData, Split, Vocabulary, load
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


@given(texts, st.data())
def test_take_and_text_keep_the_strings(strings, data):
    captions = make_captions(strings)
    index = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=15))
    taken = captions.take(index)
    assert [taken.text(k) for k in range(len(index))] == [strings[i] for i in index]
    assert np.array_equal(captions.lengths, [len(s.split()) + 2 for s in strings])


def test_what_a_split_does_not_have_is_said():
    split = make_split()
    assert not split.has_pictures
    assert not split.has_relevance
    with pytest.raises(ValueError, match="has no pictures"):
        split.picture(0)
    with pytest.raises(ValueError, match="no ground-truth relevance"):
        split.relevance()


def contents(data):
    """Everything that a data set tells, with features, drawings and texts asked of its parts as well."""
    told = [repr(data), list(data.details)]
    for split in data.splits.values():
        if isinstance(data, CategoryData):
            told += [split.images, split.texts, split.labels]
            told += [x for row in (0, 1) if split.has_pictures for x in (split.picture(row), split.text(row))]
            continue
        for part in (split, split.part(1, 5).part(1, 3)):
            told += [part.features(np.arange(part.n_images)).numpy(), part.image_of]
            told += [part.captions.text(i) for i in range(part.n_captions)]
            told += [part.relevance()] if part.has_relevance else []
            told += [part.picture(1)] if part.has_pictures else []
    return told


@pytest.mark.parametrize("name", ["planted", "emoji", "planted_category", "emoji_category"])
def test_data_are_the_same_in_another_process(name):
    data = load(name, n_train=12, n_val=6, n_test=6)
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_equal(contents(again), contents(data))
