"""Claims of L2RM that recorded runs can decide; each function names the ones it judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncbook._compare import Difference, paired
from ncbook._evidence import (
    FAILS,
    HOLDS,
    PARTLY,
    ROBUST,
    Finding,
    all_rates,
    best_other,
    compare,
    conclude,
    conditions_of,
    data_of,
    growth,
    no_record,
    usual,
    verdict_of,
    within,
)
from ncbook._ledger import judge
from ncbook._sheets import RECALLS
from ncbook.runs import Runs, select

if TYPE_CHECKING:
    import pandas as pd

HARD: dict[str, Any] = {"protocol": "images"}  # the paper's protocol
OTHERS = ("plain", *ROBUST)
RATES = (0.2, 0.4, 0.6, 0.8)
RIVALS = 3  # so many other methods at least, before one is called the best
COLLAPSED = 0.5  # of the value before: less than that is called a collapse


def _variant(
    runs: Runs, variant: str, value: str = "rsum", digits: int = 1, **where: float
) -> list[Difference]:
    """Full method minus a variant of it."""
    table = select(runs.retrieval, method="l2rm", **HARD, **where)
    return compare(
        table, {"variant": ""}, {"variant": variant}, value, digits=digits, name=f"full − {variant},"
    )


def _data(runs: Runs) -> str:
    return data_of(select(runs.retrieval, method="l2rm"))


@judge("L01")
def best_at_every_rate(runs: Runs) -> Finding:
    """Best of every recall and rSum at every rate: rSum is tested, recalls are counted by their means."""
    table = usual(runs)
    found = best_other(table[table["mrate"] > 0], "method", "l2rm", OTHERS, least=RIVALS, **HARD)
    wins, all_ = _columns_won(table)
    verdict = verdict_of(found)
    verdict = PARTLY if verdict == HOLDS and wins < all_ else verdict
    lead = f"highest mean in {wins} of {all_} columns; rSum of l2rm minus the best other method"
    finding = conclude(
        found, _data(runs), verdict=verdict, lead=lead, missing="l2rm and other robust methods"
    )
    return all_rates(finding, found, RATES)


def _columns_won(table: pd.DataFrame) -> tuple[int, int]:
    wins = all_ = 0
    for _, part in conditions_of(select(table, **HARD), ("dataset", "preset", "model", "mrate")):
        part = part[part["method"].isin(OTHERS) & (part["mrate"] > 0)]
        if part["method"].nunique() <= RIVALS or "l2rm" not in set(part["method"]):
            continue
        means = part.groupby("method")[list(RECALLS)].mean()
        wins += int((means.idxmax() == "l2rm").sum())
        all_ += len(RECALLS)
    return wins, all_


@judge("L02")
def gain_grows(runs: Runs) -> Finding:
    """The gain over the best other method is larger at the high rates."""
    found = []
    for at, part in conditions_of(select(usual(runs), **HARD), ("dataset", "preset", "model")):
        gains = {}
        for rate in RATES:
            best = best_other(select(part, mrate=rate), "method", "l2rm", OTHERS, least=RIVALS)
            if best and best[0].n > 1:
                gains[rate] = best[0].values
        for high in (0.6, 0.8):
            for low in (0.2, 0.4):
                if low in gains and high in gains and len(gains[low]) == len(gains[high]):
                    found.append(growth(gains[low], gains[high], f"{at} gain at {high:g} minus at {low:g}"))
    return conclude(found, _data(runs), missing="l2rm and other robust methods at low and high rates")


@judge("L06")
def every_component_helps(runs: Runs) -> Finding:
    """Partial transport, mask and learned cost each help."""
    found = [d for v in ("rho=1", "mask=False", "cost=cosine") for d in _variant(runs, v)]
    return conclude(found, _data(runs), missing="l2rm with rho=1, mask=False, cost=cosine")


@judge("L07")
def learned_cost_helps(runs: Runs) -> Finding:
    """The learned cost beats the cosine cost."""
    return conclude(_variant(runs, "cost=cosine"), _data(runs), missing="l2rm with cost=cosine")


@judge("L08")
def other_losses_work(runs: Runs) -> Finding:
    """KL alone or InfoNCE as rematching loss still beat plain training."""
    table, found = select(runs.retrieval, **HARD), []
    for loss in ("kl", "infonce"):
        ours = {"method": "l2rm", "variant": f"rematch={loss}"}
        found += compare(table, ours, {"method": "plain", "variant": ""}, name=f"{loss} − plain,")
    return conclude(found, _data(runs), missing="l2rm with rematch=kl and rematch=infonce")


@judge("L09")
def mass_hurts(runs: Runs) -> Finding:
    """More transported mass, lower recall."""
    table = select(runs.retrieval, method="l2rm", **HARD)
    found = []
    for name in sorted({v for v in table.get("variant", ()) if v.startswith("rho=") and "," not in v}):
        sign = 1 if float(name[4:]) > 0.1 else -1
        for d in compare(table, {"variant": name}, {"variant": ""}, name=f"{name} against 0.1,"):
            found.append(Difference(tuple(sign * v for v in d.values), d.name))
    return conclude(found, _data(runs), want="below", missing="l2rm with other values of rho")


@judge("L10")
def triplet_warmup_fails(runs: Runs) -> Finding:
    """Warm-up with the triplet loss fails at 0.8."""
    found = _variant(runs, "warmup=triplet", mrate=0.8)
    return conclude(found, _data(runs), missing="l2rm with warmup=triplet at rate 0.8")


@judge("L11")
def reverse_cross_entropy_needed(runs: Runs) -> Finding:
    """At 0.8 the reverse cross entropy is needed in warm-up."""
    found = _variant(runs, "warmup=infonce", mrate=0.8)
    return conclude(found, _data(runs), missing="l2rm with warmup=infonce at rate 0.8")


@judge("L14")
def rematched_fit_better(runs: Runs) -> Finding:
    """Share of true facts: the caption found against the caption given."""
    found = within(usual(runs), "rematch_relevance", "given_relevance", method="l2rm")
    return conclude(
        found,
        _data(runs),
        lead="share of a caption's facts that hold for the rematched picture, found − given, last epoch",
        missing="l2rm on data with known truth",
    )


@judge("L16")
def permuting_images_is_harder(runs: Runs) -> Finding:
    """rSum under captions that move alone minus rSum under whole pictures' captions that move, NCR."""
    table, found = usual(runs), []
    for method in ("ncr", "bicro", "plain"):
        part = select(table, method=method)
        part = part[part["mrate"] > 0] if len(part) else part
        found += compare(
            part,
            {"protocol": "captions"},
            {"protocol": "images"},
            conditions=("dataset", "preset", "model", "mrate"),
            name=f"{method},",
        )
    verdict = verdict_of([d for d in found if d.name.startswith("ncr")])
    return conclude(
        found,
        data_of(select(table, method="ncr")),
        verdict=verdict,
        lead="rSum under captions minus rSum under images; the verdict is NCR's",
        missing="ncr under both protocols",
    )


@judge("L17")
def plain_collapses(runs: Runs) -> Finding:
    """Undefended training loses most of its recall between the lowest and a high rate."""
    found, kept = [], []
    for at, part in conditions_of(
        select(usual(runs), method="plain", **HARD), ("dataset", "preset", "model")
    ):
        low = select(part, mrate=0.2)
        for rate in (0.4, 0.6, 0.8):
            d = paired(select(part, mrate=rate), low, name=f"{at} {rate:g} against 0.2")
            if d.n > 1:
                found.append(d)
                kept.append(select(part, mrate=rate)["rsum"].mean() / low["rsum"].mean())
    if not kept:
        return no_record("plain training at 0.2 and a higher rate")
    verdict = verdict_of(found, "below")
    verdict = PARTLY if verdict == HOLDS and min(kept) > COLLAPSED else verdict
    lead = f"at the worst rate {100 * min(kept):.0f} % of the rSum at 0.2 is left (a collapse: below 50 %)"
    return conclude(
        found, data_of(select(usual(runs), method="plain")), verdict=verdict, want="below", lead=lead
    )


@judge("L18")
def best_for_each_model(runs: Runs) -> Finding:
    """On each similarity model that was recorded, L2RM beats every other robust method."""
    found = best_other(usual(runs), "method", "l2rm", ROBUST, least=RIVALS, **HARD)
    return conclude(found, _data(runs), missing="l2rm and other robust methods on one model")


@judge("L19")
def helps_on_clean_data(runs: Runs) -> Finding:
    """At rate 0 L2RM improves on plain training."""
    found = compare(usual(runs), {"method": "l2rm"}, {"method": "plain"}, mrate=0.0)
    return conclude(found, _data(runs), missing="l2rm and plain training at rate 0")


def _batches(runs: Runs, *, larger: bool) -> list[Difference]:
    """L2RM in batches larger (or smaller) than usual, minus L2RM in usual ones."""
    table = select(runs.retrieval, method="l2rm", **HARD)
    if "batch_size" not in table:
        return []
    usual_size = select(table, variant="")["batch_size"].max()
    other = table[(table["batch_size"] > usual_size) == larger]
    names = sorted({v for v in other["variant"] if v.startswith("batch_size=")})
    return [d for v in names for d in compare(table, {"variant": v}, {"variant": ""}, name=f"{v},")]


@judge("L21")
def small_batch_beats_others(runs: Runs) -> Finding:
    """L2RM in small batches against the best other method in usual ones."""
    import pandas as pd

    table = select(runs.retrieval, **HARD)
    others = select(table, variant="")
    mine = select(table, method="l2rm")
    mine = mine[mine["variant"].str.startswith("batch_size=")]
    mine = mine[mine["batch_size"] < others["batch_size"].max()] if len(mine) else mine
    both = pd.concat([mine.assign(method="small batch"), others])
    found = best_other(both, "method", "small batch", ROBUST)
    return conclude(found, _data(runs), missing="l2rm in small batches and robust methods in usual ones")


@judge("L22")
def large_batch_helps(runs: Runs) -> Finding:
    """A larger batch with more transported mass."""
    found = _batches(runs, larger=True)
    return conclude(found, _data(runs), missing="l2rm in larger batches with their rho")


@judge("L23")
def small_batch_hurts(runs: Runs) -> Finding:
    """A smaller batch holds fewer captions that fit."""
    found = _batches(runs, larger=False)
    return conclude(found, _data(runs), want="below", missing="l2rm in smaller batches with their rho")


@judge("L27")
def mask_off_on_clean_data(runs: Runs) -> Finding:
    """Without wrong pairs the mask forbids right matches: off is better."""
    table = select(runs.retrieval, method="l2rm", mrate=0.0)
    found = compare(table, {"variant": "mask=False"}, {"variant": ""}, name="mask off − on,")
    return conclude(found, _data(runs), missing="l2rm at rate 0 with mask=False")


@judge("L29")
def reverse_kl_is_stabler(runs: Runs) -> Finding:
    """Spread over seeds with the symmetric loss against KL alone; needs more seeds than a mean does."""
    table = select(runs.retrieval, method="l2rm", **HARD)
    lines, smaller, least = [], [], 0
    for at, part in conditions_of(table, ("dataset", "preset", "model", "mrate")):
        full, kl = select(part, variant="")["rsum"], select(part, variant="rematch=kl")["rsum"]
        if min(len(full), len(kl)) > 1:
            smaller.append(full.std() < kl.std())
            least = min(len(full), len(kl))
            lines.append(f"{at}: standard deviation {full.std():.1f} against {kl.std():.1f} (n = {least})")
    if not lines:
        return no_record("l2rm with rematch=kl")
    verdict = PARTLY if any(smaller) else FAILS
    words = f"no test: {least} seeds cannot tell two spreads apart, so no more than 'partly' is given"
    return Finding(verdict, f"{'; '.join(lines)}.", least, _data(runs), words)


@judge("L31")
def cosine_feeds_errors_back(runs: Runs) -> Finding:
    """Share of right rematches in the last epoch, learned against cosine cost."""
    found = _variant(runs, "cost=cosine", "rematch_precision", 3)
    return conclude(found, _data(runs), lead="share of right rematches", missing="l2rm with cost=cosine")
