"""The audit of pairs as a whole: what it finds, what it writes, what it refuses."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import nclib
from nclib.auditing import SCORES, Audit, Pairs, datalab, steps
from nclib.auditing.belief import believe
from nclib.auditing.exchanges import draw_queries
from nclib.auditing.neighbours import Neighbours, find_neighbours
from nclib.auditing.pairs import FOLDS, WIDTH, exchange, fold_of, from_arrays
from nclib.auditing.scores import PARTS, Context, with_random
from nclib.noise import auc


def made(n=400, wrong=80, d=32, noise=0.6, seed=0):
    """Embeddings of n pairs; the captions of the first ``wrong`` rows are exchanged in a cycle."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, d)).astype(np.float32)
    captions = (images + noise * rng.normal(size=(n, d))).astype(np.float32)
    order = np.arange(n)
    order[:wrong] = np.roll(order[:wrong], 7)
    return images, captions[order], order


@cache
def example() -> tuple[Audit, np.ndarray]:
    images, captions, order = made()
    texts = [f"caption number {i}" for i in order]
    return nclib.audit(images=images, captions=captions, texts=texts, progress=False), order


def found_for(n: int, **change: int) -> Neighbours:
    """Return neighbour lists of n pairs; those that are named hold one number."""
    images, captions, _ = made(n=n, wrong=0)
    near = find_neighbours(from_arrays(images, captions), 8, progress=False)
    return replace(near, **{name: np.full_like(getattr(near, name), one) for name, one in change.items()})


def test_neighbours_of_an_index_of_ones_own_give_the_same_audit():
    images, captions, _ = made(n=200)
    near = find_neighbours(from_arrays(images, captions), 32, progress=False)
    same = replace(near, pictures=near.pictures.astype(np.int64))
    found = nclib.audit(images=images, captions=captions, neighbours=same, progress=False)
    pd.testing.assert_frame_equal(
        found.table, nclib.audit(images=images, captions=captions, progress=False).table
    )
    assert found.settings["neighbours"] == 32


def test_curves_say_what_a_threshold_costs():
    audit, _ = example()
    curves = audit.curves
    for name in ("given", "exchanged", "near"):
        assert np.sum(curves[name] * np.diff(curves["edges"])) == pytest.approx(1)
    threshold = curves["threshold"]
    assert threshold["dropped"][0] == 400
    assert threshold["wrong_kept"][0] == 0
    p = audit.table["p_wrong"].to_numpy()
    at = int(np.argmin(np.abs(threshold["t"] - 0.5)))
    assert threshold["right_lost"][at] == pytest.approx((1 - p[p >= threshold["t"][at]]).sum())
    stated, planted, n = (np.array(x) for x in zip(*curves["reliability"], strict=True))
    assert n.sum() == 400
    assert (n * abs(stated - planted)).sum() / n.sum() < 0.04


@pytest.mark.parametrize("name", [*SCORES])
def test_every_score_finds_exchanges_with_several_captions_per_picture(name):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(120, 24)).astype(np.float32)
    image_of = np.repeat(np.arange(120), 3)
    captions = images[image_of] + 0.6 * rng.normal(size=(360, 24)).astype(np.float32)
    given = image_of.copy()
    given[:60:2] = (given[:60:2] + 31) % 120
    pairs = from_arrays(images, captions, given)
    near = find_neighbours(pairs, 32, progress=False)
    context = Context(pairs, near, with_random(pairs))
    assert auc(SCORES[name](context, np.arange(len(given)), given), given == image_of) > 0.9
    if name == "transport":
        assert nclib.audit(pairs, score=name, neighbours=near, progress=False).score == name


def test_exchanges_stay_within_a_fold_of_a_cross_fit():
    rng = np.random.default_rng(0)
    fold = rng.integers(0, FOLDS, 60)
    captions = np.zeros((60, FOLDS, WIDTH), np.float32)
    captions[np.arange(60), fold] = rng.normal(size=(60, WIDTH))
    images = rng.normal(size=(60, FOLDS * WIDTH))
    pairs = Pairs(images, captions.reshape(60, -1), np.arange(60), [str(i) for i in range(60)])
    rows = np.arange(5, 60)
    claimed = exchange(pairs, rows, rng)
    np.testing.assert_array_equal(fold_of(pairs.captions), fold)
    np.testing.assert_array_equal(np.sort(claimed), rows)
    np.testing.assert_array_equal(fold[claimed], fold[rows])
    assert (claimed != rows).all()
    assert not fold_of(images).any()  # one model made all


def test_auto_takes_the_score_that_tells_exchanged_pairs_best():
    audit, _ = example()
    measured = audit.settings["auroc_on_exchanged"]
    assert set(measured) == {*PARTS, "combined"}
    assert audit.score == max(measured, key=measured.get)


def test_the_area_of_a_score_is_that_of_given_over_exchanged_pairs():
    images, captions, _ = made()
    pairs = from_arrays(images, captions)
    near = find_neighbours(pairs, 20, progress=False)
    context = Context(pairs, near, with_random(pairs))
    scored = believe("cosine", context, draw_queries(context, np.random.default_rng(0)), 0).scored
    given, exchanged, *_ = scored.values
    above = (given[:, None] > exchanged).mean() + 0.5 * (given[:, None] == exchanged).mean()
    assert scored.auroc["cosine"] == pytest.approx(above, abs=1e-12)


def test_a_check_of_some_pairs_measures_the_calibration_of_these():
    audit, order = example()
    wrong = order != np.arange(len(order))
    found = audit.check({str(i): bool(wrong[i]) for i in range(0, 400, 2)})
    assert (found["n"], found["n_wrong"]) == (200, 40)
    p = audit.table["p_wrong"].to_numpy()[::2]
    assert found["calibration_error"] == nclib.noise.calibration(1 - p, ~wrong[::2])["ece"]


# ------------------------------------------------------------------------------------------- groups


def test_each_language_has_a_share_and_probabilities_of_its_own():
    rng, n = np.random.default_rng(1), 1200
    images = rng.normal(size=(n, 32)).astype(np.float32)
    weak = np.arange(n) % 2 == 1  # a language that the model knows less well, with more mistakes
    captions = images + np.where(weak, 1.6, 0.6)[:, None] * rng.normal(size=(n, 32)).astype(np.float32)
    wrong = rng.random(n) < np.where(weak, 0.4, 0.1)
    captions[wrong] = np.roll(captions[wrong], 2, axis=0)  # among the pairs of one language, nearly always
    language = np.where(weak, "de", "en").astype(object)
    language[600:603] = "=fr"
    of = {"images": images, "captions": captions, "score": "cosine", "progress": False}
    audit = nclib.audit(**of, by=language)
    assert audit.by["value"].tolist() == ["de", "en", "1 rarer values"]
    assert audit.by["pairs"].tolist() == [599, 598, 3]
    for value, low, high in audit.by.set_index("value")[["low", "high"]].itertuples():
        if value in ("de", "en"):
            truth = wrong[language == value].mean()
            assert low <= truth <= high
    together = nclib.audit(**of)
    errors = [
        nclib.noise.calibration(1 - found.table["p_wrong"][~weak], ~wrong[~weak])["ece"]
        for found in (audit, together)
    ]
    assert errors[0] < errors[1] / 2
    told = audit.tell({str(i): "wrong" if wrong[i] else "right" for i in range(0, 1200, 20)})
    assert told.by["value"].tolist() == audit.by["value"].tolist()
    assert told.by["low"][0] <= wrong[weak].mean() <= told.by["high"][0]


def test_rare_values_are_put_together():
    rng, n = np.random.default_rng(3), 400
    images = rng.normal(size=(n, 16))
    captions = images + 0.5 * rng.normal(size=(n, 16))
    by = [*["a rarer values"] * 150, *["b"] * 150, *map(str, range(100))]  # a name counts for nothing
    audit = nclib.audit(images=images, captions=captions, by=by, progress=False)
    assert audit.by["pairs"].tolist() == [150, 150, 100]
    assert audit.inside.table["value"].tolist() == ["a rarer values", "b", "all"]
    assert audit.inside.table["pairs"].iloc[-1] == 400  # rare values are put together by their pictures
    assert "an estimate from 400 pairs" in audit.summary()
    assert audit.share.low == 0


@cache
def catalogue(part=0.2):
    """Embeddings of six kinds of things; a part of the captions is that of another pair of the same kind."""
    rng, n = np.random.default_rng(2), 1200
    kind = rng.integers(0, 6, n)
    images = 2 * rng.normal(size=(6, 32))[kind] + rng.normal(size=(n, 32))
    captions, wrong = images + 0.7 * rng.normal(size=(n, 32)), np.zeros(n, bool)
    for value in range(6):
        rows = np.flatnonzero(kind == value)[: round(part * (kind == value).sum())]
        captions[rows], wrong[rows] = np.roll(captions[rows], 1, axis=0), len(rows) > 0
    return images, captions, kind, wrong


def test_mistakes_within_a_value_count_where_its_column_is_named():
    images, captions, kind, wrong = catalogue()
    audit = nclib.audit(images, captions, by=kind, progress=False)
    assert audit.share.low <= wrong.mean() <= audit.share.high
    assert audit.inside.share.value == pytest.approx(wrong.mean(), abs=0.06)
    assert audit.inside.beyond
    assert wrong[audit.kept].mean() < 0.05
    assert (~audit.kept[~wrong]).mean() < 0.05
    assert audit.check(wrong)["auroc"] > 0.9
    assert audit.belief.by_value_only[wrong].mean() > 0.5
    assert len(repr(audit)) < 100
    assert "no better than another caption of the same value" in audit.summary()
    told = audit.tell({name: "wrong" if wrong[int(name)] else "right" for name in audit.ask(60)["id"]})
    assert told.share.low <= wrong.mean() <= told.share.high
    assert told.inside is audit.inside


def test_clean_values_lose_nearly_nothing():
    images, captions, kind, _ = catalogue(0.0)
    audit = nclib.audit(images, captions, by=kind, progress=False)
    assert audit.share.low == 0
    assert not audit.inside.beyond
    assert audit.kept.mean() > 0.98


@pytest.mark.parametrize("score", ["auto", "standardised"])
def test_without_a_column_the_share_with_mistakes_among_similar_pictures_has_a_bound(score):
    images, captions, _, wrong = catalogue()
    audit = nclib.audit(images, captions, score=score, progress=False)
    assert audit.inside is None
    assert audit.ask_first
    assert audit.share.high < wrong.mean() < audit.blind_spot.most < 3 * wrong.mean()
    assert f"at most {audit.blind_spot.most:.0%}" in audit.summary()
    told = audit.tell({name: "wrong" if wrong[int(name)] else "right" for name in audit.ask(60)["id"]})
    assert told.blind_spot.most is None  # marks say how many there are


def test_what_sets_a_pair_apart_from_similar_pictures_ranks_mistakes_among_them():
    rng, n, kinds = np.random.default_rng(2), 1200, 40
    kind = rng.integers(0, kinds, n)
    images = 2 * rng.normal(size=(kinds, 32))[kind] + 0.7 * rng.normal(size=(n, 32))
    captions, wrong = images + 0.84 * rng.normal(size=(n, 32)), np.zeros(n, bool)
    for value in range(kinds):
        rows = np.flatnonzero(kind == value)
        rows = rows[: round(0.2 * len(rows))]
        captions[rows], wrong[rows] = np.roll(captions[rows], 1, axis=0), len(rows) > 1
    by_one, found = (
        nclib.audit(images, captions, score=score, progress=False) for score in ("cosine", "auto")
    )
    assert found.score == "combined"
    assert found.check(wrong)["auroc"] > by_one.check(wrong)["auroc"] + 0.02
    assert found.check(wrong)["average_precision"] > by_one.check(wrong)["average_precision"] + 0.05
    assert found.share.high < wrong.mean() < found.blind_spot.most < by_one.blind_spot.most


def test_clean_pairs_have_a_low_bound():
    images, captions, _, _ = catalogue(0.0)
    assert nclib.audit(images, captions, progress=False).blind_spot.most < 0.1


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("language", "by='language': the pairs have no columns of their own"),
        (np.arange(40), "by='by': none of its 40 values has 50 pairs"),
        (["a"] * 39, r"by must have 40 \(pairs\) rows, got 39"),
    ],
)
def test_groups_that_cannot_be_are_refused(by, message):
    images, captions, _ = made(n=40, wrong=0)
    with pytest.raises(ValueError, match=message):
        nclib.audit(images=images, captions=captions, by=by, progress=False)


# ------------------------------------------------------------------------------------------- other files


@pytest.mark.parametrize("part", [0.0, 0.05, 0.4])
def test_the_next_shard_is_judged_by_the_calibration_of_the_last(part):
    rng, n = np.random.default_rng(4), 1500
    images = rng.normal(size=(2 * n, 32))
    captions = images + 1.5 * rng.normal(size=(2 * n, 32))
    captions[:300] = np.roll(captions[:300], 1, axis=0)
    wrong = np.arange(n) < part * n
    captions[n:][wrong] = np.roll(captions[n:][wrong], 1, axis=0)
    captions[-1] = np.nan
    audit = nclib.audit(images[:n], captions[:n], progress=False)
    judged = audit.judge(images[n:], captions[n:])
    assert judged.share.low <= wrong.mean() <= judged.share.high
    assert judged.share.value == pytest.approx(wrong.mean(), abs=0.02)
    p = judged.table["p_wrong"].to_numpy()
    assert np.isnan(p[-1])
    assert nclib.noise.calibration(1 - p[:-1], ~wrong[:-1])["ece"] < 0.02
    assert judged.table[["p_low", "p_high"]].agg(["min", "max"]).stack().between(0, 1).all()
    # As they are, the odds are those of the audited share; a pair does not depend on the others.
    as_before = audit.judge(images[n:], captions[n:], adapt=False)
    assert as_before.share == audit.belief.carried.share
    alone = audit.judge(images[n : n + 3], captions[n : n + 3], ids=["a", "b", "c"])
    pd.testing.assert_frame_equal(alone.table.drop(columns="id"), as_before.table[:3].drop(columns="id"))


def test_what_cannot_be_judged_is_refused():
    images, captions, _ = made(n=60, wrong=0)
    audit = nclib.audit(images, captions, progress=False)
    with pytest.raises(ValueError, match=r"images must be floating numbers \(rows, 32\)"):
        audit.judge(np.eye(3), np.eye(3))
    with pytest.raises(ValueError, match="too few pairs for a probability"):
        nclib.audit(images[:9], captions[:9], progress=False).judge(images, captions)
    halves = np.zeros((60, FOLDS * WIDTH), np.float32)
    halves[::2, :WIDTH], halves[1::2, WIDTH:] = 1, 1
    halves *= np.random.default_rng(0).normal(size=halves.shape)
    with pytest.raises(ValueError, match="fitted a model to its own pairs"):
        nclib.audit(halves, halves, progress=False).judge(halves, halves)


# ------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("ends", ["id;label;new_caption\r\n", "\ufeffID,Label,new_caption\n"])
def test_marks_come_back_from_a_spreadsheet_with_edited_captions(tmp_path, ends):
    audit, _ = example()
    mark = ";" if ";" in ends else ","
    rows = [["7", "wrong", "'-a  new  Käse"], ["300", "", "typo"], ["301", "right", ""]]
    text = ends + "".join(f"{mark.join(row)}\n" for row in rows)
    (tmp_path / "checked.csv").write_bytes(text.encode("utf8" if "\ufeff" in ends else "cp1252"))
    told = audit.tell(tmp_path / "checked.csv")
    assert told.labels == {"7": "wrong", "301": "right"}
    assert told.edits == {"7": "-a new Käse", "300": "typo"}
    assert told.table["new_caption"][[7, 300, 301]].tolist() == ["-a new Käse", "typo", ""]
    assert told.table["p_wrong"][[7, 301]].tolist() == [1, 0]
    assert told.tell({"8": "wrong"}).edits == told.edits
    pd.testing.assert_frame_equal(audit.tell({"9": "unsure"}).table, audit.table)
    with pytest.raises(ValueError, match="of no pair here, the first: 'x'"):
        audit.tell(pd.DataFrame({"id": ["x"], "label": [""], "new_caption": ["new"]}))


# ------------------------------------------------------------------------------------------- files


def test_kept_data_have_edited_captions_and_their_own_columns(tmp_path):
    images, captions, order = made(n=100, wrong=20)
    names = [str(tmp_path / f"{i // 2}.png") for i in range(0, 200, 2)]
    for i, name in enumerate(names):
        if i != 70:
            Image.new("RGB", (5, 4), (i, 0, 0)).save(name)
    ids, texts = [f"id {i}" for i in range(100)], [f"number {i}" for i in order]
    own = pd.DataFrame({"language": ["de", "en"] * 50, "score": range(100)})
    pairs = Pairs(images, captions, np.arange(100), ids, texts, names, columns=own)
    audit = nclib.audit(pairs, progress=False)
    assert audit.table["given_score"].tolist() == list(range(100))
    marks = pd.DataFrame({"id": ["id 3", "id 4"], "label": ["wrong", "wrong"], "new_caption": ["mine", ""]})
    audit = audit.tell(marks)
    table = pd.read_parquet(audit.keep(tmp_path / "out"))
    assert list(table) == ["id", "image", "caption", "language", "given_score", "p_wrong"]
    assert table["caption"][table["id"] == "id 3"].tolist() == ["mine"]
    assert "id 4" not in set(table["id"])
    dropped = set(np.flatnonzero(audit.table["p_wrong"] >= 0.5)) - {3}
    assert set(table["id"]) == {f"id {i}" for i in range(100) if i not in dropped}


class Dataset(dict):
    """Stands in for ``datasets.Dataset``: columns of text by name, rows by number."""

    @property
    def features(self):
        return {name: SimpleNamespace(dtype="string") for name in self}

    @property
    def column_names(self):
        return list(self)

    def __len__(self):
        return len(self["id"])

    def select(self, rows):
        return Dataset({name: [values[row] for row in rows] for name, values in self.items()})

    def add_column(self, name, values):
        return Dataset(self | {name: values})

    def remove_columns(self, name):
        return Dataset({one: values for one, values in self.items() if one != name})


def test_rows_are_selected_from_the_data_set_that_was_audited_only():
    audit, order = example()
    given = Dataset(id=list(audit.pairs.ids), beschreibung=[f"caption  number {i}" for i in order])
    chosen = audit.tell({"7": "right"}).select(given)
    assert chosen["id"] == [
        name for name, kept in zip(given["id"], audit.kept, strict=True) if kept or name == "7"
    ]
    with pytest.raises(ValueError, match="not the pairs that were audited, in their order"):
        audit.select(given.select(range(399, -1, -1)))
    with pytest.raises(TypeError, match=r"select needs a data set .* got a DataFrame"):
        audit.select(audit.table)


def test_hexadecimal_ids_are_saved_in_the_layout_of_datacomp(tmp_path):
    images, captions, _ = made(n=60, wrong=0)
    ids = [f"{i:032x}" for i in range(60)][::-1]
    audit = nclib.audit(images=images, captions=captions, ids=ids, progress=False)
    kept = np.load(audit.keep(tmp_path, "ids"))
    assert kept.dtype == np.dtype("u8,u8")
    assert (np.sort(kept) == kept).all()


# --------------------------------------------------------------------------------------- bad input


def test_the_issue_type_of_cleanlab_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    with pytest.raises(
        ImportError, match=r"image_caption needs cleanlab: pip install 'noisy-correspondence\[datalab\]'"
    ):
        datalab.register()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.eye(20, 32)}, r"give image_of.*// 2"),
        ({"images": "missing.npy"}, "there is no file missing.npy"),
        ({"images": None}, "give images= and captions="),
        ({"captions": np.ones((40, 5))}, "32 numbers per row and captions 5"),
        ({"captions": np.full((40, 32), np.nan)}, "none of the 40 pairs can be judged.*NaN"),
        ({"image_of": np.arange(40) + 1}, r"image_of, .* must lie in 0\.\.39, got 40 at place 39"),
        ({"image_of": np.arange(39)}, "the picture row of each caption, must be whole"),
        ({"ids": ["a"] * 40}, "'a' occurs 40 times"),
        ({"ids": ["a\u2028b", *range(39)]}, r"ids must be one line of text each.*'a\\u2028b' is not"),
        ({"image_of": np.zeros(40, int)}, "all 40 pairs claim one and the same picture"),
        ({"texts": ["a"]}, r"texts must have 40 \(captions\) rows, got 1"),
        ({"texts": [*"a" * 39, ["b", "c"]]}, r"texts\[39\] is a list; give one text for each pair"),
        ({"pictures": ["a", "b\ud800", *"c" * 38]}, r"pictures\[1\] is .* holds half a character"),
        ({"score": "cosin"}, "cosine"),
        ({"seed": -1}, "seed=-1: must be a whole number, at least 0"),
        ({"neighbours": "8"}, "neighbours='8': must be a whole number, at least 1"),
        ({"one_to_one": "no"}, "one_to_one='no': must be True or False"),
        (
            {"neighbours": found_for(39)},
            r"neighbours\.pictures must be whole numbers \(40, k\), got int32 \(39",
        ),
        ({"neighbours": found_for(40, pictures=40)}, r"neighbours\.pictures must lie in -1\.\.39"),
        ({"neighbours": found_for(40, similar_captions=3)}, "similar_captions: an item is in its own list"),
        ({"labels": {"3": "bad"}}, "must be one of wrong, right, unsure"),
        ({"labels": {"x": "wrong"}}, "of no pair here, the first: 'x'"),
        ({"labels": pd.DataFrame({"id": ["1"]})}, "missing: label"),
        ({"labels": ["3"]}, "labels must be a DataFrame, the path of a CSV or a mapping, got a list"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    images, captions, _ = made(n=40, wrong=0)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        nclib.audit(**{"images": images, "captions": captions, "progress": False, **change})


def test_rows_that_cannot_be_judged_have_a_reason_and_come_last(tmp_path):
    images, captions, _ = made(n=100, wrong=0)
    captions[4, 3], images[7], captions[9] = np.nan, 0, np.inf
    images[11], captions[13] = 3e38, 1e-22  # float32 holds the numbers, and not their squares
    audit = nclib.audit(images=images, captions=captions, progress=False)
    table = audit.table
    assert table["p_wrong"].isna().sum() == 5
    assert table["reason"][[4, 7, 9, 11, 13]].tolist() == [
        "caption embedding is NaN",
        "picture embedding is zero",
        "caption embedding is infinite",
        "picture embedding is of numbers up to 3e+38, too large or too small to be squared",
        "caption embedding is of numbers up to 1e-22, too large or too small to be squared",
    ]
    assert sorted(table["rank"][[4, 7, 9, 11, 13]]) == [96, 97, 98, 99, 100]
    assert not {"4", "7", "9"} & set(audit.keep(tmp_path, "txt").read_text().split())


@pytest.mark.parametrize("n", [1, 2, 19])
def test_few_pairs_give_a_reason_in_place_of_a_probability(n, tmp_path):
    images, captions, _ = made(n=n, wrong=0)
    audit = nclib.audit(images=images, captions=captions, progress=False)
    assert audit.table["reason"][0] == f"too few pairs for a probability ({n}; at least 20)"
    assert (audit.table["p_low"] == 0).all()
    assert "No probabilities" in audit.assumption
    assert len(audit.keep(tmp_path, "txt").read_text().split()) == n
    assert audit.check(np.zeros(n, bool))["auroc"] is None
    assert len(audit.ask(5)) == min(5, n)


@pytest.mark.parametrize(
    "one", [np.ones(8), np.random.default_rng(50).normal(size=32)], ids=["equal", "rounded"]
)
def test_all_duplicates_give_a_reason(one):
    one = np.tile(one.astype(np.float32), (50, 1))
    audit = nclib.audit(images=one, captions=one, progress=False)
    assert set(audit.table["reason"]) == {"the scores are constant, so they say nothing"}
    assert (audit.table["image_duplicate_of"] != "").sum() == 49


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lables": {}}, "lables= is not an option .*; did you mean 'labels'"),
        ({"image_off": np.arange(40)}, "image_off= is not an option .*; did you mean 'image_of'"),
        ({"encoding": "utf8"}, "encoding=: not read beside arrays"),
    ],
)
def test_a_keyword_that_nothing_reads_is_an_error(given, message):
    images, captions, _ = made(n=40, wrong=0)
    with pytest.raises(TypeError, match=message):
        nclib.audit(images=images, captions=captions, progress=False, **given)
    with pytest.raises(TypeError, match="ids=: not read beside a source"):
        nclib.audit(from_arrays(images, captions), ids=range(40))


def test_two_arrays_may_stand_first():
    images, captions, _ = made(n=100)
    first, named = nclib.audit(images, captions), nclib.audit(images=images, captions=captions)
    pd.testing.assert_frame_equal(first.table, named.table)


def test_a_first_answer_comes_before_the_neighbours(monkeypatch, capsys):
    monkeypatch.setattr(steps, "SOON", 400)
    images, captions, _ = made(n=400, wrong=80)
    audit = nclib.audit(images, captions)
    said = capsys.readouterr().err
    value = float(re.search(r"first answer: ([\d.]+)%", said)[1]) / 100
    assert value == pytest.approx(0.2, abs=0.03)
    monkeypatch.setattr(steps, "SOON", 401)
    pd.testing.assert_frame_equal(nclib.audit(images, captions).table, audit.table)
    assert "first answer" not in capsys.readouterr().err


def test_all_wrong_is_seen():
    rng = np.random.default_rng(0)
    images, captions = rng.normal(size=(2, 500, 32))
    share = nclib.audit(images=images, captions=captions, progress=False).share
    assert share.value > 0.7
    assert share.high > 0.9


@pytest.mark.parametrize("together", [False, True])
def test_siblings_count_where_captions_are_wrong_one_by_one(together):
    rng = np.random.default_rng(1)
    images = rng.normal(size=(200, 24)).astype(np.float32)
    image_of = np.repeat(np.arange(200), 3)
    captions = images[image_of] + 1.5 * rng.normal(size=(600, 24)).astype(np.float32)
    given = image_of.copy()
    rows = np.flatnonzero(image_of < 60) if together else rng.permutation(600)[:180]
    given[rows] = np.roll(given[rows], 3)  # all captions of a picture, or single ones
    audit = nclib.audit(images=images, captions=captions, image_of=given, progress=False)
    assert ("siblings" in audit.settings["auroc_on_exchanged"]) == (not together)
    assert audit.check(given != image_of)["auroc"] > 0.9
    assert audit.share.value == pytest.approx((given != image_of).mean(), abs=0.1)
