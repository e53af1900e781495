"""Pictures with sliders: what a parameter does to noise, to a transport plan, to the results of a search.

Each is HTML that stands by itself, with its values beside it as JSON; the book's script ``play.js`` turns the
controls on. Without the script the picture shows the value that was given for it.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ncbook.page import TEMPLATES
from nclib import ot
from nclib.data import Split
from nclib.noise import Mismatch

SIZE = 72  # pixels of a picture
PROTOCOLS = ("images", "captions")
HTML: Any = TEMPLATES.get_template("play.html", globals={"size": SIZE}).module


@dataclass(frozen=True)
class Play:
    """One picture with its controls; a notebook displays it."""

    kind: str  # names the part of the script
    controls: str
    picture: str  # HTML of the value that is shown first
    values: Mapping[str, Any]
    said: str  # what the picture shows at first, in words

    def _repr_html_(self) -> str:
        data = json.dumps(self.values, separators=(",", ":")).replace("<", "\\u003c")
        return str(HTML.frame(self, data))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": self.said}


def thumbnail(split: Split, row: int) -> str:
    """Return the picture in a row of a split as the address of a small image (data:)."""
    picture = np.asarray(split.picture(row))
    if picture.dtype.kind == "f":
        picture = (255 * picture.clip(0, 1)).round().astype(np.uint8)
    small = Image.fromarray(picture).convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.quantize(48).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


# -- noise -----------------------------------------------------------------------------------------------


def noise(split: Split, rows: Sequence[int], rates: Sequence[float], *, at: float, seed: int = 0) -> Play:
    """Show the captions that stand with some pictures, over the mismatch rate, under both protocols.

    Among few pictures many stay in place by chance: of several draws the nearest to the rate is shown.

    Parameters
    ----------
    split : Split
        Data with pictures and several captions per picture.
    rows : sequence of int
        Pictures; noise is drawn among them alone.
    rates : sequence of float
        Positions of the slider.
    at : float
        Rate that is shown first, one of ``rates``.
    seed : int
        Of the draws.
    """
    each = split.captions_per_image
    captions = [split.captions.text(row * each + k) for row in rows for k in range(each)]
    own = np.repeat(np.arange(len(rows)), each)
    draws = [[_near(own, rate, p, seed) for rate in rates] for p in PROTOCOLS]
    first = list(rates).index(at)
    said = [[_noise_said(d, rate) for d, rate in zip(line, rates, strict=True)] for line in draws]
    given = draws[0][first].image_of
    pictures = [
        (
            thumbnail(split, row),
            captions[each * i],
            [(captions[c], own[c] == i) for c in np.flatnonzero(given == i)],
        )
        for i, row in enumerate(rows)
    ]
    values = {
        "rates": list(rates), "captions": captions, "own": own.tolist(), "said": said,
        "given": [[d.image_of.tolist() for d in line] for line in draws],
    }  # fmt: skip
    controls = HTML.slider("rate", "mismatch rate", rates, first)
    controls += HTML.choice("protocol", "exchanged", PROTOCOLS)
    return Play("noise", controls, HTML.noise(pictures), values, said[0][first])


def _near(own: np.ndarray, rate: float, protocol: str, seed: int) -> Mismatch:
    """Return that of 64 draws whose share of wrong captions is nearest to the rate."""
    draws = [Mismatch.draw(own, rate, seed=(seed, i), protocol=protocol) for i in range(64)]
    return min(draws, key=lambda draw: abs((~draw.matched).mean() - rate))


def _noise_said(draw: Mismatch, rate: float) -> str:
    """Return how many captions are wrong, and how many pictures keep a right one."""
    n = int(draw.image_of.max()) + 1
    kept = np.bincount(draw.image_of, draw.matched, minlength=n) > 0
    return (
        f"Rate {rate:g}: {int((~draw.matched).sum())} of {len(draw.matched)} captions stand with a wrong "
        f"picture; {int(kept.sum())} of {n} pictures keep a right one."
    )


# -- a transport plan ------------------------------------------------------------------------------------

LAMS = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
RHOS = tuple(k / 20 for k in range(1, 20))


def plan(
    costs: Mapping[str, Tensor], pictures: Sequence[str], captions: Sequence[str], partner: Sequence[int],
    *, lam: float = 0.01, rho: float = 0.4,
) -> Play:  # fmt: skip
    """Show the partial transport plan of a batch of wrong pairs that the reader changes.

    Network, regularisation and moved mass are chosen, and pairs are taken out of the batch; the page solves
    the problem again each time.

    Parameters
    ----------
    costs : mapping of str to Tensor, (B, B)
        Cost of giving image i (row) the caption of pair j, by network; the diagonal is forbidden.
    pictures, captions : sequence of str
        Addresses of the images of the pairs, and their captions.
    partner : sequence of int
        Column whose caption truly belongs to the image of the row; -1 where none does.
    lam, rho : float
        Values that are shown first, one of :data:`LAMS` and of :data:`RHOS`; of the networks the first.
    """
    B = len(captions)
    true = torch.zeros(B, B, dtype=torch.bool)
    for i, j in enumerate(partner):
        true[i, j] = j >= 0
    mask = ~torch.eye(B, dtype=torch.bool)
    first = next(iter(costs.values())).double()
    shown = B * ot.partial_sinkhorn(first, rho, reg=lam, mask=mask).plan
    masses = [[f"{100 * mass:.0f}" for mass in row] for row in shown.tolist()]
    values = {
        "lams": LAMS, "rhos": RHOS, "partner": list(partner),
        "costs": [[[round(c, 4) for c in row] for row in cost.tolist()] for cost in costs.values()],
    }  # fmt: skip
    controls = HTML.choice("network", "network", list(costs))
    controls += HTML.slider("lam", "regularisation λ", LAMS, LAMS.index(lam))
    controls += HTML.slider("rho", "moved mass ρ", RHOS, RHOS.index(rho))
    return Play(
        "plan", controls, HTML.plan(pictures, captions, masses, partner), values, _plan_said(shown, true)
    )


def _plan_said(x: Tensor, true: Tensor) -> str:
    """Return how much mass moved, how much of it to true partners, and how spread the targets are."""
    moved = float(x.sum())
    rows = x[x.sum(1) > 1e-6]
    share = rows / rows.sum(1, keepdim=True)
    spread = math.exp(float(torch.special.entr(share).sum(1).mean())) if len(rows) else 0.0
    right = float(x[true].sum()) / moved if moved > 0 else 0.0
    chance = int(true.sum()) / (len(x) * (len(x) - 1))
    right_said = f"{right:.0%} of it to true partners (by chance {chance:.0%})"
    spread_said = f"A row's target is spread over {spread:.1f} captions."
    return f"{moved / len(x):.0%} of the mass moves, {right_said}. {spread_said}"


# -- search ----------------------------------------------------------------------------------------------


def search(
    split: Split, queries: Sequence[int], scores: Mapping[str, np.ndarray], *, shown: int = 5,
    rates: Sequence[float] = (), at: float = 0.0, said: Sequence[str] = (),
) -> Play:  # fmt: skip
    """Show the first pictures that several networks find for a caption.

    Parameters
    ----------
    split : Split
        Pictures that are searched.
    queries : sequence of int
        Captions of the split.
    scores : mapping of str to ndarray, (n_images, len(queries))
        Similarity of all pictures with the queries, by name of the network.
    shown : int
        Pictures in a row.
    rates : sequence of float
        One for each network, if a slider over them chooses the network of the second row; the first network
        then stands in the first row.
    at : float
        Rate that is shown first, one of ``rates``.
    said : sequence of str
        With ``rates``: a sentence for each network.
    """
    own = [int(split.image_of[q]) for q in queries]
    texts = [split.captions.text(q) for q in queries]
    names = list(scores)
    orders, places = [], []
    for S in scores.values():
        order = np.argsort(-S, axis=0, kind="stable")  # (images, queries)
        orders.append(order[:shown].T.tolist())
        places.append(
            [f"own picture: place {np.flatnonzero(order[:, q] == r)[0] + 1}" for q, r in enumerate(own)]
        )
    used = sorted({row for lines in orders for line in lines for row in line} | set(own))
    pictures = {str(row): thumbnail(split, row) for row in used}
    alts = {str(row): split.captions.text(row * split.captions_per_image) for row in used}
    chosen = list(rates).index(at) if rates else 0
    rows = [
        (names[n], places[n][0], [(pictures[str(r)], alts[str(r)], r == own[0]) for r in orders[n][0]])
        for n in ((0, chosen) if rates else range(len(names)))
    ]
    values = {
        "own": own, "names": names, "found": orders, "places": places, "pictures": pictures, "alts": alts,
        "rates": list(rates), "said": list(said),
    }  # fmt: skip
    controls = HTML.slider("rate", "wrong pairs in training", rates, chosen) if rates else ""
    controls += HTML.choice("query", "caption", texts)
    words = f"Framed: the picture that the caption was written for, one of {split.n_images}."
    return Play("search", controls, HTML.search(rows, shown), values, said[chosen] if said else words)


# -- which are wrong? ------------------------------------------------------------------------------------


def guess(
    split: Split, image_of: Sequence[int], p_clean: Sequence[float], rounds: Sequence[Sequence[int]]
) -> Play:
    """Let the reader find the wrong pairs, and compare with what an audit finds.

    Parameters
    ----------
    split : Split
        Data with pictures.
    image_of : sequence of int
        Picture that each caption of the split stands with.
    p_clean : sequence of float
        What the audit says of each pair; of each round as many lowest as are wrong count as its answer.
    rounds : sequence of sequences of int
        Captions of each round, each with the same number of pairs and of wrong ones.
    """
    games = []
    for captions in rounds:
        wrong = [bool(image_of[c] != split.image_of[c]) for c in captions]
        lowest = np.argsort([p_clean[c] for c in captions], kind="stable")[: sum(wrong)].tolist()
        pairs = [(thumbnail(split, int(image_of[c])), split.captions.text(c)) for c in captions]
        games.append({"pairs": pairs, "wrong": wrong, "audit": lowest})
    n, size = sum(games[0]["wrong"]), len(rounds[0])
    said = f"{n} of these {size} captions belong to another picture. Choose them."
    return Play("guess", "", HTML.guess(games[0]["pairs"]), {"games": games, "n": n, "said": said}, said)


# -- the gradient of a pair ------------------------------------------------------------------------------


def gradient(
    ps: Sequence[float], curves: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, at: float = 0.1
) -> Play:
    """Show how strongly each loss pulls a pair together, for a pair that the reader drags.

    Parameters
    ----------
    ps : sequence of float
        Probabilities that the network gives to the pair, ascending.
    curves : mapping of str to sequence of float
        Size of the gradient at these probabilities, by name of the loss.
    colours : mapping of str to str
        Colour of each curve.
    at : float
        Probability that is shown first.
    """
    top = max(max(line) for line in curves.values())
    lines = [
        (
            name,
            colours[name],
            " ".join(f"{400 * p:.1f},{200 - 200 * y / top:.1f}" for p, y in zip(ps, line, strict=True)),
        )
        for name, line in curves.items()
    ]
    steps = [k / 100 for k in range(101)]
    pulls = {name: np.interp(steps, ps, line).round(3).tolist() for name, line in curves.items()}
    said = "; ".join(f"{name} {line[round(100 * at)]:.2f}" for name, line in pulls.items())
    values = {"ps": steps, "pulls": pulls, "top": top}
    controls = HTML.slider("p", "probability that the network gives to the pair", steps, round(100 * at))
    picture = HTML.gradient(lines, f"{top:.3g}", 400 * at)
    return Play("gradient", controls, picture, values, f"Pull: {said}.")
