"""The bundled set: loading, splits, determinism, cache, labels, ground truth."""

import itertools
import shutil
import time

import numpy as np
import pytest

from nclib.data import load
from nclib.data.emoji import assets, compose, generate, grammar
from nclib.data.emoji.pairs import SIZES

FEW = {"n_train": 60, "n_val": 10, "n_test": 30}
OPTIONS = {**FEW, "regions": 12, "variant": "standard", "seed": 0}


@pytest.fixture(scope="module")
def data():
    return load("emoji", **FEW)


@pytest.fixture(scope="module")
def holdout():
    return load("emoji", variant="holdout", **FEW)


def test_shapes_and_names(data):
    assert [s.n_images for s in data.splits.values()] == [60, 10, 30]
    assert (data.n_regions, data.feature_dim, data.train.captions_per_image) == (12, 196, 5)
    assert SIZES == {"small": 4000, "medium": 10000, "default": 16000}
    assert len(data.details["concepts"]) == 200
    assert "CC-BY-4.0" in data.licence


def test_it_loads_from_the_cache_in_no_time(data):
    start = time.process_time()
    again = load("emoji", **FEW)
    assert time.process_time() - start < 0.3
    assert again.checksum == data.checksum
    assert isinstance(again.train.images, np.memmap)


@pytest.mark.slow
def test_same_seed_same_data_in_another_cache(data, tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path))
    again = load("emoji", **FEW)
    assert again.checksum == data.checksum
    for key, split in data.splits.items():
        assert np.array_equal(split.images, again.splits[key].images)
        assert np.array_equal(split.boxes, again.splits[key].boxes)
        assert np.array_equal(split.captions.tokens, again.splits[key].captions.tokens)


@pytest.mark.slow
def test_another_seed_gives_other_scenes_of_the_same_words(data):
    other = load("emoji", seed=1, **FEW)
    assert other.checksum != data.checksum
    assert other.vocabulary == data.vocabulary
    assert not np.array_equal(other.test.details["scenes"], data.test.details["scenes"])


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


def test_fewer_regions_are_a_prefix(data):
    more = load("emoji", regions=36, **FEW)
    assert more.n_regions == 36
    assert np.array_equal(more.test.images[:, :12], data.test.images)
    assert np.array_equal(more.test.boxes[:, :12], data.test.boxes)


def test_holdout_really_holds_out(data, holdout):
    held = compose.held_out(200, 0)

    def drawn(split):
        scenes = split.details["scenes"]
        there = scenes["size"] > 0
        return scenes["concept"][there], scenes["designer"][there]

    for name in ("train", "val"):
        concept, designer = drawn(holdout.splits[name])
        assert not (designer == held[concept]).any()
        assert len(np.unique(designer)) == 3
    concept, designer = drawn(holdout.test)
    assert (designer == held[concept]).all()
    concept, designer = drawn(data.test)
    assert 0 < (designer == held[concept]).mean() < 0.7
    # the same scenes otherwise
    assert np.array_equal(holdout.test.captions.tokens, data.test.captions.tokens)
    assert np.array_equal(holdout.test.boxes, data.test.boxes)


def test_captions_are_whole_and_all_words_are_known(data):
    for split in data.splits.values():
        tokens, offsets = split.captions.tokens, split.captions.offsets
        assert (tokens[offsets[:-1]] == 1).all()
        assert (tokens[offsets[1:] - 1] == 2).all()
        assert (tokens != 3).all()
        assert (tokens > 0).all()
        assert split.captions.lengths.min() >= 2 + 5  # two things with their articles, and a join
    assert 450 <= data.vocabulary.size <= 550
    caption = data.train.captions.text(0)
    assert data.vocabulary.encode(caption).tolist() == data.train.captions.ids(0).tolist()


def test_facts_say_what_the_caption_says(data):
    phrases, tints = data.details["phrases"], data.details["tints"]
    wordings = {"left": ["left of"], "right": ["right of"], "above": ["above", "over"]}
    wordings |= {"below": ["below", "under"], "beside": ["beside"]}
    for split in (data.val, data.test):
        for i, fact in enumerate(split.details["facts"]):
            rest = f" {split.captions.text(i)} "
            told = [p for p in fact["phrase"] if p >= 0]
            assert len(told) >= grammar.LEAST
            for q, phrase in enumerate(told):
                if q:
                    relation = fact["relation"][q - 1]
                    joins = ["and", "with"] if relation < 0 else wordings[data.details["relations"][relation]]
                    join = next(j for j in joins if rest.startswith(f" {j} "))
                    rest = rest[len(join) + 1 :]
                article = next(a for a in (" a ", " an ") if rest.startswith(a))
                rest = rest[len(article) - 1 :]
                assert rest.startswith(f" {phrases[phrase]} ")
                rest = rest[len(phrases[phrase]) + 1 :]
            assert rest.strip() == ("" if fact["tint"] < 0 else f"on {tints[fact['tint']]}")


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


def test_labels_are_of_the_largest_object(data):
    table = assets.read_names()
    test = data.test
    assert list(test.label_sets) == ["group", "class", "subgroup"]
    assert test.labels is test.label_sets["group"]
    for i, scene in enumerate(test.details["scenes"]):
        main = scene["concept"][np.argmax(scene["size"])]
        for key, names in data.label_names.items():
            assert names[test.label_sets[key][i]] == table.label_names[key][table.labels[key][main]]


def test_classes_are_balanced_and_nested():
    table = assets.read_names()
    group, ten, subgroup = (table.labels[key] for key in ("group", "class", "subgroup"))
    assert np.bincount(group).tolist() == [40] * 5
    assert np.bincount(ten).tolist() == [20] * 10
    assert np.bincount(subgroup).min() >= 2
    assert 38 <= len(table.label_names["subgroup"]) <= 46
    for fine, coarse in ((ten, group), (subgroup, ten)):
        assert all(len(np.unique(coarse[fine == c])) == 1 for c in np.unique(fine))


def test_concept_names_are_distinct_and_plain():
    table = assets.read_names()
    assert len(set(table.names)) == 200
    for phrase in (*table.names, *(k for group in table.keywords for k in group)):
        assert 1 <= len(phrase.split()) <= 2
        assert phrase.replace(" ", "").isalpha()
        assert phrase.isascii()


def test_what_follows_an_article_is_one_thing(data):
    """Only these ends of a word in s are of one thing; an article agrees with the sound of the next word."""
    singular = {"bus", "citrus", "lotus", "rhinoceros"}
    table, wording = assets.read_names(), assets.read_wording()
    given = set(" ".join(phrase for own in (table.names, *table.keywords) for phrase in own).split())
    assert set(wording) <= given
    assert not set(wording.values()) & given
    for phrase in data.details["phrases"]:
        word = phrase.split()[-1]
        assert not word.endswith("s") or word.endswith("ss") or word in singular, phrase
    for caption in map(data.train.captions.text, range(200)):
        words = caption.split()
        for article, word in itertools.pairwise(words):
            if article in grammar.ARTICLES:
                assert (article == "an") == (word[0] in "aeiou"), caption


def test_the_wording_changes_no_token():
    table, wording = assets.read_names(), assets.read_wording()
    as_given = grammar.make_lexicon(table.names, table.keywords, {})
    written = grammar.make_lexicon(table.names, table.keywords, wording)
    assert np.array_equal(as_given.spelling, written.spelling)
    assert np.array_equal(as_given.phrases_of, written.phrases_of)
    assert as_given.phrases != written.phrases
    with pytest.raises(ValueError, match="cat"):
        grammar.make_lexicon(("dog", "cat"), ((), ()), {"dog": "cat"})


def test_a_damaged_cache_is_rebuilt(data, cache):
    folder = cache / "emoji" / generate.cache_key(OPTIONS)
    images = folder / "test_images.npy"
    before = images.read_bytes()
    content = bytearray(before)
    content[-9] ^= 1
    images.write_bytes(bytes(content))
    again = load("emoji", **FEW)
    assert again.checksum == data.checksum
    assert images.read_bytes() == before


def test_the_key_follows_options_files_and_recipe(monkeypatch):
    key = generate.cache_key(OPTIONS)
    assert generate.cache_key({**OPTIONS, "regions": 36}) != key
    for module, name, value in (
        (assets, "asset_bytes", lambda: {"drawings.png": b"other"}),
        (generate, "RECIPE", generate.RECIPE + 1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert generate.cache_key(OPTIONS) != key
    assert generate.cache_key(OPTIONS) == key


def test_a_comment_in_the_code_leaves_the_key_as_it_is(tmp_path, monkeypatch):
    key = generate.cache_key(OPTIONS)
    code = tmp_path / "compose.py"
    code.write_text("# a comment\n")
    monkeypatch.setattr(compose, "__file__", str(code))
    assert generate.cache_key(OPTIONS) == key


def test_changed_shipped_files_are_refused(tmp_path, monkeypatch):
    for name in (assets.SHEET, assets.TABLE, assets.SUMS):
        shutil.copy(assets.FOLDER / name, tmp_path / name)
    (tmp_path / assets.TABLE).write_text("emoji,name\n")
    monkeypatch.setattr(assets, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"not as shipped: .*concepts\.csv; install nclib again"):
        load("emoji", **FEW)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"size": "huge"}, ValueError, "size='huge': must be one of 'small', 'medium', 'default'"),
        ({"variant": "hold-out"}, ValueError, "variant='hold-out': must be one of 'standard', 'holdout'"),
        ({"regions": 3}, ValueError, "must be a whole number, at least 4 and at most 36"),
        ({"regions": 37}, ValueError, "must be a whole number, at least 4 and at most 36"),
        ({"regions": 12.0}, ValueError, "regions=12.0: must be a whole"),
        ({"n_test": 0}, ValueError, "n_test"),
        ({"seed": -1}, ValueError, "seed"),
        ({"region": 12}, TypeError, "did you mean 'regions'"),
    ],
)
def test_bad_options_stop_before_work(options, error, words, tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "unused"))
    with pytest.raises(error, match=words):
        load("emoji", **options)
    assert not (tmp_path / "unused").exists()
