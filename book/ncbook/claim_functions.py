"""Claims that need more than comparisons: shares, spreads, gains that grow, averages of methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd

from ncbook.compare import Difference, paired, spread
from ncbook.comparisons import Comparison, differences, runs_of
from ncbook.evidence import (
    CATEGORY_CONDITIONS,
    FAILS,
    HOLDS,
    PARTLY,
    Verdict,
    at_all_rates,
    best_other,
    conclude,
    conditions_of,
    data_of,
    growth,
    no_record,
    robust_methods,
    usual,
    verdict_of,
    within,
)
from ncbook.runs import RECALLS, Runs, select

IMAGES: dict[str, Any] = {"protocol": "images"}  # L2RM's protocol
RATES = (0.2, 0.4, 0.6, 0.8)
RIVALS = 3  # other methods that must be recorded before one is called the best
COLLAPSED = 0.5  # below this share of the value before, a fall is called a collapse
INSIDE = 2.0  # standard deviations of the seeds: a smaller spread between settings "matters little"
ACCURATE = 0.9  # precision that is called high
TRUSTED_SHARE, WRONG_SHARE = 0.1, 0.01  # REPAIR, Eq. 9: anchors of the soft labels
RAPID = 0.25  # a loss of this share of the value at 0.2 is called rapid
UNSUPERVISED = ("mcca", "pls", "dcca", "dccae")
LABEL_NOISE = ("mrl", "elrcmr", "uot_rcl")  # methods made for wrong labels


def _l2rm(runs: Runs) -> str:
    return data_of(select(runs.retrieval, method="l2rm"))


# -- L2RM ------------------------------------------------------------------------------------------------


def best_at_every_rate(runs: Runs) -> Verdict:
    """Decide "best of every recall and rSum at every rate": rSum is tested, recalls are counted by means."""
    table = usual(runs)
    others = ("plain", *robust_methods())
    noisy = select(table[table["mrate"] > 0], **IMAGES)
    found = best_other(noisy, "method", "l2rm", others, least=RIVALS)
    wins, columns = _columns_won(table, others)
    word = verdict_of(found)
    word = PARTLY if word == HOLDS and wins < columns else word
    lead = f"highest mean in {wins} of {columns} columns; rSum of l2rm minus the best other method"
    verdict = conclude(found, _l2rm(runs), word=word, lead=lead, missing="l2rm and other robust methods")
    return at_all_rates(verdict, found, RATES)


def _columns_won(table: pd.DataFrame, methods: tuple[str, ...]) -> tuple[int, int]:
    wins = columns = 0
    for _, part in conditions_of(select(table, **IMAGES), ("dataset", "preset", "model", "mrate")):
        part = part[part["method"].isin(methods) & (part["mrate"] > 0)]
        if part["method"].nunique() <= RIVALS or "l2rm" not in set(part["method"]):
            continue
        means = part.groupby("method")[list(RECALLS)].mean()
        wins += int((means.idxmax() == "l2rm").sum())
        columns += len(RECALLS)
    return wins, columns


def gain_is_larger_at_high_rates(runs: Runs) -> Verdict:
    """Decide "the gain over the best other method is larger at 0.6 and 0.8 than at 0.2 and 0.4"."""
    found, others = [], ("plain", *robust_methods())
    pairs = [(low, high) for high in (0.6, 0.8) for low in (0.2, 0.4)]
    for at, part in conditions_of(select(usual(runs), **IMAGES), ("dataset", "preset", "model")):
        by_rate = {rate: select(part, mrate=rate) for rate in RATES}
        found += _growing_gain(by_rate, "l2rm", pairs, f"{at} ", others=others, least=RIVALS)
    return conclude(found, _l2rm(runs), missing="l2rm and other robust methods at low and high rates")


def _growing_gain(by_rate: Any, ours: str, pairs: Any, lead: str = "", **how: Any) -> list[Difference]:
    """Return how much larger the gain over the best other method is at the second rate of each pair."""
    best = {rate: best_other(table, "method", ours, **how) for rate, table in by_rate.items()}
    gains = {rate: found[0].values if found else () for rate, found in best.items()}
    return [
        growth(gains[low], gains[high], f"{lead}gain at {high:g} minus at {low:g}", how.get("digits", 1))
        for low, high in pairs
        if gains[low] and len(gains[low]) == len(gains[high])
    ]


def plain_training_collapses(runs: Runs) -> Verdict:
    """Decide "undefended training collapses": most of the rSum at rate 0.2 is lost at a higher rate."""
    table, found, kept = select(usual(runs), method="plain"), [], []
    for at, part in conditions_of(select(table, **IMAGES), ("dataset", "preset", "model")):
        low = select(part, mrate=0.2)
        for rate in (0.4, 0.6, 0.8):
            d = paired(select(part, mrate=rate), low, name=f"{at} {rate:g} against 0.2")
            if d.n > 1:
                found.append(d)
                kept.append(select(part, mrate=rate)["rsum"].mean() / low["rsum"].mean())
    if not kept:
        return no_record("plain training at 0.2 and a higher rate")
    word = verdict_of(found, "below")
    word = PARTLY if word == HOLDS and min(kept) > COLLAPSED else word
    lead = f"at the worst rate {100 * min(kept):.0f} % of the rSum at 0.2 is left (a collapse: below 50 %)"
    return conclude(found, data_of(table), word=word, lead=lead)


def small_batch_beats_others(runs: Runs) -> Verdict:
    """Decide "L2RM in small batches beats the others in usual ones"."""
    table = select(runs.retrieval, **IMAGES)
    others, mine = select(table, variant=""), select(table, method="l2rm")
    mine = mine[mine["variant"].str.startswith("batch_size=")]
    mine = mine[mine["batch_size"] < others["batch_size"].max()] if len(mine) else mine
    both = pd.concat([mine.assign(method="small batch"), others])
    found = best_other(both, "method", "small batch", robust_methods())
    return conclude(found, _l2rm(runs), missing="l2rm in small batches and robust methods in usual ones")


def reverse_kl_is_steadier(runs: Runs) -> Verdict:
    """Decide "the symmetric loss is steadier than KL alone", by the spread over seeds."""
    table, lines, smaller, n = select(runs.retrieval, method="l2rm", **IMAGES), [], [], 0
    for at, part in conditions_of(table, ("dataset", "preset", "model", "mrate")):
        full, kl = select(part, variant="")["rsum"], select(part, variant="rematch=kl")["rsum"]
        if min(len(full), len(kl)) > 1:
            n = min(len(full), len(kl))
            smaller.append(full.std() < kl.std())
            lines.append(f"{at}: standard deviation {full.std():.1f} against {kl.std():.1f} (n = {n})")
    if not lines:
        return no_record("l2rm with rematch=kl")
    test = f"no test: {n} seeds cannot tell two spreads apart, so no more than 'partly' is given"
    return Verdict(PARTLY if any(smaller) else FAILS, f"{'; '.join(lines)}.", n, _l2rm(runs), test)


# -- OMIT ------------------------------------------------------------------------------------------------


def marginals_matter_little(runs: Runs) -> Verdict:
    """Decide "the four marginals differ little": their spread against the spread between seeds."""
    table, lines, inside, least = select(runs.retrieval, method="plain", model="omit"), [], [], []
    for at, part in conditions_of(table, ("dataset", "preset", "mrate", "protocol")):
        variants = {"uni": "", **{name: f"marginals={name}" for name in ("intra", "inter", "norm")}}
        values = {name: list(select(part, variant=v)["rsum"]) for name, v in variants.items()}
        if min(map(len, values.values())) < 2:
            continue
        means = {name: sum(v) / len(v) for name, v in values.items()}
        noise = (sum(spread(v) ** 2 for v in values.values()) / len(values)) ** 0.5
        width = max(means.values()) - min(means.values())
        inside.append(width <= INSIDE * noise)
        least.append(min(map(len, values.values())))
        each = ", ".join(f"{name} {mean:.1f}" for name, mean in means.items())
        lines.append(f"{at}: {each}; widest difference {width:.1f}, standard deviation of seeds {noise:.1f}")
    if not lines:
        return no_record("model omit with all four marginals")
    word = HOLDS if all(inside) else PARTLY if any(inside) else FAILS
    n = min(least)
    test = f"widest difference at most {INSIDE:g} standard deviations of the seeds; n = {n} is weak"
    return Verdict(word, f"{'; '.join(lines)}.", n, data_of(table), test)


# -- REPAIR ----------------------------------------------------------------------------------------------


def both_below_eta_is_precise(runs: Runs) -> Verdict:
    """Decide "pairs that both networks take as mismatched are mismatched", by precision."""
    order = ("dataset", "preset", "model", "protocol", "mrate")

    def minus(reference: str | float) -> list[Difference]:
        table = select(usual(runs), method="repair")
        return within(table, "replaced_precision", reference, conditions=order, name="repair")

    high = minus(ACCURATE)
    word = verdict_of(high)
    word = PARTLY if word != HOLDS and verdict_of(minus("mrate")) == HOLDS else word
    lead = f"precision of the selected pairs minus {ACCURATE:g} (called high from there)"
    data = data_of(select(runs.retrieval, method="repair"))
    return conclude(high, data, word=word, lead=lead, missing="repair with diagnostics")


def anchors_are_safe(runs: Runs) -> Verdict:
    """Decide "at least 10 % of pairs match and 1 % do not", by the true rate of every recorded draw."""
    table = runs.retrieval
    table = table.dropna(subset=["true_rate"]) if "true_rate" in table else table.iloc[:0]
    if table.empty:
        return no_record("any method, with the truth")
    by_rate = table.groupby("mrate")["true_rate"].agg(["min", "max"])
    safe = (1 - by_rate["max"] >= TRUSTED_SHARE) & (by_rate["min"] >= WRONG_SHARE)
    draws = int(table["noise_checksum"].nunique())
    shown = "; ".join(
        f"rate {rate:g}: {100 * row['min']:.2f} to {100 * row['max']:.2f} % wrong"
        for rate, row in by_rate.iterrows()
    )
    said = f"{draws} recorded draws of noise. {shown}. At rate 0 the lower anchor is a matched pair."
    word = HOLDS if safe.all() else PARTLY
    return Verdict(word, said, draws, data_of(table), "count of the drawn noise")


# -- UOT-RCL ---------------------------------------------------------------------------------------------


def _usual_labels(runs: Runs) -> pd.DataFrame:
    return select(runs_of("UOT-RCL", runs), variant="")


def _uot_rcl(runs: Runs) -> str:
    return data_of(select(runs_of("UOT-RCL", runs), method="uot_rcl"))


def _undefended(table: pd.DataFrame) -> list[str]:
    """Return the recorded supervised methods without a defence against wrong labels."""
    others = {*UNSUPERVISED, *LABEL_NOISE, "zero_shot"}
    return sorted(set(table.get("method", ())) - others)


def supervised_methods_fall(runs: Runs) -> Verdict:
    """Decide "supervised methods fall rapidly", by mean average precision at 0.8 minus that at 0.2."""
    table, found, lost = _usual_labels(runs), [], []
    for method in _undefended(table):
        low, high = (select(table, method=method, noise_rate=r) for r in (0.2, 0.8))
        d = paired(high, low, "map_avg", name=method, digits=3)
        if d.n > 1:
            found.append(d)
            lost.append(-d.mean / float(low["map_avg"].mean()))
    if not found:
        return no_record("supervised category methods at 0.2 and 0.8")
    average = sum(lost) / len(lost)
    word = verdict_of(found, "below")
    word = PARTLY if word == HOLDS and average < RAPID else word
    lead = f"{len(found)} methods lose {100 * average:.0f} % of their value on average (rapid: {RAPID:.0%})"
    return conclude(found, data_of(table), word=word, lead=lead)


def unsupervised_methods_are_below(runs: Runs) -> Verdict:
    """Decide "unsupervised methods are below supervised ones, except at 0.8", by the means of both kinds."""
    table, found = _usual_labels(runs), []
    for at, part in conditions_of(table, CATEGORY_CONDITIONS):
        supervised, unsupervised = (
            part[part["method"].isin(names)].groupby("seed")["map_avg"].mean()
            for names in (_undefended(table), UNSUPERVISED)
        )
        sign = -1 if part["noise_rate"].iloc[0] >= 0.8 else 1
        values = sign * (supervised - unsupervised).dropna()
        found.append(Difference(tuple(float(v) for v in values), at, digits=3))
    lead = "supervised minus unsupervised on average, sign turned at 0.8"
    missing = "both kinds of category methods"
    return conclude([d for d in found if d.n], data_of(table), lead=lead, missing=missing)


def gain_grows_with_the_rate(runs: Runs) -> Verdict:
    """Decide "the gain over the best other method grows from rate to rate"."""
    by_rate = {rate: select(_usual_labels(runs), noise_rate=rate) for rate in RATES}
    how: dict[str, Any] = {"value": "map_avg", "conditions": CATEGORY_CONDITIONS, "digits": 3}
    found = _growing_gain(by_rate, "uot_rcl", itertools.pairwise(RATES), **how)
    missing = "uot_rcl and other category methods at several rates"
    return conclude(found, _uot_rcl(runs), missing=missing)


def alignment_matters_more_with_noise(runs: Runs) -> Verdict:
    """Decide "relation alignment matters more at 0.8", by its gain there minus its gain at 0.2."""
    low, high = (
        differences("UOT-RCL", Comparison(ours="", theirs="lam=0", where={"noise_rate": rate}), runs)
        for rate in (0.2, 0.8)
    )
    found = [
        growth(a.values, b.values, "worth at 0.8 minus at 0.2", 3)
        for a, b in zip(low, high, strict=False)
        if a.n == b.n
    ]
    return conclude(found, _uot_rcl(runs), missing="uot_rcl with lam=0 at 0.2 and 0.8")


CLAIMS: dict[str, Callable[[Runs], Verdict]] = {
    "L01": best_at_every_rate,
    "L02": gain_is_larger_at_high_rates,
    "L17": plain_training_collapses,
    "L21": small_batch_beats_others,
    "L29": reverse_kl_is_steadier,
    "O16": marginals_matter_little,
    "R19": both_below_eta_is_precise,
    "R21": anchors_are_safe,
    "U02": supervised_methods_fall,
    "U03": unsupervised_methods_are_below,
    "U04": gain_grows_with_the_rate,
    "U14": alignment_matters_more_with_noise,
}
