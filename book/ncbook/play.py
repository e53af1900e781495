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


def plan(
    costs: Mapping[str, Tensor], pictures: Sequence[str], captions: Sequence[str], partner: Sequence[int],
    *, lams: Sequence[float], rhos: Sequence[float], lam: float, rho: float,
) -> Play:  # fmt: skip
    """Show the partial transport plan of a batch of wrong pairs over network, regularisation and moved mass.

    Parameters
    ----------
    costs : mapping of str to Tensor, (B, B)
        Cost of giving image i (row) the caption of pair j, by network; the diagonal is forbidden.
    pictures, captions : sequence of str
        Addresses of the images of the pairs, and their captions.
    partner : sequence of int
        Column whose caption truly belongs to the image of the row; -1 where none does.
    lams, rhos : sequence of float
        Positions of the sliders.
    lam, rho : float
        Values that are shown first, one of each; of the networks the first.
    """
    B = len(captions)
    mask = ~torch.eye(B, dtype=torch.bool)
    true = torch.zeros(B, B, dtype=torch.bool)
    for i, j in enumerate(partner):
        true[i, j] = j >= 0
    plans, said = [], []
    for cost in costs.values():
        x = [
            [B * ot.partial_sinkhorn(cost.double(), mass, reg=reg, mask=mask).plan for mass in rhos]
            for reg in lams
        ]
        plans.append(x)
        said.append([[_plan_said(p, true) for p in line] for line in x])
    at = list(lams).index(lam), list(rhos).index(rho)
    masses = [[f"{100 * mass:.0f}" for mass in row] for row in plans[0][at[0]][at[1]].tolist()]
    values = {
        "lams": list(lams), "rhos": list(rhos), "said": said,
        "plans": [[[_percent(p) for p in line] for line in x] for x in plans],
    }  # fmt: skip
    controls = HTML.choice("network", "network", list(costs))
    controls += HTML.slider("lam", "regularisation λ", lams, at[0])
    controls += HTML.slider("rho", "moved mass ρ", rhos, at[1])
    picture = HTML.plan(pictures, captions, masses, partner)
    return Play("plan", controls, picture, values, said[0][at[0]][at[1]])


def _percent(p: Tensor) -> str:
    return " ".join(f"{100 * v:.0f}" for v in p.flatten().tolist())


def _plan_said(x: Tensor, true: Tensor) -> str:
    """Return how much mass moved, how much of it to true partners, and how spread the targets are."""
    moved = float(x.sum())
    rows = x[x.sum(1) > 1e-6]
    share = rows / rows.sum(1, keepdim=True)
    spread = math.exp(float(torch.special.entr(share).sum(1).mean())) if len(rows) else 0.0
    right = float(x[true].sum()) / moved if moved > 0 else 0.0
    chance = int(true.sum()) / (len(x) * (len(x) - 1))
    found = f"{right:.0%} of it to true partners (by chance {chance:.0%})"
    spread_said = f"A row's target is spread over {spread:.1f} captions."
    return f"{moved / len(x):.0%} of the mass moves, {found}. {spread_said}"


# -- search ----------------------------------------------------------------------------------------------


def search(split: Split, queries: Sequence[int], scores: Mapping[str, np.ndarray], *, shown: int = 5) -> Play:
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
    """
    own = [int(split.image_of[q]) for q in queries]
    texts = [split.captions.text(q) for q in queries]
    found, places = {}, {}
    for name, S in scores.items():
        order = np.argsort(-S, axis=0, kind="stable")  # (images, queries)
        found[name] = order[:shown].T.tolist()
        places[name] = [int(np.flatnonzero(order[:, q] == row)[0]) + 1 for q, row in enumerate(own)]
    used = sorted({row for lines in found.values() for line in lines for row in line} | set(own))
    pictures = {row: thumbnail(split, row) for row in used}
    alts = {row: split.captions.text(row * split.captions_per_image) for row in used}

    rows = [
        (name, _place(places[name][0]), [(pictures[r], alts[r], r == own[0]) for r in found[name][0]])
        for name in scores
    ]
    said = f"Framed: the picture that the caption was written for, one of {split.n_images}."
    values = {
        "own": own, "names": list(scores), "found": list(found.values()),
        "places": [list(map(_place, line)) for line in places.values()],
        "pictures": {str(row): address for row, address in pictures.items()},
        "alts": {str(row): alt for row, alt in alts.items()},
    }  # fmt: skip
    controls = HTML.choice("query", "caption", texts)
    return Play("search", controls, HTML.search(rows, shown), values, said)


def _place(place: int) -> str:
    return f"own picture: place {place}"
