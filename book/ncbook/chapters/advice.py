"""Tables and sentences of the page "Which method should I use?", computed over all real data sets."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import board, show
from ncbook.averaged import GCE, RATES
from ncbook.board import ALONE, ONE, REAL, TWO
from ncbook.compare import paired
from ncbook.runs import select
from nclib.methods.base import METHODS

BASE = {"pairs": GCE, "labels": "deep_sm"}  # whose seconds are the unit of time
KINDS = {ONE: "One network", TWO: "Two networks"}
NOTHING = "No records here."


def across(
    table: pd.DataFrame, task: str = "pairs", networks: str = ONE, rates: Sequence[float] = RATES
) -> pd.DataFrame:
    """Return score and rank of every method on each real data set.

    Parameters
    ----------
    table : DataFrame
        From :func:`ncbook.board.scored`.
    task : {"pairs", "labels"}
    networks : {"one", "two"}
        Methods of the other kind are not compared with these.
    rates : sequence of float
        A score is the mean over these rates of the means over the seeds.

    Returns
    -------
    DataFrame
        By label: ``(set, "score")``, ``(set, "rank")`` and ``(set, "seeds")``, the smallest number over the
        rates, for each set; ``("", "worst rank")``, NaN where a set is missing; ``("", "time")``, seconds of
        training over those of one network of :data:`BASE`, mean over the sets. Smallest worst rank first. A
        method is left out of a set where a rate is missing or its runs are not ranked, see
        :func:`ncbook.board.is_marked`.
    """
    columns: dict[tuple[str, str], pd.Series] = {}
    times = {}
    for dataset, where in REAL[task].items():
        part = select(table, task=task, dataset=dataset, **where)
        part = part[part["rate"].isin(rates) & (part["networks"] != ALONE)]
        part = part[~board.is_marked(part)] if len(part) else part
        spent = part.groupby("label")["seconds"].mean()
        cells = part[part["networks"] == networks].groupby(["label", "rate"])["value"]
        means, seeds = (cells.agg(how).unstack() for how in ("mean", "count"))
        whole = means.reindex(columns=list(rates)).dropna()
        if len(whole):
            score = whole.mean(axis=1)
            columns[dataset, "score"] = score
            columns[dataset, "rank"] = score.rank(ascending=False, method="min")
            columns[dataset, "seeds"] = seeds.loc[whole.index, list(rates)].min(axis=1)
            times[dataset] = spent.reindex(score.index) / spent.get(BASE[task], float("nan"))
    frame = pd.DataFrame(columns)
    if frame.empty:
        return frame
    ranks = frame.xs("rank", axis=1, level=1).reindex(columns=list(REAL[task]))
    frame["", "worst rank"] = ranks.max(axis=1, skipna=False)
    frame["", "time"] = pd.DataFrame(times).mean(axis=1)
    order = pd.DataFrame({"worst": frame["", "worst rank"], "mean": ranks.mean(axis=1)})
    return frame.loc[order.sort_values(["worst", "mean"]).index]


def choice_table(table: pd.DataFrame, task: str = "pairs", rates: Sequence[float] = RATES) -> Styler | None:
    """Show :func:`across` of one network and of two; None without records."""
    metric, digits = board.METRICS[task]
    parts = {}
    for kind, name in KINDS.items():
        found = across(table, task, kind, rates)
        rows = {}
        for label, row in found.iterrows():
            cells = {}
            for dataset in REAL[task]:
                score = row.get((dataset, "score"), float("nan"))
                known = score == score
                head = board.data_name(dataset)
                cells[head, metric] = f"{score:.{digits}f}" if known else board.DASH
                cells[head, "rank"] = f"{row[dataset, 'rank']:.0f}" if known else board.DASH
            worst, time = row["", "worst rank"], row["", "time"]
            cells["", "worst rank"] = f"{worst:.0f}" if worst == worst else board.DASH
            cells["", "time"] = f"{time:.1f}" if time == time else board.DASH
            cells["", "clean pairs"] = _clean(str(label))
            rows[label] = cells
        if rows:
            parts[name if task == "pairs" else ""] = pd.DataFrame.from_dict(rows, orient="index")
    if not parts:
        return None
    frame = pd.concat(parts)
    frame.columns = pd.MultiIndex.from_tuples(frame.columns)
    if task == "labels":
        frame = frame.droplevel(0).drop(columns=[("", "clean pairs")])
    caption = (
        f"Measured: {metric}, mean over {_rates(rates)} and seeds ({_seeds(table, task, rates)}, at "
        "the rate with the fewest), and rank "
        f"among methods with as many networks. Time: seconds of training over those of {BASE[task]}. A dash: "
        "not every rate is recorded, or a run was tested in its warm-up"
    )
    at = "" if rates == RATES else "".join(f"-{rate:g}" for rate in rates)
    return show(frame, f"choice-{task}{at}", caption)


def short(table: pd.DataFrame, task: str = "pairs", rates: Sequence[float] = RATES) -> str:
    """Say in Markdown, a line for each number of networks, who leads where and whom it is safest to take."""
    lines = []
    for kind, name in KINDS.items():
        found = across(table, task, kind, rates)
        if found.empty:
            continue
        sets = [d for d in REAL[task] if (d, "rank") in found]
        leads = {d: str(found[d, "rank"].idxmin()) for d in sets}
        if len(sets) < len(REAL[task]):
            said = f"{_named(leads[sets[0]])} leads on {board.data_name(sets[0])}, the only set on record"
        elif len(set(leads.values())) == 1:
            said = f"{_named(leads[sets[0]])} leads on both sets"
        else:
            said = "no method leads on both sets: " + ", ".join(
                f"{_named(label)} on {board.data_name(d)} ({_elsewhere(found, label, d, sets)})"
                for d, label in leads.items()
            )
        ranked = found[found["", "worst rank"].notna()]
        if len(ranked) > 1:
            safest = ranked.index[0]
            said += (
                f". Of the {len(ranked)} ranked on both, {_named(str(safest))} has the smallest worst "
                f"rank, {ranked.loc[safest, ('', 'worst rank')]:.0f}"
            )
            if (time := ranked.loc[safest, ("", "time")]) == time and safest != BASE[task]:
                said += f", and trains {time:.1f} times as long as {_named(BASE[task])}"
        lines.append(f"- **{name if task == 'pairs' else 'Wrong labels'}, {_rates(rates)}**: {said}.")
    return "\n".join(lines) or NOTHING


def kinds_of_noise(table: pd.DataFrame) -> str:
    """Say what methods gain when single captions are exchanged in place of whole images, on photographs."""
    lines = []
    part = select(table, task="pairs", dataset="f8k", preset="standard", model="bow")
    for rate, at in part[part["networks"] != ALONE].groupby("rate"):
        two = {p: at[at["protocol"] == p] for p in ("images", "captions")}
        gaps = {
            str(label): paired(own, two["images"][two["images"]["label"] == label], "value")
            for label, own in two["captions"].groupby("label")
        }
        known = {label: d.mean for label, d in gaps.items() if d.n > 1}
        if known:
            most, least = (how(known, key=lambda k: known[k]) for how in (max, min))
            ahead = sum(d > 0 for d in known.values())
            span = f"{known[least]:+.1f} ({_named(least)}) to {known[most]:+.1f} ({_named(most)})"
            lines.append(
                f"- **Rate {rate:g}**: {ahead} of {len(known)} methods reach more when captions move one by "
                f"one, by {span}."
            )
    return "\n".join(lines) or NOTHING


def _elsewhere(found: pd.DataFrame, label: str, dataset: str, sets: Sequence[str]) -> str:
    """Say which rank a leader of one set has on the others."""
    ranks = {d: found.loc[label, (d, "rank")] for d in sets if d != dataset}
    return ", ".join(
        f"rank {rank:.0f} on {board.data_name(d)}" if rank == rank else f"not ranked on {board.data_name(d)}"
        for d, rank in ranks.items()
    )


def _named(label: str) -> str:
    return f"`{label}`"


def _rates(rates: Sequence[float]) -> str:
    return f"rate{'s' if len(rates) > 1 else ''} {board.rate_text(rates)}"


def _clean(label: str) -> str:
    """Return the share of pairs that a method must know to be right, as text."""
    method = label.split(", ")[0].split(" (")[0]
    share = METHODS[method].factory.clean_share if method in METHODS else 0.0
    return f"{share:.0%}" if share else "none"


def _seeds(table: pd.DataFrame, task: str, rates: Sequence[float]) -> str:
    """Say from how many seeds the scores of each set are, smallest and largest number."""
    found = pd.concat([across(table, task, kind, rates) for kind in KINDS])
    said = []
    for dataset in REAL[task]:
        if (dataset, "seeds") in found:
            n = found[dataset, "seeds"].dropna().astype(int)
            span = f"{n.min()}" if n.min() == n.max() else f"{n.min()} to {n.max()}"
            said.append(f"{span} on {board.data_name(dataset)}")
    return ", ".join(said)
