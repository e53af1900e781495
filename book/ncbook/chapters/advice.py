"""Tables and sentences of the page "Which method should I use?", computed over all real data sets."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import board, show
from ncbook.averaged import GCE, RATES
from ncbook.board import ALONE, ONE, REAL, TWO
from ncbook.compare import paired
from ncbook.marks import marks_of
from ncbook.notebook import NOT_RUN
from ncbook.runs import select
from nclib.methods.base import METHODS

BASE = {"pairs": GCE, "labels": "deep_sm"}  # whose seconds are the unit of time
KINDS = {ONE: "One network", TWO: "Two networks"}
NOTHING = "No records here."
DEVELOPED = "developed on Flickr8K"


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
        By label: ``(set, "score")``, ``(set, "rank")``, ``(set, "seeds")``, the smallest number over the
        rates, and ``(set, "marks")`` for each set; ``("", "worst rank")``, NaN without a rank on each set;
        ``("", "time")``, seconds of training over those of one network of :data:`BASE`, mean over the sets.
        Smallest worst rank first, methods of this book last. A rank counts the methods that every recorded
        set has at these rates, unmarked (:func:`ncbook.board.is_marked`) and with enough seeds
        (:func:`ncbook.board.has_seeds`): so ranks on two sets are out of the same methods.
    """
    columns: dict[tuple[str, str], pd.Series] = {}
    times, ranked = {}, []
    for dataset, where in REAL[task].items():
        part = select(table, task=task, dataset=dataset, **where)
        part = part[part["rate"].isin(rates) & (part["networks"] != ALONE)]
        spent = part.groupby("label")["seconds"].mean()
        part = part[part["networks"] == networks]
        cells = part.groupby(["label", "rate"])["value"]
        means, seeds = (cells.agg(how).unstack() for how in ("mean", "count"))
        whole = means.reindex(columns=list(rates)).dropna()
        if whole.empty:
            continue
        score, n = whole.mean(axis=1), seeds.loc[whole.index, list(rates)].min(axis=1)
        marked = part["label"][board.is_marked(part)]
        n_unmarked = n.drop(marked, errors="ignore")
        ranked.append(n_unmarked.index[board.has_seeds(n_unmarked)])
        columns[dataset, "score"], columns[dataset, "seeds"] = score, n
        columns[dataset, "marks"] = pd.Series(
            {label: " ".join(marks_of(rows)) for label, rows in part.groupby("label")}
        ).reindex(score.index)
        times[dataset] = spent.reindex(score.index) / spent.get(BASE[task], float("nan"))
    frame = pd.DataFrame(columns)
    if frame.empty:
        return frame
    field = list(functools.reduce(pd.Index.intersection, ranked))
    for dataset in times:
        frame[dataset, "rank"] = frame.loc[field, (dataset, "score")].rank(ascending=False, method="min")
    ranks = frame.xs("rank", axis=1, level=1).reindex(columns=list(REAL[task]))
    frame["", "worst rank"] = ranks.max(axis=1, skipna=False)
    frame["", "time"] = pd.DataFrame(times).mean(axis=1)
    scores = frame.xs("score", axis=1, level=1)
    order = pd.DataFrame(
        {
            "own": [board.is_own(str(label)) for label in frame.index],
            "worst": frame["", "worst rank"],
            "mean": ranks.mean(axis=1),
            "behind": 1 - (scores / scores.max()).mean(axis=1),  # of those without a rank
        }
    )
    return frame.loc[order.sort_values(list(order)).index]


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
                score, rank = (row.get((dataset, k), float("nan")) for k in ("score", "rank"))
                head = board.data_name(dataset)
                cells[head, metric] = NOT_RUN
                if score == score:
                    cells[head, metric] = f"{score:.{digits}f} {row[dataset, 'marks']}".rstrip()
                cells[head, "rank"] = f"{rank:.0f}" if rank == rank else board.DASH
            worst, time = row["", "worst rank"], row["", "time"]
            cells["", "worst rank"] = f"{worst:.0f}" if worst == worst else board.DASH
            cells["", "time"] = f"{time:.1f}" if time == time else board.DASH
            cells["", "clean pairs"] = _clean(str(label))
            rows[f"{label} ({DEVELOPED})" if board.is_own(str(label)) else label] = cells
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
        "the rate with the fewest), and rank among the methods that both sets have with as many networks, "
        "without a run tested in its warm-up; one seed is ranked only where most methods have one. Time: "
        f"seconds of training over those of {BASE[task]}. {NOT_RUN.capitalize()}: a rate is missing"
    )
    at = "" if rates == RATES else "".join(f"-{rate:g}" for rate in rates)
    return show(frame, f"choice-{task}{at}", caption)


def short(table: pd.DataFrame, task: str = "pairs", rates: Sequence[float] = RATES) -> str:
    """Say in Markdown, a line for each number of networks, who leads where and whom it is safest to take.

    A method of this book is named last, and as the safest only where it leads on every set.
    """
    lines = []
    for kind, name in KINDS.items():
        found = across(table, task, kind, rates)
        if found.empty:
            continue
        sets = [d for d in REAL[task] if (d, "rank") in found]
        ranked = found[found[sets[0], "rank"].notna()]
        head = f"- **{name if task == 'pairs' else 'Wrong labels'}, {_rates(rates)}**"
        if ranked.empty:
            lines.append(f"{head}: no method is ranked.")
            continue
        safest = str(ranked.index[0])  # not of this book, if there is another
        if len(sets) < len(REAL[task]):
            rank = f"{ranked.loc[safest, (sets[0], 'rank')]:.0f} of {len(ranked)}"
            on = f"{board.data_name(sets[0])}, the only set on record"
            lines.append(f"{head}: {_named(safest)} has rank {rank} on {on}.")
            continue
        leads = {d: str(ranked[d, "rank"].idxmin()) for d in sets}
        if len(set(leads.values())) == 1:
            safest = leads[sets[0]]
            said = f"{_named(safest)} leads on both"
        else:
            said = "none leads on both: " + ", ".join(
                f"{_named(label)} on {board.data_name(d)} ({_elsewhere(ranked, label, d, sets)})"
                for d, label in sorted(leads.items(), key=lambda item: board.is_own(item[1]))
            )
        if len(ranked) > 1:
            worst = ranked["", "worst rank"]
            as_safe = [str(k) for k in worst.index[worst <= worst[safest]] if k != safest]
            others = [_named(k) for k in as_safe if not board.is_own(k)]
            apart = "apart from methods of this book, " if len(others) < len(as_safe) else ""
            said += f"; {apart}{_named(safest)} has the smallest worst rank, {worst[safest]:.0f}"
            said += f" (so {'has' if len(others) == 1 else 'have'} {', '.join(others)})" if others else ""
            if (time := ranked.loc[safest, ("", "time")]) == time and safest != BASE[task]:
                said += f", and trains {time:.2g} times as long as {_named(BASE[task])}"
        lines.append(f"{head}: of {len(ranked)} ranked on both sets, {said}.")
    return "\n".join(lines) or NOTHING


def kinds_of_noise(table: pd.DataFrame) -> str:
    """Say what methods gain when single captions are exchanged in place of whole images, on photographs.

    Methods of :func:`ncbook.board.is_marked` are left out.
    """
    lines = []
    part = select(table, task="pairs", dataset="f8k", preset="standard", model="bow")
    part = part[(part["networks"] != ALONE) & ~board.is_marked(part)]
    for rate, at in part.groupby("rate"):
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
    """Say which rank a leader of one set has on the others; of a method of this book where it is from."""
    said = [f"rank {found.loc[label, (d, 'rank')]:.0f} on {board.data_name(d)}" for d in sets if d != dataset]
    return ", ".join(said) + (f"; {DEVELOPED}" if board.is_own(label) else "")


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
