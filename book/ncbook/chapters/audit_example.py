"""Figures and tables of the chapter on the audit: bundled scenes with planted mistakes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

import nclib
from ncbook import show
from ncbook.demo import opened
from nclib import plots
from nclib.data import Split
from nclib.noise import auc, calibration, mismatch

NEAR = 0.5  # of a caption's statements that hold for a related picture, at least


@dataclass(frozen=True)
class Example:
    """Pairs with known mistakes: vectors of pictures (N, D) and captions (M, D), and claims (M,)."""

    split: Split
    images: np.ndarray
    captions: np.ndarray
    image_of: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Whether a pair is wrong, (M,)."""
        return self.image_of != self.split.image_of

    @property
    def texts(self) -> list[str]:
        """The captions, (M,)."""
        return [self.split.captions.text(row) for row in range(len(self.image_of))]

    def audit(self, seed: int) -> Any:
        """Return the audit of these pairs."""
        return nclib.audit(
            images=self.images,
            captions=self.captions,
            image_of=self.image_of,
            texts=self.texts,
            seed=seed,
            progress=False,
        )


def example(record: Any, mrate: float, protocol: str, seed: int) -> Example:
    """Embed the test split of a finished run and exchange captions.

    Parameters
    ----------
    record : Record
        A run on pairs, of a dual encoder.
    mrate : float
        Share that is exchanged.
    protocol : str
        Of :func:`nclib.noise.mismatch`.
    seed : int

    Returns
    -------
    Example
    """
    run = opened(record)
    split, model = run.dataset.test, run.trainer.networks[0]
    with torch.no_grad():
        images = model.encode_images(split.features(np.arange(split.n_images))).vectors
        captions = model.encode_captions(split.captions.batch(np.arange(split.n_captions))).vectors
    claimed = mismatch(split.image_of, mrate, seed=seed, protocol=protocol)
    found = Example(split, images.numpy(), captions.numpy(), claimed)
    print(f"{split.n_captions:,} captions of {split.n_images:,} pictures, {found.wrong.sum():,} exchanged")
    return found


def related(found: Example, seed: int) -> Example:
    """Move half of the wrong captions to pictures of which much of the caption is true as well.

    The picture is drawn from those for which at least half of the caption's statements hold, but not all; a
    caption without one stays where it is.
    """
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(found.wrong)
    rows = np.sort(rng.permutation(rows)[: len(rows) // 2])
    truth = found.split.relevance(np.arange(found.split.n_images), rows)
    claimed = found.image_of.copy()
    for row, fits in zip(rows, truth.T, strict=True):
        near = np.flatnonzero((fits >= NEAR) & (fits < 1))
        near = near[near != found.split.image_of[row]]
        claimed[row] = rng.choice(near) if len(near) else claimed[row]
    return replace(found, image_of=claimed)


def answers(asked: pd.DataFrame, found: Example) -> pd.DataFrame:
    """Label pairs as a person who makes no mistake does: ``id`` and ``label``, "wrong" or "right"."""
    labels = np.where(found.wrong[asked["id"].astype(int)], "wrong", "right")
    return pd.DataFrame({"id": asked["id"].to_numpy(), "label": labels})


def says(audit: Any, found: Example) -> str:
    """Return the estimated share of wrong pairs beside the true one, in a sentence."""
    share = audit.share
    return (
        f"Estimated share of wrong pairs: {share.value:.1%} (95 % interval {share.low:.1%} to "
        f"{share.high:.1%}); planted: {found.wrong.mean():.1%}. Score: {audit.score}."
    )


def histogram(audit: Any) -> Figure:
    """Draw the score of the given pairs, of random exchanges and of exchanges among near neighbours."""
    figure, ((axis,),) = plots.panels(1, 1, 6.4, 3.0)
    looks = (
        ("given", plots.NEUTRAL, "given pairs", "-"),
        ("exchanged", plots.MISMATCHED, "exchanged at random", "--"),
        ("near", plots.ACCENT, "exchanged among near neighbours", ":"),
    )
    for name, colour, label, style in looks:
        axis.stairs(audit.curves[name], audit.curves["edges"], color=colour, label=label, ls=style, lw=1.6)
    axis.set(xlabel=f"score ({audit.score})", ylabel="density")
    axis.legend()
    return figure


def suspects(audit: Any, found: Example, n: int = 4) -> Figure:
    """Draw the most suspicious pairs, and beside each the picture that fits its caption best."""
    best = audit.partners(1)
    best = best[best["direction"] == "picture of caption"].set_index("id")
    row_of = {name: row for row, name in enumerate(audit.pairs.ids)}
    shown, texts = [], []
    for number, pair in audit.table.sort_values("rank").head(n).iterrows():
        wrong = bool(found.wrong[number])
        said = f"P(wrong) {pair['p_wrong']:.2f}, {'planted' if wrong else 'not planted'}"
        shown.append(int(found.image_of[number]))
        texts.append([(pair["caption"], plots.NEUTRAL), (said, plots.MISMATCHED if wrong else plots.MATCHED)])
        if pair["id"] in best.index:
            partner = best.loc[pair["id"]]
            image = int(found.image_of[row_of[partner["partner_id"]]])
            own = image == found.split.image_of[number]
            kind = "proposed" if partner["proposed"] else "best, not proposed"
            shown.append(image)
            texts.append([(kind, plots.NEUTRAL), ("the caption's own picture" if own else "another picture",
                                                  plots.MATCHED if own else plots.MISMATCHED)])  # fmt: skip
    return plots.captioned_pictures(found.split, shown, texts)


def judged(audit: Any, found: Example) -> dict[str, float]:
    """Return how well an audit knows what was planted; pairs that a person labelled count as well."""
    p = audit.table["p_wrong"].to_numpy(float)
    wrong = found.wrong
    return {
        "true share": float(wrong.mean()),
        "estimated share": audit.share.value,
        "AUROC": auc(p, wrong) or np.nan,
        "calibration error": calibration(1 - p, ~wrong)["ece"],
        "wrong among P ≥ 0.5": float(wrong[p >= 0.5].mean()) if (p >= 0.5).any() else np.nan,
        "found at P ≥ 0.5": float((wrong & (p >= 0.5)).sum() / wrong.sum()),
    }


def compared(audits: dict[str, tuple[Any, Example]], name: str = "compared") -> Styler:
    """Show how well audits know what was planted, one row each."""
    table = pd.DataFrame({label: judged(*pair) for label, pair in audits.items()}).T
    return show(
        table,
        name,
        "Measured on the bundled scenes, this run; labelled pairs have P(wrong) 0 or 1",
        digits=3,
        missing="–",
    )
