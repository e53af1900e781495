"""Encoding and comparing in separate calls, in the run's precision, for methods that keep encodings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.methods.base import Batch, Loop


def precision(loop: Loop) -> torch.autocast:
    """Return the context in which ``loop.similarity`` runs a network.

    Parameters
    ----------
    loop : Loop
        Its schedule names the precision; float32 without one.

    Returns
    -------
    torch.autocast
        bfloat16 where the schedule asks for it, else without effect.
    """
    half = getattr(getattr(loop, "schedule", None), "precision", "fp32") == "bf16"
    return torch.autocast(loop.device.type, dtype=torch.bfloat16, enabled=half)


def encode(loop: Loop, batch: Batch, network: int) -> tuple[Any, Any]:
    """Return the encoded images and captions of a batch.

    Parameters
    ----------
    loop : Loop
    batch : Batch
    network : int
        Number of the network.

    Returns
    -------
    images, captions
        What ``encode_images`` and ``encode_captions`` of the network return.
    """
    net = loop.networks[network]
    with precision(loop):
        return net.encode_images(batch.images), net.encode_captions(batch.captions)


def part_of(batch: Batch, rows: Tensor) -> Batch:
    """Return some ``rows`` of a batch, given on the host.

    Parameters
    ----------
    batch : Batch, of B pairs
    rows : Tensor, int64, (n,), on the host
        Positions in the batch.

    Returns
    -------
    Batch, of n pairs
    """
    lengths = tuple(batch.captions.lengths[row] for row in rows.tolist())
    index = rows.to(batch.images.device, non_blocking=True)
    ids = batch.captions.ids[index, : max(lengths)]
    return Batch(batch.index[rows], batch.images[index], Tokens(ids, lengths))


def compare(loop: Loop, network: int, images: Any, captions: Any) -> Tensor:
    """Return the float32 similarities of encoded images (rows) and captions, as ``loop.similarity`` does.

    Parameters
    ----------
    loop : Loop
    network : int
        Number of the network.
    images, captions
        From :func:`encode`, n and m rows.

    Returns
    -------
    Tensor, float32, (n, m)
    """
    with precision(loop):
        S: Tensor = loop.networks[network].similarity(images, captions)
    return S.float()
