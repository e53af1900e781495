"""Partial views of a batch: some regions of every image and some words of every caption, drawn at random."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.methods.base import Batch, Loop

DROP = "share of regions and of words that a training step leaves out; 0: none"


def partial_view(batch: Batch, drop: float, generator: torch.Generator, *, regions: bool = True) -> Batch:
    """Leave out a share of the regions of every image and of the words of every caption.

    The first and the last token of a caption stay: models may read a sentence there.

    Parameters
    ----------
    batch : Batch
    drop : float in [0, 1)
        Share that is left out, rounded down; at least one region stays.
    generator : torch.Generator, on the host
    regions : bool
        False keeps all regions, for models that take a fixed number of them.

    Returns
    -------
    Batch
        The same pairs, with fewer regions and tokens in their order.
    """
    images, ids = batch.images, batch.captions.ids
    B, R = images.shape[:2]
    if regions and (kept := R - int(drop * R)) < R:
        chosen = (
            torch.rand(B, R, generator=generator).topk(kept, dim=1).indices.sort(dim=1).values
        )  # (B, kept)
        rows = chosen.to(images.device, non_blocking=True)[:, :, None].expand(-1, -1, images.shape[2])
        images = images.gather(1, rows)
    order, lengths = _kept_tokens(batch.captions.lengths, ids.shape[1], drop, generator)
    width = max(lengths)
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    order, valid = (x.to(ids.device, non_blocking=True) for x in (order[:, :width], valid))
    return Batch(batch.index, images, Tokens(ids.gather(1, order) * valid, lengths))


def training_view(loop: Loop, batch: Batch, drop: float) -> Batch:
    """Return a partial view of a batch for the network being trained; the batch itself where ``drop`` is 0.

    The draw belongs to the epoch and to the first pair of the batch, so that a resumed run sees the same.
    """
    if not drop:
        return batch
    g, network = loop.generator(f"view {int(batch.index[0])}"), loop.networks[loop.active]
    return partial_view(batch, drop, g, regions=network.needs_regions is None)


def _kept_tokens(
    lengths: tuple[int, ...], width: int, drop: float, generator: torch.Generator
) -> tuple[Tensor, tuple[int, ...]]:
    """Return positions (B, width), those that are kept first and in order, and how many are kept."""
    kept = tuple(n - int(drop * max(n - 2, 0)) for n in lengths)
    at, n = torch.arange(width), torch.tensor(lengths)[:, None]  # (width,), (B, 1)
    chance = torch.rand(len(lengths), width, generator=generator)
    chance[(at == 0) | (at == n - 1)] = -math.inf  # always among the kept
    chance[at >= n] = math.inf  # padding never
    place = chance.argsort(dim=1).argsort(dim=1)  # (B, width)
    is_kept = place < torch.tensor(kept)[:, None]
    return is_kept.logical_not().to(torch.uint8).argsort(dim=1, stable=True), kept
