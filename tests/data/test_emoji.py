"""The bundled set: loading, splits, determinism, cache, labels, ground truth."""

import shutil

import numpy as np
import pytest

from nclib.data import load
from nclib.data.emoji import assets, compose, grammar

FEW = {"n_train": 60, "n_val": 10, "n_test": 30}


@pytest.fixture(scope="module")
def data():
    return load("emoji", **FEW)


@pytest.mark.slow
def test_smaller_sets_are_prefixes_and_test_is_the_same(data):
    more = load("emoji", n_train=compose.BLOCK + 20, n_val=10, n_test=40)  # into the second block
    assert np.array_equal(more.train.images[:60], data.train.images)
    assert np.array_equal(more.train.boxes[:60], data.train.boxes)
    assert [more.train.captions.text(i) for i in range(300)] == [
        data.train.captions.text(i) for i in range(300)
    ]
    assert np.array_equal(more.test.images[:30], data.test.images)
    assert np.array_equal(more.test.picture(29), data.test.picture(29))
    assert not np.array_equal(more.train.images[1000:1020], more.train.images[:20])


def as_written(phrase):
    wording = assets.read_wording()
    return " ".join(wording.get(word, word) for word in phrase.split())


def oracle(data, table, split, image, caption):
    """Relevance by nested loops over one picture and one caption."""
    scene, fact = split.details["scenes"][image], split.details["facts"][caption]
    objects = []
    for slot in range(scene["count"]):
        k = scene["concept"][slot]
        middle = tuple(int(scene[axis][slot]) + int(scene["size"][slot]) / 2 for axis in ("x", "y"))
        objects.append(({as_written(p) for p in (table.names[k], *table.keywords[k])}, *middle))
    phrases = [data.details["phrases"][p] for p in fact["phrase"] if p >= 0]
    statements = {("there", p): any(p in words for words, _, _ in objects) for p in phrases}
    if fact["tint"] >= 0:
        statements["on", fact["tint"]] = bool(scene["tint"] == fact["tint"])
    for q, code in enumerate(fact["relation"]):
        if code < 0:
            continue
        relation = data.details["relations"][code]
        holds = False
        for a, (words, x, y) in enumerate(objects):
            for b, (others, u, v) in enumerate(objects):
                if a != b and phrases[q] in words and phrases[q + 1] in others:
                    holds |= {
                        "left": x < u, "right": x > u, "above": y < v, "below": y > v,
                        "beside": abs(x - u) > abs(y - v),
                    }[relation]  # fmt: skip
        statements[relation, phrases[q], phrases[q + 1]] = holds
    return sum(statements.values()) / len(statements)


@pytest.mark.exhaustive
def test_relevance_equals_nested_loops(data):
    test = data.test
    relevance = test.relevance()
    assert relevance.shape == (30, 150)
    assert relevance.dtype == np.float32
    table = assets.read_names()
    expected = [[oracle(data, table, test, i, c) for c in range(150)] for i in range(30)]
    assert np.allclose(relevance, expected, atol=1e-6)


def test_relevance_of_the_own_caption_is_one_and_rows_can_be_chosen(data):
    for split in data.splits.values():
        own = split.relevance()[split.image_of, np.arange(split.n_captions)]
        assert (own == 1.0).all()
    whole = data.test.relevance()
    images, captions = [5, 0, 5], [149, 3, 70, 70]
    assert np.array_equal(data.test.relevance(images, captions), whole[np.ix_(images, captions)])
    assert data.test.relevance([], [1]).shape == (0, 1)
    assert data.test.relevance([1], []).shape == (1, 0)


def test_the_wording_changes_no_token():
    table, wording = assets.read_names(), assets.read_wording()
    as_given = grammar.make_lexicon(table.names, table.keywords, {})
    written = grammar.make_lexicon(table.names, table.keywords, wording)
    assert np.array_equal(as_given.spelling, written.spelling)
    assert np.array_equal(as_given.phrases_of, written.phrases_of)
    assert as_given.phrases != written.phrases
    with pytest.raises(ValueError, match="cat"):
        grammar.make_lexicon(("dog", "cat"), ((), ()), {"dog": "cat"})


def test_changed_shipped_files_are_refused(tmp_path, monkeypatch):
    for name in (assets.SHEET, assets.TABLE, assets.SUMS):
        shutil.copy(assets.FOLDER / name, tmp_path / name)
    (tmp_path / assets.TABLE).write_text("emoji,name\n")
    monkeypatch.setattr(assets, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"not as shipped: .*concepts\.csv; install nclib again"):
        load("emoji", **FEW)
