"""Mistakes that people make: the share, the list to keep, and what the audit says of them."""

from __future__ import annotations

import numpy as np
import pytest

import nclib
from nclib.auditing import SCORES
from nclib.auditing.neighbours import find_neighbours
from nclib.auditing.pairs import exchange, from_arrays
from nclib.auditing.scores import Context, with_random
from nclib.noise import auc

N, D = 900, 48


def right(seed=0, n=N, per=1, noise=1.6):
    """Embeddings of right pairs in 60 topics, their pictures, and texts."""
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(60, D))
    images = topics[rng.integers(0, 60, n // per)] + 0.8 * rng.normal(size=(n // per, D)) + 0.5
    image_of = np.repeat(np.arange(n // per), per)
    captions = images[image_of] + noise * rng.normal(size=(n, D))
    texts = [f"caption number {i}" for i in range(n)]
    return images.astype(np.float32), captions.astype(np.float32), image_of, texts, rng


def audited(images, captions, image_of, texts, **options):
    options = {"progress": False, **options}
    return nclib.audit(images=images, captions=captions, image_of=image_of, texts=texts, **options)


def stock(share, phrases=3):
    """Audit pairs of which a share has one of some stock phrases; return it and which pairs are wrong."""
    images, captions, image_of, texts, rng = right()
    rows = rng.permutation(N)[: round(share * N)]
    which = rng.integers(0, phrases, len(rows))
    captions[rows] = captions.mean(0) + 0.7 * rng.normal(size=(phrases, D)).astype(np.float32)[which]
    for row, phrase in zip(rows, which, strict=True):
        texts[row] = f"No description available, {phrase}"
    return audited(images, captions, image_of, texts), np.isin(np.arange(N), rows)


def check(audit, wrong, within=0.03):
    share = audit.share
    assert share.low <= wrong.mean() <= share.high
    assert share.value == pytest.approx(wrong.mean(), abs=within)
    called = audit.table["p_wrong"].to_numpy() >= 0.5
    assert called[wrong].mean() > 0.75
    assert called[~wrong].mean() < 0.06


def test_stock_phrases_are_wrong_and_a_finding(tmp_path):
    audit, wrong = stock(0.25)
    check(audit, wrong, within=0.02)
    kept = np.array(audit.keep(tmp_path, "txt").read_text().split(), int)
    assert wrong[kept].sum() <= 0.02 * wrong.sum()
    assert audit.findings[0].startswith(
        "3 captions stand on 5 pictures or more each. The first: 1 caption stands"
    )
    repeats = audit.repeats
    assert (repeats["kind"] == "caption").all()
    assert repeats["times"].sum() == wrong.sum()
    assert (repeats["wrong"] > 0.9).all()
    assert audit.table["reason"][wrong].str.contains("stands on").any()


@pytest.mark.exhaustive
def test_a_placeholder_picture_is_wrong_and_a_finding():
    images, captions, image_of, texts, rng = right()
    rows = rng.permutation(N)[: N // 8]
    images[rows] = images.mean(0) + 0.5 * rng.normal(size=D)
    audit = audited(images, captions, image_of, texts, pictures=[f"{i}.jpg" for i in range(N)])
    check(audit, np.isin(np.arange(N), rows))
    assert f'1 picture has {len(rows)} captions: "{rows.min()}.jpg"' in audit.findings[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["templates whose captions differ", "captions at the mean of the others"])
def test_captions_that_say_nothing_are_wrong(kind):
    images, captions, image_of, texts, rng = right()
    rows = rng.permutation(N)[: N // 4]
    if kind.startswith("templates"):
        captions[rows] = captions.mean(0) + 0.7 * rng.normal(size=D) + 0.1 * rng.normal(size=(len(rows), D))
    else:
        captions[rows] = np.delete(captions, rows, axis=0).mean(0)
    check(audited(images, captions, image_of, texts), np.isin(np.arange(N), rows))


def test_pairs_that_are_stored_three_times_do_not_vouch_for_each_other():
    images, captions, true, texts, rng = right(n=500)
    of = true.copy()
    rows = rng.permutation(500)[:100]
    of[rows] = true[np.roll(rows, 1)]
    order = rng.permutation(1500) % 500
    images = np.tile(images, (3, 1))
    copy = np.zeros(500, int)
    claimed = np.empty(1500, int)
    for place, row in enumerate(order):
        claimed[place] = of[row] + 500 * copy[row]
        copy[row] += 1
    audit = audited(images, captions[order], claimed, [texts[row] for row in order])
    check(audit, (of != true)[order])
    assert audit.findings == [
        "1,000 pairs repeat picture and caption of an earlier pair; copies count as one."
    ]


def test_class_names_as_captions_may_be_right():
    rng = np.random.default_rng(0)
    names = rng.normal(size=(20, D))
    images, own = names[rng.integers(0, 20, N)], rng.integers(0, 20, N)
    images = (names[own] + 0.8 * rng.normal(size=(N, D))).astype(np.float32)
    said = own.copy()
    rows = rng.permutation(N)[: N // 5]
    said[rows] = (own[rows] + rng.integers(1, 20, len(rows))) % 20
    audit = audited(images, names[said].astype(np.float32), np.arange(N), [f"class {k}" for k in said])
    check(audit, said != own, within=0.02)


def test_pictures_with_all_captions_of_another_are_not_confirmed_by_them():
    images, captions, true, texts, rng = right(1, n=2000, per=5)
    pictures = rng.permutation(400)[:20]
    of = np.arange(400)
    of[pictures] = np.roll(pictures, 1)
    of = of[true]
    audit = audited(images, captions, of, texts)
    (warning,) = audit.warnings
    assert warning.startswith("Two estimates of the share of wrong pairs contradict each other: ")
    assert audit.ask_first
    assert audit.share.low <= 0.05 <= audit.share.high
    assert audit.check(of != true)["auroc"] > 0.95


def test_exchanges_at_random_raise_no_warning():
    images, captions, true, texts, rng = right()
    rows = rng.permutation(N)[: N // 5]
    of = true.copy()
    of[rows] = true[np.roll(rows, 1)]
    audit = audited(images, captions, of, texts)
    check(audit, of != true)
    assert (audit.warnings, audit.findings, audit.ask_first) == ([], [], False)
    assert audit.second_share.meets(audit.share)


def test_a_pair_does_not_vouch_for_itself():
    """Where no caption belongs to its picture, given pairs score as exchanged ones do."""
    rng, above = np.random.default_rng(3), []
    for _ in range(40):
        images, captions = rng.normal(size=(30, 24)), rng.normal(size=(60, 24))
        pairs = from_arrays(images.astype(np.float32), captions.astype(np.float32), np.arange(60) // 2)
        context = Context(pairs, find_neighbours(pairs, 8, progress=False), with_random(pairs))
        rows = np.arange(60)
        of = np.concatenate([pairs.image_of, exchange(pairs, rows, rng)])
        above.append(auc(SCORES["siblings"](context, np.tile(rows, 2), of), np.repeat([True, False], 60)))
    assert np.mean(above) == pytest.approx(0.5, abs=0.03)


def in_order(seed=0):
    """Embeddings of a catalogue in order: neighbouring rows show nearly the same thing."""
    rng = np.random.default_rng(seed)
    images = np.repeat(rng.normal(size=(N // 9, D)), 9, axis=0) + 0.5 * rng.normal(size=(N, D))
    captions = images + 0.7 * rng.normal(size=(N, D))
    return images.astype(np.float32), captions.astype(np.float32), np.arange(N), np.arange(N)


@pytest.mark.parametrize("by", [1, -4, None], ids=["a run moved by one row", "by four", "blocks exchanged"])
def test_order_is_evidence(by):
    images, captions, image_of, source = in_order()
    if by is not None:
        source[300:400] = np.roll(source[300:400], by)
    else:
        source[200:240], source[600:640] = source[600:640].copy(), source[200:240].copy()
    texts = [f"number {i}" for i in source]
    audit = audited(images, captions[source], image_of, texts)
    wrong = source != image_of
    assert audit.belief.shifted[wrong].mean() > 0.9
    assert audit.belief.shifted[~wrong].mean() < 0.02
    assert audit.table["p_wrong"][wrong].gt(0.5).mean() > 0.9
    assert not audit.kept[audit.belief.shifted].any()
    assert audit.share.low <= wrong.mean() <= audit.share.high
    assert f"lie in a run that is moved by {-by if by else 400:+d} row" in audit.summary()
    told = audit.tell({"0": "right"})  # marks do not take it back
    assert not told.kept[told.belief.shifted].any()


def test_a_catalogue_in_order_has_no_runs():
    for seed in range(5):
        images, captions, image_of, source = in_order(seed)
        texts, vague, rng = [f"number {i}" for i in source], captions.copy(), np.random.default_rng(seed)
        vague[300:500] += 1.5 * rng.normal(size=(200, D))  # captions that fit neighbours as well
        for start in range(0, N, 9):  # half of a series exchanged within it
            rows = start + rng.permutation(9)[:4]
            source[rows] = np.roll(source[rows], 1)
        for given in (captions, vague, captions[source]):
            assert not audited(images, given, image_of, texts).belief.shifted.any()


def test_of_a_run_moved_by_one_row_among_five_captions_the_moved_rows_are_wrong():
    images, captions, true, texts, _ = right(1, n=2000, per=5)
    given = true.copy()
    given[400:901] = true[401:902]  # the last caption of each picture stands on the next
    shifted = audited(images, captions, given, texts).belief.shifted
    assert shifted[given != true].mean() > 0.9
    assert shifted[given == true].mean() < 0.01


def test_five_captions_of_a_picture_are_one_sign_of_order():
    for seed in range(3):
        images, captions, true, texts, rng = right(seed, n=2000, per=5)
        like = np.arange(0, 395, 5)  # pictures like the next, whose shared error fits five captions there
        error = 0.9 * rng.normal(size=(len(like), D)).astype(np.float32)
        images[like + 1] = images[like] + error
        captions.reshape(400, 5, D)[like] += error[:, None] * rng.uniform(0, 1.2, (len(like), 1, 1))
        assert not audited(images, captions.astype(np.float32), true, texts).belief.shifted.any()
        images, captions, true, texts, _ = right(seed, n=2000, per=5)
        moved = true.copy()
        moved[500:800] = true[500:800] + 1
        shifted = audited(images, captions, moved, texts).belief.shifted
        assert shifted[500:800].mean() > 0.9
        assert not shifted[:480].any()
        assert not shifted[820:].any()


def test_the_blind_spot_is_measured_and_called_a_lower_bound():
    rng, image_of, texts = np.random.default_rng(0), np.arange(N), [f"number {i}" for i in range(N)]
    images = rng.normal(size=(N, D)).astype(np.float32)
    captions = images + 0.5 * rng.normal(size=(N, D)).astype(np.float32)
    captions[:180] = captions[rng.permutation(180)]
    sharp = audited(images, captions, image_of, texts)
    assert sharp.blind_spot.near > 0.3
    assert not sharp.blind_spot.hides
    topics = np.repeat(np.random.default_rng(1).normal(size=(N // 15, D)), 15, axis=0)
    series = topics + 0.05 * np.random.default_rng(2).normal(size=(N, D))
    said = topics + 0.7 * np.random.default_rng(3).normal(size=(N, D))
    audit = audited(series.astype(np.float32), said.astype(np.float32), image_of, texts)
    assert audit.blind_spot.near < 0.2 < audit.blind_spot.random
    assert audit.ask_first
    assert "lower bound" in str(audit.blind_spot)
    assert not audit.tell(dict.fromkeys(audit.ask(10)["id"], "right")).ask_first
