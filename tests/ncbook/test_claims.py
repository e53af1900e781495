"""The ledger is complete, every verdict comes out of a function, and each says what it rests on."""

import csv
import io
import itertools
import math
import re
from dataclasses import replace

import ncbook
import pandas as pd
import pytest
from ncbook import comparisons, printed, transport_claims
from ncbook.compare import Difference, growth
from ncbook.evidence import (
    CLOSE,
    FAILS,
    HOLDS,
    MIXED,
    REGIONS,
    SEEN,
    UNSEEN,
    UNTESTED,
    Line,
    conclude,
    line_of,
)
from ncbook.match import ENCODED, RunSpec, run_of
from ncbook.runs import RECALLS
from records_made import save, save_category

import nclib
from nclib.runs.variant import variant

MADE = {"O10", "O23", "O24"}  # mathematics, decided by solving problems
PROBED = {
    "L15",
    "L26",
    "L30",
    "O20",
    "O21",
    "O22",
    "R16",
    "R20",
    "R24",
}  # from the book's probes, whatever the records
UP, DOWN, OPEN = (Difference(v) for v in ((5.0, 5.1, 5.2), (-5.0, -5.1, -5.2), (5.0, -5.0, 1.0)))
ONE, NONE = Difference((9.0,), "one"), Difference((), "none")
ABOVE, EQUAL, NOT_ABOVE = (0, math.inf), (-6, 6), (-math.inf, 6)
DRAWN = {"dataset": "emoji", "model": "vse", "protocol": "images", "preset": "quick"}
PHOTOS = {"dataset": "f8k", "model": "bow", "protocol": "images", "preset": "standard"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """L2RM best under image-level noise, REPAIR worst under caption-level noise, UOT-RCL best and steady."""
    folder = tmp_path_factory.mktemp("made")
    order = ("plain", "mscn", "ncr", "bicro", "decl", "rcl", "l2rm")
    for seed in range(3):
        wobble = (0.0, 1.0, 0.3)[seed]
        for rate in (0.2, 0.4, 0.6, 0.8):
            for place, method in enumerate(order):
                fall = 500 if method == "plain" else 200
                total = 450 + 20 * place - fall * rate + wobble * place
                save(folder, method, total, model="vse", mrate=rate, seed=seed, protocol="images")
        for rate in (0.2, 0.4, 0.6):
            for method in ("ncr", "mscn", "bicro", "decl"):
                save(
                    folder,
                    method,
                    480 - 50 * rate + wobble,
                    model="vse",
                    mrate=rate,
                    seed=seed,
                    protocol="captions",
                )
            found = {"rc_auc": 0.8 + 0.01 * seed, "replaced_precision": 0.5 + rate / 2}
            save(
                folder, "repair", 300 - seed, diagnostics=found,
                model="vse", mrate=rate, seed=seed, protocol="captions",
            )  # fmt: skip
        for name, total in (("", 430), ("ot", 420), ("cam", 410), ("partial_cam", 409), ("full", 419)):
            options = {"matching": name} if name else {}
            save(
                folder, "plain", total + wobble * len(name), dsl=5 + wobble,
                model="omit", mrate=0.0, seed=seed, model_options=options,
            )  # fmt: skip
        for rate in (0.2, 0.4, 0.6, 0.8):
            share = {"corrected_accuracy": 0.9 - wobble / 100, "given_accuracy": 1 - rate}
            save_category(
                folder, "uot_rcl", 0.8 + wobble / 100, diagnostics=share, noise_rate=rate, seed=seed
            )
            save_category(folder, "deep_sm", 0.7 - 0.5 * rate + wobble / 200, noise_rate=rate, seed=seed)
            save_category(folder, "sdml", 0.7 - 0.4 * rate, noise_rate=rate, seed=seed)
            save_category(folder, "mcca", 0.4, noise_rate=rate, seed=seed)
            save_category(folder, "uot_rcl", 0.8 - 0.1 * rate, noise_rate=rate, seed=seed, lam=0.0)
        # Without label noise everything is turned round; the paper's claims are not about that.
        worse = {"corrected_accuracy": 0.9, "given_accuracy": 1.0}
        save_category(folder, "uot_rcl", 0.5 + wobble / 100, diagnostics=worse, noise_rate=0.0, seed=seed)
        save_category(folder, "deep_sm", 0.9 + wobble / 200, noise_rate=0.0, seed=seed)
        for rate in (0.2, 0.8):  # the usual momentum on these data is 0.95, the paper's 0.99
            for gamma, value in ((0.0, 0.7), (0.1, 0.71), (0.99, 0.85), (1.0, 0.84)):
                save_category(
                    folder, "uot_rcl", value + wobble / 100, noise_rate=rate, seed=seed, gamma=gamma
                )
    return ncbook.load_runs(folder)


@pytest.fixture(scope="module")
def found(made):
    return ncbook.ledger(made).set_index("id")


@pytest.mark.slow
def test_every_claim_is_decided_in_one_place_or_has_a_reason(found):
    ids = set(printed("claims")["id"])
    assert len(ids) == 107
    assert set(found.index) == ids
    sources = [set(transport_claims.CLAIMS), set(comparisons.compared()), set(comparisons.untested())]
    assert set.union(*sources) == ids
    assert sum(map(len, sources)) == len(ids)  # each is decided in one place
    listed = [name for one in comparisons.content()["untested"] for name in one["claims"]]
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_every_verdict_is_recomputed_and_names_data_seeds_and_power(found, made, nothing):
    again = ncbook.ledger(made).set_index("id")
    assert again[["verdict", "evidence"]].equals(found[["verdict", "evidence"]])
    book = ncbook.ledger(ncbook.load_runs()).set_index("id")
    for runs in (found, book, ncbook.ledger(nothing).set_index("id")):
        assert set(runs["verdict"]) <= set(ncbook.VERDICTS)
        assert runs["evidence"].str.len().gt(20).all()
        for name, row in runs.drop(index=list(MADE)).iterrows():
            tested = [line for line in row["lines"] if line.n]
            assert all(line.n >= 2 and float(line.visible) >= 0 for line in tested), name
            assert all(line.dataset and line.preset for line in row["lines"])
            assert (row["verdict"] == UNTESTED) == (not tested), name
            on_its_data = [line for line in tested if line.tier == 0]
            assert on_its_data or row["verdict"] not in (HOLDS, FAILS), name


def test_without_records_only_mathematics_and_probes_are_decided(nothing):
    frame = ncbook.ledger(nothing)
    assert set(frame[frame["verdict"] != UNTESTED]["id"]) == MADE | PROBED


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("L01", SEEN),  # best everywhere
        ("L02", CLOSE),  # the gain does not move
        ("L16", CLOSE),  # NCR and BiCro lose more under image-level noise, but BiCro at 0.2
        ("L17", SEEN),  # plain training falls from 350 to 50
        ("L18", SEEN),
        ("L06", UNTESTED),
        ("L03", UNTESTED),
        ("O06", MIXED),  # two of the other modules were not recorded
        ("O07", UNTESTED),
        ("O08", MIXED),  # more accurate; times are not to be had from records
        ("O11", SEEN),
        ("O12", CLOSE),  # partial_cam is behind cam by 1 point and up to 8 ahead
        ("O13", SEEN),  # the interval lies within the margin of six points
        ("O25", SEEN),
        ("O27", SEEN),
        ("R01", UNSEEN),
        ("R02", UNSEEN),
        ("R06", UNTESTED),  # vse is not VSE∞
        ("R15", SEEN),
        ("R19", UNSEEN),  # above chance, below 0.9
        ("U01", MIXED),  # best of those recorded; the other methods of the tables were not
        ("U02", SEEN),
        ("U14", SEEN),
        ("U16", SEEN),
        ("U17", CLOSE),  # made records lose nothing after the best epoch
        ("U18", SEEN),
        ("U19", SEEN),
        ("U21", SEEN),
    ],
)
def test_verdicts_follow_the_records(claim, verdict, found):
    assert (claim, found.at[claim, "verdict"]) == (claim, verdict), found.at[claim, "evidence"]


def made_runs(setting, values, labels=False):
    """Return three seeds of each of some made runs of the preset paper."""
    rows = [
        {"preset": "paper", "variant": "", "protocol": "symmetric", **setting, **own, "seed": seed}
        for own in values
        for seed in range(3)
    ]
    shake = {"map_avg": 0.001} if labels else {"rsum": 0.5, "folds.rsum": 0.2}
    for i, row in enumerate(rows):  # no two seeds are equal
        row.update({name: row[name] + i * i % 5 * size for name, size in shake.items() if name in row})
    frame, other = pd.DataFrame(rows), pd.DataFrame()
    return ncbook.Runs(other, frame) if labels else ncbook.Runs(frame, other)


def judged(claim, *given, **more):
    return ncbook.decide(claim, made_runs(*given, **more))


def test_claims_about_the_papers_data_are_decided_by_their_records():
    pairs = {"dataset": "coco", "mrate": 0.4, "protocol": "images", "method": "l2rm"}
    alone = [
        {"model": "saf", "rsum": 300, "folds.rsum": 470},
        {"model": "sgr", "rsum": 310, "folds.rsum": 480},
    ]
    for rsum, verdict in ((350, HOLDS), (320, FAILS)):
        both = {"model": "saf+sgr", "rsum": rsum, "folds.rsum": 500}
        assert judged("L20", pairs, [*alone, both]).word == verdict
    web = {"dataset": "cc152k", "mrate": 0.0, "model": "sgr", "method": "l2rm"}
    for rsum, verdict in ((361, HOLDS), (340, FAILS)):
        others = [
            {"variant": "warmup=infonce", "rsum": 363},
            {"variant": "warmup=hardest_triplet", "rsum": rsum},
        ]
        assert judged("L12", web, [{"rsum": 362}, *others]).word == verdict
    coco = {"dataset": "coco", "model": "sgr", "protocol": "captions"}
    rivals = [
        {"method": m, "rsum": 400, "folds.rsum": 500} for m in ("plain", "ncr", "decl", "bicro", "mscn")
    ]
    for value, verdict in ((498, HOLDS), (480, FAILS)):
        every = [{"method": "repair", "rsum": 400, "folds.rsum": value}, *rivals]
        at_rates = [{**row, "mrate": rate} for row in every for rate in (0.2, 0.4, 0.6)]
        assert judged("R03", coco, at_rates).word == verdict
    for low, verdict in ((0.3, HOLDS), (0.5, FAILS)):
        lost = [
            {"dataset": name, "noise_rate": rate, "map_avg": value}
            for name, values in (("xmedianet", (0.52, low)), ("nuswide", (0.7, 0.67)))
            for rate, value in zip((0.2, 0.8), values, strict=True)
        ]
        assert judged("U05", {"method": "mrl"}, lost, labels=True).word == verdict
    bank = {"dataset": "f30k", "model": "sgr", "protocol": "captions", "method": "repair", "mrate": 0.4}
    for mb, verdict in ((2600, MIXED), (1850, FAILS)):  # of two banks; the images of 4,096 pairs take 1,241
        assert judged("R18", bank, [{"bank_mb": mb, "option.bank_size": 4096}]).word == verdict
    for lost, verdict in ((-30, MIXED), (10, FAILS)):
        falls = [
            {"before_noisy": 300, "after_noisy": 300 + lost * rate, "mrate": rate} for rate in (0.2, 0.4, 0.6)
        ]
        assert judged("R22", {**bank, "method": "ncr"}, falls).word == verdict


def brief(claim):
    """Return a claim that is judged by the first of its metrics and rates: it has up to 400 comparisons."""
    one, parts = comparisons.compared()[claim], []
    for c in one.printed or one.compare:
        metric = c.metric if isinstance(c.metric, str) else [m for m in c.metric if m.endswith(c.metric[0])]
        parts.append(replace(c, metric=metric, rates=c.rates[:1], growth=c.growth[:2]))
    return replace(one, compare=parts, printed=())


def rows_of(one, ours, gain):
    """Return a made run of each setting, rate and data that a claim speaks of, ours ``gain`` above others."""
    values, labels = [], one.paper == "UOT-RCL"  # what tells a run, and how much of the gain it has
    for each in one.compare:
        rates = each.rates or sorted({r for pair in each.growth for r in pair}) or (0.0,)
        if ours:
            names = [*(each.others or next(iter(each.theirs.values()))), ours]
            rows = [dict(zip(("method", "model"), name.split(" on "), strict=False)) for name in names]
            shares = [name == ours for name in names]
        else:
            sides = [{"variant": "", **each.where, **side} for side in (each.theirs, each.ours)]
            models = [(side, m) for side in sides for m in comparisons._list(side["model"])]
            rows = [{**side, "model": m} for side, m in models]
            shares = [side is sides[1] for side, _ in models]
        for (row, share), rate in itertools.product(zip(rows, shares, strict=True), rates):
            at = {"noise_rate" if labels else "mrate": rate, "protocol": "symmetric" if labels else "images"}
            values.append(({**row, **at}, share * (rate if each.growth else 1)))
    found = {}
    for (row, share), dataset in itertools.product(values, one.data or ("f30k",)):
        height = 50 + gain * share
        folds = {f"folds.{m}": height for m in RECALLS} if dataset == "coco" else {}
        whole = 100 - height if folds and one.paper == "L2RM" else height  # its tables print folds
        own = {**row, "dataset": dataset}
        found[repr(own)] = {**own, "map_avg": height, **dict.fromkeys(RECALLS, whole), **folds}
    return list(found.values())


@pytest.mark.parametrize(
    ("claim", "ours", "best"),
    [
        ("L01", "l2rm on saf+sgr", HOLDS),
        ("L02", "l2rm on saf+sgr", HOLDS),
        ("R01", "repair on sgr", HOLDS),
        ("U06", "uot_rcl", HOLDS),
        *((name, "", MIXED) for name in ("O02", "O04", "O05")),
    ],
)
def test_claims_about_rows_of_a_table_can_have_each_verdict(claim, ours, best):
    """OMIT's are seen in part at best: some of their rows have no run here."""
    one, labels = brief(claim), claim == "U06"
    for gain, word in ((40, best), (-40, FAILS), (0, CLOSE)):
        assert one.verdict(made_runs({}, rows_of(one, ours, gain), labels)).word == word
    rows = rows_of(one, ours, 40)
    assert one.verdict(made_runs({}, rows[1:], labels)).word == MIXED  # a row was not recorded
    assert one.verdict(made_runs({}, rows[:1], labels)).word == UNTESTED


def test_claims_name_the_encoders_of_declared_runs():
    own = {RunSpec("plain", "", options).variant for kind in ENCODED.values() for options in kind.values()}
    named = set()
    for claim in comparisons.compared().values():
        named |= {claim.also_on, *(one.on for one in claim.printed)}
        for one in claim.printed if claim.paper == "OMIT" else ():
            named |= {s["variant"] for s in (one.ours, one.theirs) if isinstance(s, dict) and "variant" in s}
    assert named - own == {"", "direction=t2i+i2t"}
    assert len(named & own) > 8


def test_the_usual_warm_up_of_decl_is_that_of_its_paper_at_each_rate():
    def found(**given):
        return variant(nclib.resolve("decl", dataset="f30k", data_options={"root": "."}, **given).flat())

    assert found(preset="paper", mrate=0.6, warmup_epochs=2) == found(preset="paper", mrate=0.4) == ""
    assert found(preset="paper", mrate=0.6) == "warmup_epochs=5"
    assert found(preset="quick", mrate=0.6) == ""


def test_evidence_holds_the_numbers(found):
    text = found.at["U21", "evidence"]
    assert "rate 0.8: +0.69" in text
    assert "gamma=0.99 − 0.95, rate 0.2: +0.050" in found.at["U19", "evidence"]
    assert re.search(r"n = 3, p", text)
    (line,) = found.at["L01", "lines"]
    assert (line.place, line.n) == ("emoji, vse, images, quick", 3)
    assert "140 of 140 inside the claimed region" in line.text
    assert line.text.endswith("; and 128 more.")


def test_a_line_supports_a_claim_only_with_every_interval_inside():
    def says(*differences, region=ABOVE, **more):
        return line_of(DRAWN, [(d, region) for d in differences], **more).says

    assert says(UP, UP) == "for"
    assert says(UP, OPEN) == says(OPEN) == "open"  # too close to call is not "partly"
    assert says(UP, DOWN) == says(DOWN) == "against"
    assert says(ONE) == says(ONE, NONE) == "nothing"
    assert says(UP, ONE) == says(UP, NONE) == says(UP, needs="times") == "part"
    assert says(DOWN, ONE) == "against"  # one exception is enough
    assert says(UP, region=(-math.inf, 0)) == "against"


def test_exceptions_are_counted_against_the_number_of_comparisons():
    weak = Difference((-1.0, -2.0, -3.0))  # p = 0.074 for one, so no exception
    clear = Difference((-1.9, -2.0, -2.7))  # p = 0.014
    assert line_of(DRAWN, [(weak, ABOVE)]).says == "open"
    assert line_of(DRAWN, [(clear, ABOVE)]).says == "against"
    assert line_of(DRAWN, [(clear, ABOVE), *[(UP, ABOVE)] * 4]).says == "open"  # 0.014 > 0.05 / 5
    assert line_of(DRAWN, [(clear, ABOVE)] * 4 + [(UP, ABOVE)]).says == "against"  # four agree


def test_equality_needs_an_interval_within_the_margin():
    values = {"for": (1.0, 2.0, 1.5), "open": (1.0, -9.0, 8.0), "against": (9.0, 9.2, 9.1)}
    for region in (EQUAL, NOT_ABOVE):
        for says, some in values.items():
            assert line_of(DRAWN, [(Difference(some), region)]).says == says
    assert line_of(DRAWN, [(DOWN, EQUAL)]).says == "for"  # clearly below zero, and within 6 of it
    assert line_of(DRAWN, [(Difference((-9.0, -9.2, -9.1)), NOT_ABOVE)]).says == "for"


def test_a_line_shows_its_power():
    d = Difference((1.0, 2.0, 6.0))
    line = line_of(DRAWN, [(d, ABOVE), (UP, ABOVE)])
    low, high = d.interval
    assert line.visible == f"{(high - low) / 2:.1f}"
    assert f"n = 3, smallest visible difference {line.visible}" in str(line)
    assert str(line_of(DRAWN, [(ONE, ABOVE)])) == "emoji, vse, images, quick: one seed: cannot be decided"


def words(*lines, data=("f30k",)):
    return conclude(lines, data, test="").word


def line(says, tier=2, dataset="emoji", preset="quick"):
    return Line("", says, "", 3, "1", tier, dataset, preset)


def test_only_a_claims_own_data_hold_or_refute_it():
    own = {"tier": 0, "dataset": "f30k", "preset": "paper"}
    assert [line(says).word for says in ("for", "against", "open")] == [SEEN, UNSEEN, f"{CLOSE} here"]
    assert [line(says, **own).word for says in ("for", "against", "open")] == [HOLDS, FAILS, CLOSE]
    assert words(line("for", **own), line("against")) == HOLDS
    assert words(line("against", **own), line("for", **own)) == FAILS
    assert words(line("open", **own), line("for")) == CLOSE
    assert words(line("for", **own), data=("f30k", "coco")) == SEEN  # until all of it is recorded
    assert words(line("against", **own), data=("f30k", "coco")) == FAILS


def test_photographs_come_before_drawn_scenes():
    photos = {"tier": 1, "dataset": "f8k", "preset": "standard"}
    assert words(line("against", **photos), line("for")) == UNSEEN
    assert words(line("nothing", **photos), line("for")) == SEEN  # one seed decides nothing
    assert words(line("for"), line("against")) == words(line("for"), line("open")) == MIXED
    assert words(line("part")) == MIXED
    assert words(line("open"), line("against")) == UNSEEN
    assert words(line("nothing")) == words() == UNTESTED
    ordered = conclude([line("for"), line("nothing", **photos)], (), test="").lines
    assert [one.dataset for one in ordered] == ["f8k", "emoji"]


@pytest.mark.parametrize(("preset", "word"), [("quick", SEEN), ("standard", SEEN), ("paper", HOLDS)])
def test_smaller_networks_on_a_claims_data_neither_hold_nor_refute(tmp_path, preset, word):
    where = {"dataset": "wikipedia", "preset": preset, "data_options": {"root": "data"}}
    for seed in range(3):
        for rate in (0.2, 0.4, 0.6, 0.8):
            share = {"corrected_accuracy": 0.9 + 0.01 * seed, "given_accuracy": 1 - rate}
            save_category(tmp_path, "uot_rcl", 0.5, diagnostics=share, noise_rate=rate, seed=seed, **where)
    found = ncbook.decide("U21", ncbook.load_runs(tmp_path))
    assert found.word == word


def test_runs_of_the_paper_decide_where_smaller_ones_are_recorded_too():
    standard = line("against", tier=1, dataset="wikipedia", preset="standard")
    paper = line("for", tier=0, dataset="wikipedia", preset="paper")
    assert words(standard, paper, data=("wikipedia",)) == HOLDS


def test_a_model_that_a_claim_does_not_name_is_other_evidence(tmp_path):
    for model in ("sgr", "vse"):
        where = {"dataset": "f30k", "preset": "paper", "data_options": {"root": "data"}, "model": model}
        for seed in range(3):
            for cost, total in (("learned", 400 + seed), ("cosine", 380)):
                save(tmp_path, "l2rm", total, mrate=0.6, seed=seed, protocol="images", cost=cost, **where)
    found = {one.place: one.word for one in ncbook.decide("L07", ncbook.load_runs(tmp_path)).lines}
    assert found == {"f30k, sgr, images, paper": HOLDS, "f30k, vse, images, paper": SEEN}


def test_places_are_never_pooled(tmp_path):
    """L2RM gains at one rate and loses at another, differently on two models: four numbers, two lines."""
    for model, gain in (("vse", 20), ("saf", -20)):
        for seed in range(3):
            for rate in (0.2, 0.4, 0.6, 0.8):
                for place, method in enumerate(("ncr", "bicro", "decl", "rcl", "l2rm")):
                    total = 300 + (gain if method == "l2rm" else 0) + seed * place % 2
                    save(tmp_path, method, total, model=model, mrate=rate, seed=seed, protocol="images")
    found = ncbook.decide("L18", ncbook.load_runs(tmp_path))
    assert found.word == MIXED
    assert [(one.place, one.word) for one in found.lines] == [
        ("emoji, saf, images, quick", UNSEEN),
        ("emoji, vse, images, quick", SEEN),
    ]
    assert all(f"of {4 * 4}" in one.text for one in found.lines)


def test_the_mask_at_rate_zero_does_not_count_for_and_against(tmp_path):
    """L06 speaks of rate 0.6, L27 of matched pairs, and L19 of L2RM with the mask off."""
    for seed in range(3):
        for mrate, on, off in ((0.0, 280, 300), (0.6, 250, 240)):
            where = {"model": "vse", "mrate": mrate, "seed": seed, "protocol": "images"}
            save(tmp_path, "l2rm", on + seed, **where)
            save(tmp_path, "l2rm", off, **where, mask=False)
            save(tmp_path, "plain", 290, **where)
    runs = ncbook.load_runs(tmp_path)
    assert [ncbook.decide(name, runs).word for name in ("L06", "L27", "L19")] == [MIXED, SEEN, SEEN]
    assert "rate 0:" not in ncbook.decide("L06", runs).evidence


def test_the_switch_to_noisy_pairs_is_read_from_the_curve(tmp_path):
    """NCR falls by 30 in the epoch in which noisy pairs enter, REPAIR rises by 20 from a lower place."""
    for seed in range(3):
        for method, before, after in (("ncr", 150.0, 120.0), ("repair", 140.0, 160.0)):
            curves = [
                {"epoch": 1, "phase": "warm-up", "val_rsum": 100.0},
                {"epoch": 2, "phase": "training", "val_rsum": before + seed, "loss_clean": 1.0},
                {"epoch": 3, "phase": "training", "val_rsum": after, "loss_clean": 1.0, "loss_noisy": 2.0},
                {"epoch": 4, "phase": "training", "val_rsum": 300.0, "loss_clean": 1.0, "loss_noisy": 2.0},
            ]
            where = {"model": "vse", "mrate": 0.4, "seed": seed, "protocol": "captions"}
            save(tmp_path, method, 300, curves=curves, **where)
    runs = ncbook.load_runs(tmp_path)
    text = ncbook.decide("R10", runs).evidence
    assert "change of ncr, rate 0.4: -31.0" in text
    assert "change of repair, rate 0.4: +19.0" in text
    assert ncbook.decide("R11", runs).word == UNSEEN


def test_growth_pairs_seeds_not_places():
    small, large = Difference((1.0, 2.0), seeds=(0, 1)), Difference((5.0, 9.0, 8.0), seeds=(1, 2, 0))
    assert growth(small, large, "x").values == (7.0, 3.0)
    assert growth(small, large, "x").seeds == (0, 1)


def test_mathematics_is_decided_on_made_problems(nothing):
    exact, bound = (ncbook.decide(name, nothing) for name in ("O24", "O23"))
    assert exact.word == HOLDS
    assert exact.data == "made problems"
    assert "mean of all cosines (the paper's bound of VSE): 100 %" in bound.evidence
    assert bound.word == FAILS  # one of its two bounds does not hold


def test_unknown_claims_are_refused(nothing):
    with pytest.raises(ValueError, match="unknown claim 'X1'"):
        ncbook.decide("X1", nothing)


def test_counts_and_sheets(found, made):
    frame = found.reset_index()
    counted = ncbook.counts(frame)
    assert counted.loc["all"].sum() == 107
    assert list(counted.index) == ["L2RM", "OMIT", "REPAIR", "UOT-RCL", "all"]
    for paper, n in (("L2RM", 31), ("OMIT", 27), ("REPAIR", 25), ("UOT-RCL", 24)):
        sheet = ncbook.claims_table(frame, paper)
        assert len(sheet.rows) == n == counted.loc[paper].sum()
        in_file = list(csv.DictReader(io.StringIO(sheet.file)))
        assert [r["id"] for r in in_file] == [heads[0].text for heads, _ in sheet.rows]
        assert [r["verdict"] for r in in_file] == [cells[1].text for _, cells in sheet.rows]
    assert len(ncbook.verdicts_figure(counted).axes) == 1
    assert len(ncbook.best_other_differences(made)) == 7


def test_comparisons_are_read_as_written(tmp_path):
    where = {"model": "vse", "mrate": 0.2, "protocol": "images"}
    for seed in (0, 1):
        save(tmp_path, "l2rm", 300 + seed, seed=seed, **where)
        save(tmp_path, "l2rm", 320 + 3 * seed, seed=seed, rho=0.05, **where)
        save(tmp_path, "l2rm", 240 + seed, seed=seed, rho=0.5, **where)
        save(tmp_path, "l2rm", 100, seed=seed, rho=0.5, mask=False, **where)  # two options: no value of rho
        save(tmp_path, "plain", 200 + 2 * seed, seed=seed, **where)
    runs = ncbook.load_runs(tmp_path)

    def found(**keys):
        return {
            d.name: d.values
            for d in comparisons.differences("L2RM", comparisons.Comparison(**keys), runs.retrieval)
            if d.n
        }

    assert found(ours="rho=*", theirs="", name="{ours} against usual,") == {
        "rho=0.05 against usual, rate 0.2": (20.0, 22.0),
        "rho=0.5 against usual, rate 0.2": (-60.0, -60.0),
    }
    smaller = found(ours="rho=*", theirs="", values="value < usual")
    assert smaller == {"rho=0.05 − full, rate 0.2": (20.0, 22.0)}
    rho = {"ours": {"option.rho": "*"}, "theirs": {"option.rho": 0.5}, "where": {"option.mask": True}}
    assert found(**rho, values="value < 0.1", name="rho {ours},") == {"rho 0.05, rate 0.2": (80.0, 82.0)}
    assert found(ours="", theirs=["rho=0.5", "mask=False"], metric=["rsum", "none"]) == {
        "full − rho=0.5, rate 0.2": (60.0, 60.0)
    }
    both = {"ours": {"method": "l2rm"}, "theirs": {"method": "plain"}, "where": {"variant": ""}}
    assert found(**both) == {"l2rm − plain, rate 0.2": (100.0, 99.0)}
    assert found(**both, query="mrate > 0.5") == {}
    best = {"best": "method", "ours": "l2rm", "where": {"variant": ""}}
    assert found(**best, others=["plain"]) == {"rate 0.2, best of 1 others (plain)": (100.0, 99.0)}
    assert found(**best, others=["plain", "ncr"]) == {}
    assert found(column="rsum", minus=200.0, where={"method": "plain"}) == {"rate 0.2": (0.0, 2.0)}


def test_the_file_of_claims_names_rules_and_options_that_exist():
    assert len(comparisons.compared()) > 50
    for one in comparisons.compared().values():
        assert one.missing
        for comparison in one.compare:
            assert comparison.rule in REGIONS
            assert (comparison.margin > 0) == (comparison.rule in ("equal", "not above", "not below"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'metrics'"):
        comparisons.Comparison(ours="", theirs="rho=1", metrics="rsum")


def test_a_registered_method_is_drawn_without_another_edit(tmp_path):
    class Newcomer(type(nclib.methods.build("plain"))):
        """For a test."""

    nclib.methods.register("newcomer", summary="for a test")(Newcomer)
    try:
        for seed in (0, 1, 2):
            for place, method in enumerate(("plain", "ncr", "rcl", "l2rm", "newcomer")):
                save(
                    tmp_path, method, 300 + 10 * place + seed * place % 3,
                    model="vse", mrate=0.4, seed=seed, protocol="images",
                )  # fmt: skip
        runs = ncbook.load_runs(tmp_path)
        assert "newcomer, rate 0.4" in [d.name for d in ncbook.gains_over(runs)]
        names = ("plain", "newcomer")
        figure = ncbook.rates_figure("L2RM", "6", runs, dataset="Flickr30K", model="vse", methods=names)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["plain", "newcomer"]
        row = {"method": "newcomer-SGR", "backbone": ""}
        assert run_of(ncbook.LAYOUTS["L2RM", "6"], row) == RunSpec("newcomer", "sgr")
    finally:
        nclib.methods.METHODS.remove("newcomer")


def test_photographs_of_the_book_are_evidence_of_their_own_line():
    lines = ncbook.decide("L18", ncbook.load_runs()).lines
    assert lines[0].place.startswith("f8k, bow, images, standard")
    assert {one.tier for one in lines} == {1, 2}
