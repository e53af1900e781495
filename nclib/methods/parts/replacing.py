"""Per-epoch diagnostics of replaced halves (REPAIR): sources, labels, relevance."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nclib.methods.base import Truth

CHUNK = 256  # pairs whose relevance is looked up at a time


class ReplaceLog:
    """Collects the replaced pairs of one epoch on their device; nothing is read back before it ends."""

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, ...]] = []

    def add(self, pair: Tensor, is_image: Tensor, source: Tensor, label: Tensor) -> None:
        """Note new pairs, (n,) each.

        On the host: training pair one half of which was replaced, and whether that half was the image. On the
        device: training pair that the new half comes from, and soft label of the new pair.
        """
        self._rows.append((pair, is_image, source, label.detach()))

    def arrays(self) -> dict[str, Tensor]:
        """Return ``replaced_pair``, ``replaced_image``, ``replaced_by`` and ``replaced_label``, (R,) each."""
        columns = [torch.cat(parts).cpu() for parts in zip(*self._rows, strict=True)]
        names = ("replaced_pair", "replaced_image", "replaced_by", "replaced_label")
        return dict(zip(names, columns, strict=False))  # empty without rows

    def report(self, truth: Truth) -> dict[str, float]:
        """Score the new pairs against the ground truth.

        ``replaced``: number of new pairs of the epoch (both networks; a pair counts each time).
        ``replaced_precision``: share of them whose pair was truly mismatched. ``replaced_label``: their mean
        soft label. ``old_relevance``, ``new_relevance``: mean share of the caption's facts that hold for the
        image, before and after replacing; only where the data know relevance.
        """
        arrays = self.arrays()
        if not arrays:
            return {"replaced": 0}
        pair, is_image, source = (arrays[f"replaced_{name}"] for name in ("pair", "image", "by"))
        result = {
            "replaced": len(pair),
            "replaced_precision": float(1 - truth.matched[pair.numpy()].mean()),
            "replaced_label": float(arrays["replaced_label"].mean()),
        }
        if truth.relevance is not None:
            image, caption = source.where(is_image, pair), pair.where(is_image, source)
            result["old_relevance"] = float(relevance_of(truth, pair, pair).mean())
            result["new_relevance"] = float(relevance_of(truth, image, caption).mean())
        return result


def relevance_of(truth: Truth, image: Tensor, caption: Tensor) -> np.ndarray:
    """Return the relevance of caption i to image i, (n,)."""
    assert truth.relevance is not None
    parts = [
        truth.relevance(i, c).diagonal().numpy()
        for i, c in zip(image.split(CHUNK), caption.split(CHUNK), strict=True)
    ]
    return np.concatenate(parts)
