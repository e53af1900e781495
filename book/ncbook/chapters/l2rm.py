"""Figures and tables of the chapter on L2RM."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import recorded, show
from ncbook.compare import by_seed, over_rates
from ncbook.runs import as_preset, labelled
from ncbook.training import Finished, drawn_pairs, say, training_epochs
from nclib import Record, plots
from nclib.runs import load_record
from nclib.runs.noisy_pairs import NoisyPairs

SPLIT = (
    *("auc", "division_precision", "division_recall", "rematch_precision"),
    *("rematch_relevance", "best_relevance", "given_relevance", "chance_relevance"),
)

# Similarities of five mismatched pairs: pictures 1, 2, 3 find their captions at 2, 3, 1; 4 and 5 find none.
BATCH = torch.tensor(
    [
        [0.10, 0.80, 0.25, 0.15, 0.30],
        [0.20, 0.15, 0.75, 0.25, 0.10],
        [0.70, 0.30, 0.10, 0.20, 0.25],
        [0.25, 0.20, 0.15, 0.20, 0.30],
        [0.15, 0.25, 0.20, 0.30, 0.10],
    ]
)


def chain(pairs: NoisyPairs, seed: int, n: int = 4) -> list[int]:
    """Return mismatched pairs of which each caption was written for the picture of the next pair."""
    shown, own, wrong = pairs.image_of.numpy(), pairs.split.image_of, ~pairs.noise.matched
    if not wrong.any():
        return []
    rows = [int(np.random.default_rng(seed).choice(np.flatnonzero(wrong)))]
    while len(rows) < n:
        following = np.flatnonzero(wrong & (shown == own[rows[-1]]))
        if not len(following):
            break
        rows.append(int(following[0]))
    return rows


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw a chain of wrong pairs: each caption describes the next picture."""
    rows = chain(pairs, seed)
    return drawn_pairs(
        pairs, rows, ["describes the next picture"] * (len(rows) - 1) + ["describes a fifth one"]
    )


def division_said(record: Record) -> Markdown:
    """Say how well the last division of a run tells matched from mismatched pairs."""
    curve = training_epochs(record)
    if "auc" not in curve or not np.isfinite(curve["auc"].astype(float)).any():
        return say("The truth of this run's pairs is not known, so the division cannot be judged.")
    first, last = curve.iloc[0].astype(float, errors="ignore"), curve.iloc[-1]
    return say(
        f"By the last epoch a matched pair has the higher P(clean) with probability {last['auc']:.2f} "
        f"(first division {first['auc']:.2f}).",
        f"Of the pairs called matched {last['division_precision']:.0%} really are, "
        f"and {last['division_recall']:.0%} of the really matched pairs are found.",
    )


def rematching_said(record: Record) -> Markdown:
    """Say how true the captions found in the last epoch are, here and over the recorded runs."""
    last = training_epochs(record).iloc[-1]
    names = ("rematch_relevance", "given_relevance", "best_relevance", "chance_relevance")
    if not set(names) <= set(last.index) or last[list(names)].isna().any():
        return say(
            "Nothing was rematched in the last epoch, or these data cannot tell how true a caption is."
        )
    found, given, best, chance = (float(last[name]) for name in names)
    own = (
        f"Of the facts in a caption that L2RM found, {found:.0%} hold for the picture; of the caption that "
        f"it replaced, {given:.0%}; of the others of the batch, {chance:.0%} on average; of the truest one "
        f"there, {best:.0%}."
    )
    share = (found - chance) / (best - chance) if best > chance else 0.0
    s = record.settings
    runs = recorded(method="l2rm", **{k: s[k] for k in ("dataset", "model", "preset", "protocol", "mrate")})
    said = ""
    if len(runs):
        runs = as_preset(runs).set_index("seed")
        gain = by_seed(runs["rematch_relevance"] - runs["given_relevance"], digits=3)
        if gain.judged:
            verdict = ", which could be nothing" if gain.interval[0] <= 0 <= gain.interval[1] else ""
            said = f"Over the recorded runs the gain is {gain.short} of a caption's facts{verdict}."
    return say(
        own,
        f"From the average to the truest, the captions found go {share:.0%} of the way; "
        f"{last['rematch_precision']:.0%} of them are as true as the truest.",
        said,
    )


def longer_said(runs: pd.DataFrame) -> Markdown:
    """Say who is ahead after five epochs and after twelve, on SAF at rate 0.6."""
    ((rate, gain),) = over_rates(runs, "l2rm", "plain (infonce)").items()
    return say(f"After twelve epochs at rate {rate:g} L2RM minus InfoNCE is {gain.short}.")


def rematched_examples(run: Finished, seed: int) -> Figure | None:
    """Draw rematched pairs: the four with the largest share, and four drawn with a seed."""
    last, split = run.last, run.trainer.pairs.split
    if "rematch_mass" not in last or not split.has_pictures:
        return None
    moved = np.flatnonzero(last["rematch_mass"] > 0.5)
    best = moved[np.argsort(-last["rematch_share"][moved], kind="stable")[:4]]
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(moved, best))[:4]
    rows = np.concatenate([best, rest])
    if not len(rows):
        return None
    pair, new = last["rematch_image"][rows], last["rematch_caption"][rows]
    pictures, lines = run.image_of[pair], []
    for p, n, picture, share in zip(pair, new, pictures, last["rematch_share"][rows], strict=True):
        true = 100 * split.relevance([picture], [n])[0, 0]
        given = ("✗ " + split.captions.text(p), plots.MISMATCHED)
        found = ("➜ " + split.captions.text(n), plots.MATCHED)
        lines.append([given, found, (f"share {share:.2f}, {true:.0f} % of it true", "#222222")])
    return plots.captioned_pictures(split, pictures, lines)


def longer_runs() -> pd.DataFrame:
    """Return the recorded runs of ten training epochs on SAF at rate 0.6."""
    runs = recorded(preset="quick", model="saf", dataset="emoji", protocol="images", epochs=10, mrate=0.6)
    return labelled(runs)


def longer_curves(runs: pd.DataFrame) -> Figure:
    """Draw the learning curves of one longer run per method."""
    first = runs.sort_values(["label", "seed"]).drop_duplicates("label").set_index("label")["path"]
    return plots.learning_curves({label: load_record(path) for label, path in first.items()})


def longer_table(runs: pd.DataFrame) -> Styler:
    """Show test rSum of the longer runs."""
    columns = {"rsum": ["mean", "min", "max", "count"], "best_epoch": ["mean"]}
    table = runs.groupby("label").agg(columns).rename_axis(index=None)
    table.columns = ["test rSum, mean", "lowest", "highest", "seeds", "best epoch, mean"]
    caption = "Measured, preset quick with 2 + 10 epochs, mismatch rate 0.6, otherwise as above"
    return show(table, "longer", caption, digits=1)
