"""Figures of the chapter on SPS."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ncbook.chapters.replaced import DIVIDED, REPLACED
from ncbook.schematic import Schematic, Sketch
from nclib.methods.sps import disagreement, probability, proxies, proxy_labels

POSTERIOR = (0.98, 0.91, 0.83, 0.55, 0.31, 0.12, 0.04)  # of seven pairs
SURE, CLEAN, TAU = 0.6, 0.5, 0.07  # the published bounds and temperature
# Mean regions of three noisy and of three strictly clean pictures, in two dimensions.
NOISY = torch.tensor([[0.95, 0.35], [0.45, 1.0], [0.9, 0.6]])
SURE_PICTURES = torch.tensor([[1.0, 0.05], [0.1, 0.9], [0.7, 0.7]])
SURE_CAPTIONS = torch.tensor([[0.8, 0.4], [0.3, 0.9], [1.0, 0.1]])
# Similarities of the noisy pictures with the captions of their proxies.
TO_PROXIES = torch.tensor([[0.82, 0.31, 0.12], [0.28, 0.35, 0.47], [0.15, 0.22, 0.76]])
NAMES = {"n_sure": "strictly clean", "n_clean": "clean", "n_noisy": "noisy"}
SEEN = {
    **DIVIDED,
    **{key: f"{name} pairs" for key, name in NAMES.items()},
    **REPLACED,
}


def labels() -> tuple[Tensor, Tensor, Tensor]:
    """Return probability, cosine and soft label of the three drawn noisy pictures, (3,) each."""
    _, cosine = proxies(NOISY, SURE_PICTURES)
    p = probability(TO_PROXIES, TAU)
    return p, cosine, proxy_labels(p, cosine)


def idea() -> Schematic:
    """Draw the method in four panels; proxies and labels come from the package's functions."""
    split = Sketch("Posteriors of seven pairs with the bounds 0.5 and 0.6.", 290, 200)
    look = ["match" if w > SURE else "soft" if w > CLEAN else "mismatch" for w in POSTERIOR]
    names = [f"{w:.2f}" for w in POSTERIOR]
    split.bars(12, 165, POSTERIOR, colours=look, height=130, width=26, gap=9, names=names, top=1)
    for bound, word, up in ((SURE, "strictly clean above", -5), (CLEAN, "noisy up to", 14)):
        split.line([(8, 165 - 130 * bound), (285, 165 - 130 * bound)], arrow=False, dashed=True)
        split.text(285, 165 - 130 * bound + up, f"{word} {bound:g}", anchor="end", size=12)
    split.text(135, 196, "posterior of each pair", colour="soft", size=12)
    stable = Sketch("Cosines of three pictures with each other, and of their captions.", 290, 200)
    for left, points, word in ((15, SURE_PICTURES, "pictures"), (165, SURE_CAPTIONS, "captions")):
        unit = normalize(points, dim=1)
        stable.matrix(left, 30, unit @ unit.T, cell=36)
        stable.text(left + 54, 20, word, size=12)
    gap = float(disagreement(SURE_PICTURES, SURE_CAPTIONS))
    stable.text(145, 172, f"mean squared difference {gap:.2f}", size=12)
    proxy, _ = proxies(NOISY, SURE_PICTURES)
    noisy, sure = (normalize(x, dim=1) for x in (NOISY, SURE_PICTURES))
    search = Sketch("Cosines of three noisy with three strictly clean pictures; row maxima framed.", 290, 200)
    names_of: dict[str, Any] = {
        "rows": [f"noisy {i}" for i in (1, 2, 3)],
        "columns": [f"clean {j}" for j in (1, 2, 3)],
    }
    search.matrix(90, 40, noisy @ sure.T, cell=46, framed=torch.eye(3)[proxy].numpy() > 0, **names_of)
    label = Sketch("Probability, cosine and label of the three noisy pictures.", 290, 200)
    for k, (name, values) in enumerate(zip(("p", "cosine", "label"), labels(), strict=True)):
        at = 15 + 95 * k
        numbers = [f"{v:.2f}" for v in values.tolist()]
        label.bars(
            at, 150, values.tolist(), colours=("match",), names=numbers, width=23, gap=5, height=105, top=1
        )
        label.text(at + 40, 30, name)
    label.text(145, 190, "noisy pictures 1 to 3 in each group", colour="soft", size=12)
    titles = ("Three kinds of pairs", "A stable feature space", "Take a proxy", "A label with two factors")
    words = (
        "The other network's posterior parts the pairs: orange is noisy, grey lies in a narrow band.",
        "Strictly clean pairs: pictures should lie to each other as captions do, and S be symmetric.",
        "A noisy picture takes the caption of the most similar strictly clean picture of the step (framed).",
        "Its label is probability times cosine; below 0.5 it becomes 0, and the picture is left out.",
    )
    return Schematic.of(titles, (split, stable, search, label), words)
