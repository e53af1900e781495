"""Figures of the chapter that looks inside networks: what wrong pairs teach, and what is then found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from ncbook import play
from ncbook.demo import stored_runs
from ncbook.training import Finished, finished
from nclib import plots
from nclib.data import Split
from nclib.runs import TrainedModel

RATES = (0.0, *(np.arange(2, 8) / 8))  # of eight pictures; one alone cannot move
LAMS, RHOS = (0.003, 0.01, 0.03, 0.1, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NAMES = {"l2rm": "L2RM", "plain": "triplet", "rcl": "RCL"}  # of methods whose networks are stored
BATCH, CHAIN = 12, 8  # wrong pairs of the plan, and those of them that hold each other's partners


def noise_slider(split: Split, rate: float, seed: int) -> play.Play:
    """Show eight pictures with their captions over the mismatch rate, under both protocols."""
    rows = np.sort(np.random.default_rng(seed).permutation(split.n_images)[:8])
    return play.noise(split, rows.tolist(), RATES, at=min(RATES, key=lambda r: abs(r - rate)), seed=seed)


def _first(run: Finished) -> dict[bool, tuple[list[int], list[float]]]:
    """Return epochs and the share of pairs whose caption comes first in a batch, by the truth of the pair."""
    epochs = sorted(run.kept)
    return {
        truth: (epochs, [float(run.kept[e]["first"][run.matched == truth].mean()) for e in epochs])
        for truth in (False, True)
    }


# Runs of this page and the methods whose colours they have in every figure of the book.
STYLES = {"InfoNCE": "plain (infonce)", "CRANK": "crank"}


def by_heart(runs: Mapping[str, Finished]) -> Figure:
    """Draw the share of training pairs whose given caption comes first in its batch, over the epochs."""
    figure, axes = plots.panels(1, 2, height=3.1, sharey=True)
    for axis, truth in zip(axes[0], (False, True), strict=True):
        for name, run in runs.items():
            epochs, share = _first(run)[truth]
            axis.plot(epochs, 100 * np.array(share), label=name, **plots.method_style(STYLES.get(name, name)))
        axis.set(title="right pairs" if truth else "wrong pairs: learned by heart", xlabel="epoch")
    axes[0, 0].set_ylabel("given caption first in its batch, %")
    axes[0, 0].set_ylim(0, 100)
    axes[0, 1].legend()
    return figure


def by_heart_said(runs: Mapping[str, Finished]) -> Markdown:
    """Say how many wrong pairs were learned by heart, and what the networks are worth on the test split."""
    chance = 100 / next(iter(runs.values())).record.settings["batch_size"]
    lines = []
    for name, run in runs.items():
        wrong, right = (_first(run)[truth][1] for truth in (False, True))
        test = run.record.metrics["test"]["rsum"]
        lines.append(
            f"- **{name}**: the wrong caption comes first in {100 * wrong[0]:.0f} % of the wrong pairs after "
            f"epoch {min(run.kept)} and in {100 * wrong[-1]:.0f} % after the last one, the right caption in "
            f"{100 * right[-1]:.0f} % of the right pairs; rSum {test:.1f} on the test scenes, epoch "
            f"{run.record.best_epoch} selected."
        )
    return Markdown("\n".join([*lines, f"\nBy chance it would be {chance:.0f} %."]))


def similarities(runs: Mapping[str, Finished]) -> Figure:
    """Draw the similarity of right and wrong training pairs after the last epoch, a panel per network."""
    figure, axes = plots.panels(1, len(runs), height=2.9, sharey=True)
    every = np.concatenate([run.last["similarity"] for run in runs.values()])
    bins = np.linspace(every.min(), every.max(), 41)
    for axis, (name, run) in zip(axes[0], runs.items(), strict=True):
        plots.by_truth(axis, run.last["similarity"], run.matched, bins)
        axis.set(title=name, xlabel="similarity of the pair")
    axes[0, 0].legend()
    return figure


def maps(runs: Mapping[str, Finished], n: int = 250) -> Figure:
    """Draw t-SNE maps of test pictures and their first captions; a line joins the two of a pair."""
    figure, axes = plots.panels(1, len(runs), height=3.9)
    for axis, (name, run) in zip(axes[0], runs.items(), strict=True):
        images, captions = _vectors(run, n)
        both = np.concatenate([images, captions])
        plane = TSNE(init="pca", perplexity=30, metric="cosine", random_state=0).fit_transform(both)
        a, b = plane[: len(images)], plane[len(images) :]
        axis.plot(*np.stack([a, b], 1).T, color=plots.NEUTRAL, lw=0.5, alpha=0.5, zorder=1)
        axis.scatter(*a.T, s=9, color=plots.IMAGES, label="pictures", zorder=2)
        axis.scatter(*b.T, s=12, color=plots.CAPTIONS, marker="x", lw=0.9, label="captions", zorder=2)
        axis.set(title=name, xticks=[], yticks=[])
        axis.grid(False)
    axes[0, 0].legend()
    return figure


@torch.inference_mode()
def _vectors(run: Finished, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return global vectors of the first ``n`` test pictures and of the first caption of each, (n, D)."""
    split, network = run.dataset.test, run.trainer.networks[0]
    n = min(n, split.n_images)
    images = torch.tensor(np.asarray(split.images[:n]), dtype=torch.float32)
    tokens = split.captions.batch(np.arange(n) * split.captions_per_image)
    return network.encode_images(images).vectors.numpy(), network.encode_captions(tokens).vectors.numpy()


def _score(run: Finished, images: Any, texts: list[str]) -> np.ndarray:
    """Return the similarities of pictures and sentences by the networks of a run, (pictures, sentences)."""
    sizes = {"feature_dim": run.dataset.feature_dim}
    model = TrainedModel(run.trainer.networks, run.dataset.vocabulary, {"sizes": sizes})
    return model.score(images, texts)


def plan_slider(runs: Mapping[str, Finished], seed: int) -> play.Play:
    """Show plans of twelve wrong training pairs under several networks, over both parameters."""
    run = next(iter(runs.values()))
    train, given, own = run.dataset.train, run.image_of, np.asarray(run.dataset.train.image_of)
    wrong = np.random.default_rng(seed).permutation(np.flatnonzero(~run.matched))
    rows = [int(wrong[0])]
    while len(rows) < CHAIN:  # each pair holds a caption of the image before it
        partners = wrong[own[wrong] == given[rows[-1]]]
        if not len(partners) or partners[0] in rows:
            break
        rows.append(int(partners[0]))
    for q in wrong:
        if len(rows) < BATCH and given[q] not in given[rows] and own[q] not in given[rows]:
            rows.append(int(q))
    partner = [next((j for j, q in enumerate(rows) if own[q] == given[p]), -1) for p in rows]
    texts = [train.captions.text(p) for p in rows]
    images = train.images[given[rows]]
    costs = {name: 1 - torch.as_tensor(_score(r, images, texts)) for name, r in runs.items()}
    pictures = [play.thumbnail(train, int(given[p])) for p in rows]
    return play.plan(costs, pictures, texts, partner, lams=LAMS, rhos=RHOS, lam=0.01, rho=0.4)


def stored_plan(*methods: str) -> play.Play | None:
    """Show plans of twelve wrong training pairs by the stored networks of some methods."""
    runs = {r.settings["method"]: r for r in stored_runs() if Path(r.folder).parent.name == "inside"}
    if missing := [method for method in methods if method not in runs]:
        print(f"no stored networks of {', '.join(missing)}: make demo makes them")
        return None
    return plan_slider({NAMES[method]: finished(runs[method]) for method in methods}, 0)


def search_box(runs: Mapping[str, Finished], seed: int, n: int = 10) -> play.Play:
    """Show the first five test pictures that each network finds for one of ``n`` captions."""
    split = next(iter(runs.values())).dataset.test
    queries = np.sort(np.random.default_rng(seed).permutation(split.n_captions)[:n]).tolist()
    texts = [split.captions.text(q) for q in queries]
    scores = {name: _score(run, split.images, texts) for name, run in runs.items()}
    return play.search(split, queries, scores)
