"""Figures, tables and sentences of the chapter on rematching: why it helps or hurts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from scipy.stats import hypergeom

from ncbook import mean_text, recorded, show
from ncbook.compare import SIGNS, by_seed, few_seeds, paired
from ncbook.marks import WARMUP
from ncbook.measurements import measurement
from ncbook.notebook import measures
from ncbook.runs import as_preset
from ncbook.training import say
from nclib import data, plots
from nclib.data import Split
from nclib.noise import Mismatch

LOOK: dict[str, dict[str, Any]] = {
    "images": {"color": plots.IMAGES, "marker": "o"},
    "captions": {"color": plots.CAPTIONS, "marker": "s"},
}
BATCHES = (32, 64, 128, 256, 512)
ROWS = 2048  # wrong pairs of drawn data whose batches are looked at
CONCEPTS = (20, 40, 80, 160, 320)
COMPARED = ["plain (infonce)", "plain (infonce_rce)", "l2rm, dropped", "l2rm"]
AGAINST = {
    "plain (infonce)": "InfoNCE",
    "plain (infonce_rce)": "the warm-up loss alone",
    "l2rm, dropped": "dropping",
}

VARIANTS = [  # of L2RM, as the probe calls them
    *("L2RM", "L2RM, cosine cost", "dropped", "uniform", "largest entry"),
    *("true partner, else uniform", "true partner, else dropped"),
    *("L2RM, partners in the batch", "true partner, partners in the batch"),
    *("L2RM, true division", "dropped, true division", "uniform, true division"),
]

# ---------------------------------------------------------------------------------- partners in a batch


def chance_of_partner(n_wrong: int, batch: int, captions: int, rate: float | None = None) -> float:
    """Return the probability that a batch of wrong pairs holds a true caption of a pair's picture.

    Parameters
    ----------
    n_wrong : int
        Pairs from which the batch is drawn without replacement.
    batch : int
        B; the pair itself and B - 1 others.
    captions : int
        d, captions of a picture.
    rate : float, optional
        None: all d captions were moved, as under the protocol ``images``. Otherwise one was, and each of the
        other d - 1 with this probability, as under ``captions``.

    Returns
    -------
    float
        :math:`1 - \\sum_k P(k) \\binom{n-1-k}{B-1} / \\binom{n-1}{B-1}` with k true captions among the pairs.
    """
    k = np.array([captions]) if rate is None else 1 + np.arange(captions)
    if rate is None:
        weight = np.ones(1)
    else:
        n = round(n_wrong / rate)
        weight = hypergeom.pmf(k - 1, n - 1, captions - 1, n_wrong - 1)
    return float(1 - weight @ hypergeom.pmf(0, n_wrong - 1, k, batch - 1))


def count_partners(shown: np.ndarray, described: np.ndarray, batch: int, seed: int) -> dict[str, float]:
    """Count true partners in batches drawn from the wrong pairs.

    Parameters
    ----------
    shown, described : ndarray of int, (N,)
        Picture that each pair shows, and the one that its caption describes.
    batch : int
        B; a last batch that is not full is left out.
    seed : int
        Of the order.

    Returns
    -------
    dict
        ``wrong``, the number of wrong pairs; ``batches``; ``with_partner``, the share of pairs whose picture
        another pair of the batch describes; ``partners``, the mean number of such pairs.
    """
    wrong = np.flatnonzero(shown != described)
    order = np.random.default_rng(seed).permutation(wrong)
    rows = order[: len(order) // batch * batch].reshape(-1, batch)
    found = np.concatenate([(shown[r][:, None] == described[r]).sum(1) for r in rows])
    return {
        "wrong": len(wrong),
        "batches": len(rows),
        "with_partner": float((found > 0).mean()),
        "partners": float(found.mean()),
    }


def photograph_counts() -> pd.DataFrame:
    """Return the recorded counts on Flickr8K: one row per protocol, rate, batch size and seed."""
    table = pd.DataFrame(measurement("probe_counts")["rows"])
    keys = table[["protocol", "rate", "batch", "wrong"]].itertuples(index=False)
    chances = [
        chance_of_partner(k.wrong, k.batch, 5, None if k.protocol == "images" else k.rate) for k in keys
    ]
    return table.assign(expected=chances)


def partners(counts: pd.DataFrame, batch: int = 128, rate: float = 0.6) -> Figure:
    """Draw the share of wrong pairs with a true partner in the batch: counted, and by the formula."""
    figure, (axes,) = plots.panels(1, 2, height=3.0, sharey=True)
    for axis, key, fixed in ((axes[0], "batch", ("rate", rate)), (axes[1], "rate", ("batch", batch))):
        for protocol, look in LOOK.items():
            part = counts[(counts["protocol"] == protocol) & (counts[fixed[0]] == fixed[1])]
            axis.plot(part[key], 100 * part["with_partner"], look["marker"], ms=5, color=look["color"])
            line = part.groupby(key)["expected"].mean()
            axis.plot(line.index, 100 * line, lw=1.5, color=look["color"], label=protocol)
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(BATCHES, [str(b) for b in BATCHES])
    axes[0].set(xlabel="pairs in a batch", ylabel="wrong pairs with a partner, %", title=f"rate {rate:g}")
    axes[1].set(xlabel="mismatch rate", title=f"batch {batch}")
    axes[0].legend()
    return figure


def say_partners(counts: pd.DataFrame, batch: int = 128, rate: float = 0.6) -> None:
    """Print how rare partners are at one batch size and rate, and how far formula and count differ."""
    for protocol in LOOK:
        part = counts[(counts["protocol"] == protocol) & (counts["batch"] == batch)]
        here = part[part["rate"] == rate]
        print(
            f"{protocol}: at rate {rate:g}, {100 * here['with_partner'].mean():.1f} of 100 wrong pairs have "
            f"a true partner in a batch of {batch}; the formula says {100 * here['expected'].mean():.1f}"
        )
    gap = (counts["with_partner"] - counts["expected"]).abs().max()
    print(f"largest difference of count and formula in {len(counts)} cells: {100 * gap:.1f} of 100 pairs")


def _in_batches(train: Split, noise: Mismatch, batch: int, seed: int) -> dict[str, float]:
    """Return what batches of wrong pairs hold, by the known relevance of captions."""
    wrong = np.flatnonzero(~noise.matched)
    order = np.random.default_rng(seed).permutation(wrong)[: max(ROWS, batch)]
    found = []
    for rows in order[: len(order) // batch * batch].reshape(-1, batch):
        relevance = train.relevance(noise.image_of[rows], rows)
        given = relevance.diagonal().copy()
        np.fill_diagonal(relevance, 0)
        exact = (noise.image_of[rows][:, None] == train.image_of[rows]).any(1)
        fits, chance = (relevance >= 1).any(1), relevance.sum(1) / (batch - 1)
        found.append(np.stack([exact, fits, relevance.max(1), given, chance], axis=1))
    names = ("its own caption", "a caption that is all true", "best relevance", "given", "by chance")
    return dict(zip(names, np.concatenate(found).mean(0).tolist(), strict=True)) if found else {}


def scene_partners(settings: Any, rate: float, seed: int) -> Styler:
    """Show what a batch of wrong pairs holds of fitting captions on data that know their facts."""
    train = data.load(settings.run.dataset, **settings.data_options).train
    rows = {}
    for protocol in LOOK:
        noise = Mismatch.draw(train.image_of, rate, seed=seed, protocol=protocol)
        for batch in (32, 128, 512):
            if found := _in_batches(train, noise, batch, seed):
                rows[protocol, batch] = found
    table = pd.DataFrame(rows).T.rename_axis(["protocol", "batch"])
    caption = (
        f"Counted on {settings.run.dataset} ({train.n_images:,} pictures), rate {rate:g}, seed {seed}, "
        f"{ROWS:,} wrong pairs: shares of pictures, and mean relevance (share of a caption's facts that hold)"
    )
    return show(table, "scenes", caption, digits=3)


def by_concepts(rate: float, seed: int, batch: int = 128) -> Styler:
    """Show how often a batch holds a fitting caption, by the number of concepts in synthetic data."""
    rows = {}
    for n in CONCEPTS:
        train = data.load("planted", n_train=1000, n_val=1, n_test=1, n_concepts=n, seed=seed).train
        noise = Mismatch.draw(train.image_of, rate, seed=seed)
        rows[n] = _in_batches(train, noise, batch, seed)
    table = pd.DataFrame(rows).rename_axis(columns="concepts")
    caption = (
        f"Counted on planted data, 1,000 pictures of four concepts, captions naming two to four; "
        f"batch {batch}, rate {rate:g}, images exchanged, seed {seed}"
    )
    return show(table, "concepts", caption, digits=3)


# ------------------------------------------------------------------------------------- recorded probes


def probes(part: str) -> pd.DataFrame:
    """Return the recorded epochs of variants of L2RM, one row per epoch of a run.

    ``part`` is "targets", at rate 0.6, or "clean", without wrong pairs.
    """
    own = ("label", "seed", "mrate", "best_epoch", "val", "test", "last")
    rows = [
        {k: run[k] for k in own} | epoch
        for run in measurement(f"probe_{part}")["rows"]
        for epoch in run["epochs"]
    ]
    return pd.DataFrame(rows)


def last_epochs(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the last epoch of each run, in the order of the runs."""
    return epochs.groupby(["label", "seed"], sort=False).tail(1)


def seeds(epochs: pd.DataFrame) -> str:
    """Return the seeds of runs in words."""
    return "seeds " + ", ".join(map(str, sorted(set(epochs["seed"]))))


def found_by_epoch(epochs: pd.DataFrame) -> Figure:
    """Draw how often the plan's largest entry is a true partner, and how peaked the targets are, by epoch."""
    part = epochs[(epochs["phase"] == "training") & epochs["label"].isin(["L2RM", "L2RM, cosine cost"])]
    figure, (axes,) = plots.panels(1, 2, height=3.0)
    lines = {
        "there_found": ("largest entry of the plan", plots.IMAGES, "o"),
        "there_nearest": ("lowest cost", plots.ACCENT, "^"),
        "there_chance": ("chance", plots.NEUTRAL, "x"),
        "accuracy": ("largest entry, all wrong pairs", plots.THIRD, "s"),
    }
    learned = part[part["label"] == "L2RM"].groupby("epoch").mean(numeric_only=True)
    for key, (name, colour, marker) in lines.items():
        axes[0].plot(learned.index, 100 * learned[key], marker=marker, ms=5, color=colour, label=name)
    axes[0].set(xlabel="epoch", ylabel="true partners, %", title="found where it is in the batch")
    axes[0].set_ylim(0, 42)
    axes[0].legend()
    for key, name, colour in (
        ("there_best", "partner in the batch", plots.MATCHED),
        ("absent_best", "no partner in the batch", plots.MISMATCHED),
    ):
        axes[1].plot(learned.index, learned[key], marker="o", ms=5, color=colour, label=name)
    axes[1].set(xlabel="epoch", ylabel="share of the target", title="largest entry of a target")
    axes[1].set_ylim(0, 1)
    axes[1].legend()
    return figure


FOUND = {
    "there_rows": "partner in the batch",
    "there_found": "found, where it is there",
    "there_nearest": "lowest cost is it, where there",
    "there_chance": "by chance, where there",
    "there_on_partners": "share of the target on it, where there",
    "accuracy": "found, all wrong pairs",
    "there_moved": "row moved, where it is there",
    "absent_moved": "row moved, where it is not",
    "accuracy_moved": "found, wrong pairs that moved",
    "there_best": "largest entry, partner there",
    "absent_best": "largest entry, partner not there",
}


def found_table(epochs: pd.DataFrame) -> Styler:
    """Show what the plans of the last epoch find, with the learned cost and with the cosine."""
    part = last_epochs(epochs[epochs["label"].isin(["L2RM", "L2RM, cosine cost"])])
    table = part.groupby("label", sort=False)[list(FOUND)].mean().T.rename(index=FOUND)
    caption = (
        f"Measured on Flickr8K, rate 0.6, images exchanged, batch 128, last epoch, {seeds(part)}: shares of "
        "the rematched pairs that are really wrong, and of their targets"
    )
    table.columns = table.columns.map({"L2RM": "learned cost", "L2RM, cosine cost": "cosine"})
    return show(table.rename_axis(columns=None), "found", caption, digits=3)


def ends(epochs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the first and the last training epoch of L2RM's runs."""
    part = epochs[(epochs["label"] == "L2RM") & (epochs["phase"] == "training")].groupby("seed")
    return {"first": part.head(1), "last": part.tail(1)}


def say_found(epochs: pd.DataFrame) -> None:
    """Print the central numbers of L2RM's plans in the first and the last epoch."""
    for number, rows in ends(epochs).items():
        v = rows.mean(numeric_only=True)
        print(
            f"{number} training epoch: {100 * v['there_rows'] / v['rows_wrong']:.1f} of 100 wrong pairs have "
            f"a partner in the batch, and the plan finds it in {100 * v['there_found']:.0f} of 100; "
            f"of all proposed partners {100 * (1 - v['accuracy']):.1f} of 100 are wrong"
        )


def targets_table(epochs: pd.DataFrame) -> Styler:
    """Show rSum of the variants, selected and last epoch, and how right the pairs called matched are."""
    part = last_epochs(epochs).sort_values("label", key=lambda labels: labels.map(VARIANTS.index))
    warm = epochs.loc[epochs["phase"] == "warm-up", "epoch"].max()
    names = {"val": "selected epoch", "val_rsum": "last epoch", "test": "test, selected"}
    table, groups = measures(part, names, digits=1), part.groupby("label", sort=False)
    table.loc[groups["best_epoch"].min() <= warm, "selected epoch"] += f" {WARMUP}"
    table["called matched, right"] = groups["division_precision"].mean().map("{:.2f}".format)
    caption = (
        f"Measured on Flickr8K, model bow, preset standard, rate 0.6, images exchanged: rSum on the "
        f"validation photographs, mean ± standard deviation (seeds); {seeds(part)}"
    )
    return show(table, "targets", caption)


def say_targets(epochs: pd.DataFrame) -> None:
    """Print how far each variant is from L2RM with the same division and seed, with its interval."""
    part = last_epochs(epochs).set_index("seed")
    measures = {"val": "validation, selected epoch", "val_rsum": "last epoch", "test": "test, selected epoch"}
    for label in dict.fromkeys(part["label"]):
        base = "L2RM, true division" if label.endswith(", true division") and label[:4] != "L2RM" else "L2RM"
        ours, theirs = part[part["label"] == label], part[part["label"] == base]
        found = {words: by_seed(ours[name] - theirs[name]) for name, words in measures.items()}
        if label != base and all(d.n for d in found.values()):
            said = [
                f"{words} {d.short}{f', {SIGNS[d.sign]}' if d.judged else ''}" for words, d in found.items()
            ]
            single = not any(d.judged for d in found.values())
            print(f"{label}, against {base}: {'; '.join(said)}{'; too few seeds' if single else ''}")


def rematching_said(epochs: pd.DataFrame) -> Markdown:
    """Say what rematching adds to dropping the pairs: with the true division, and with the mixture's."""
    part = last_epochs(epochs).set_index("seed")
    said = []
    for division, words in ((", true division", "the true division"), ("", "the mixture's division")):
        ours, theirs = (part[part["label"] == f"{name}{division}"] for name in ("L2RM", "dropped"))
        val, test = (by_seed(ours[name] - theirs[name]) for name in ("val", "test"))
        if val.n and test.n:
            verdict = f"**{SIGNS[val.sign]}**" if val.judged else few_seeds(val.n)
            numbers = f"{val.short} points of rSum on validation, {test.short} on test"
            said.append(f"With {words}, rematching against dropping is {verdict}: {numbers}.")
    return say(*said)


def shapes_table(epochs: pd.DataFrame) -> Styler:
    """Show how peaked L2RM's targets are and how strongly they pull, in the first and the last epoch."""
    names = {
        "effective_moved": "effective captions, rows that moved",
        "effective_unmoved": "effective captions, rows that did not",
        "absent_flat": "flat rows (no partner there)",
        "gradient_triplet": "gradient norm of the triplet loss",
        "gradient_rematch": "gradient norm of rematching",
        "gradient_cosine": "cosine of the two gradients",
    }
    found = ends(epochs)
    table = pd.DataFrame({end: rows[list(names)].mean() for end, rows in found.items()}).rename(index=names)
    caption = f"Measured on Flickr8K, L2RM at rate 0.6: training epochs, {seeds(found['last'])}"
    return show(table.rename_axis(columns="training epoch"), "shapes", caption, digits=2)


def say_division(epochs: pd.DataFrame) -> None:
    """Print how well the mixture divides the pairs in L2RM's first and last training epoch."""
    for number, rows in ends(epochs).items():
        v = rows.mean(numeric_only=True)
        right = 100 * v["division_precision"]
        print(
            f"{number} training epoch: AUC of the division {v['auc']:.2f}; {v['called_matched']:,.0f} of "
            f"30,000 pairs are called matched, and {right:.0f} of 100 of these are right"
        )


# ------------------------------------------------------------------------- dropping, and the warm-up loss


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of L2RM, of L2RM with the pairs dropped, and of two losses alone."""
    return runs[(runs["protocol"] == "images") & runs["label"].isin(COMPARED)]


def gain_figure(runs: pd.DataFrame) -> Figure:
    """Draw L2RM's gain over InfoNCE, its own warm-up loss and dropping, with the same seed, over the rate."""
    table = compared(runs).pivot_table(index=["mrate", "seed"], columns="label", values="rsum")
    figure, ((axis,),) = plots.panels(1, 1, height=3.2)
    colours = dict(zip(AGAINST, (plots.THIRD, plots.ACCENT, plots.IMAGES), strict=True))
    for label, name in AGAINST.items():
        gain = (table["l2rm"] - table[label]).dropna().rename("gain").reset_index()
        axis.plot(gain["mrate"], gain["gain"], "o", ms=4, color=colours[label])
        mean = gain.groupby("mrate")["gain"].mean()
        axis.plot(mean.index, mean, color=colours[label], label=f"over {name}")
    axis.axhline(0, color="#444444", lw=1)
    axis.set(xlabel="mismatch rate", ylabel="gain in rSum", title="L2RM, same seed")
    axis.legend()
    return figure


def say_gains(runs: pd.DataFrame) -> None:
    """Print L2RM's gain over each of the others at every recorded rate, with intervals; † as in tables."""
    part = compared(runs)
    for value, epoch in (("rsum", "selected epoch"), ("last.rsum", "last epoch")):
        for label, name in AGAINST.items():
            cells = []
            for rate, at in part[part["label"].isin(["l2rm", label])].groupby("mrate"):
                d = paired(at[at["label"] == "l2rm"], at[at["label"] == label], value)
                cells += [f"at {rate:g} {d.short}"] if d.n else []
            print(f"{epoch}: L2RM over {name}, rSum [95 % interval] (seeds): {', '.join(cells)}")


# --------------------------------------------------------------------------------------------- clean pairs


def clean_table(epochs: pd.DataFrame) -> Styler:
    """Show what becomes of right pairs that are called mismatched, at rate 0, with the mask or without."""
    part = last_epochs(epochs)
    training = epochs[epochs["phase"] == "training"]
    called = 30_000 - training.groupby(["label", "seed"], sort=False)["called_matched"].mean()
    rows = {}
    for label, runs in part.groupby("label", sort=False):
        known = "right_own" in runs and runs["right_own"].notna().any()
        v = runs.mean(numeric_only=True)
        rows[label] = {
            "right pairs called mismatched": f"{called[label].mean():,.0f}",
            "target on their own caption": f"{v['right_own']:.3f}" if known else "–",
            "target on captions of the same picture": f"{v['right_on_partners']:.3f}" if known else "–",
            "largest entry": f"{v['right_best']:.2f}" if known else "–",
            "validation rSum": mean_text(list(runs["val"])),
            "test rSum": mean_text(list(runs["test"])),
            "minus L2RM, same seed": paired(runs, part[part["label"] == "L2RM"], "test").short
            if label != "L2RM"
            else "–",
        }
    caption = (
        f"Measured on Flickr8K without wrong pairs, model bow, preset standard; mean number over the "
        f"training epochs, targets of the last epoch; {seeds(part)}"
    )
    return show(pd.DataFrame(rows).T, "clean", caption)


# ------------------------------------------------------------------------------------- scenes, from records


def scene_runs() -> pd.DataFrame:
    """Return the recorded quick runs of L2RM and its ablations on the scenes, model VSE."""
    return recorded(preset="quick", dataset="emoji", model="vse", method="l2rm", protocol="images")


def scenes_found(runs: pd.DataFrame) -> Styler:
    """Show by rate what rematching finds on the scenes, against the best caption of the batch and chance."""
    usual = as_preset(runs[runs["mrate"] > 0])
    names = {
        "rematch_rows": "rows that moved",
        "rematch_precision": "best caption of the batch chosen",
        "rematch_relevance": "relevance chosen",
        "best_relevance": "best of the batch",
        "given_relevance": "given, in rows that moved",
        "chance_relevance": "by chance",
    }
    table = usual.groupby("mrate")[list(names)].mean().T.rename(index=names)
    table.columns = [f"{rate:g}" for rate in table.columns]
    caption = (
        f"Measured on scenes (emoji), preset quick, model vse, batch 32, last epoch: means of {len(usual)} "
        "recorded runs; relevance is the share of a caption's facts that hold in the picture"
    )
    return show(table.rename_axis(columns="mismatch rate"), "scenes_found", caption, digits=3)


SCENE_VARIANTS: dict[str, dict[str, Any]] = {
    "L2RM (λ = 0.01)": {},
    "λ = 0.001": {"lam": 0.001},
    "λ = 0.1": {"lam": 0.1},
    "cosine cost": {"cost": "cosine"},
    "without the mask": {"mask": False},
}


def scenes_variants(runs: pd.DataFrame) -> Styler:
    """Show rSum on the scenes, and what rematching finds, with other transports."""
    rows = {}
    runs = runs[runs["mrate"] == 0.6]
    for name, given in SCENE_VARIANTS.items():
        group = as_preset(runs, **given)
        rows[name] = {
            "test rSum": mean_text(list(group["rsum"])),
            "minus L2RM, same seed": paired(group, as_preset(runs)).short if given else "–",
            "rows that moved": f"{group['rematch_rows'].mean():.3f}",
            "relevance chosen": mean_text(list(group["rematch_relevance"].dropna()), 3),
        }
    caption = (
        "Measured on scenes (emoji), preset quick, model vse, rate 0.6: mean ± standard deviation (seeds), "
        "last epoch of the rows; relevance of the rows that moved"
    )
    return show(pd.DataFrame(rows).T, "scenes_variants", caption)
