"""Similarity of all images and all captions of a split, computed in blocks of captions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.common.options import Rule, check
from nclib.common.precision import PRECISIONS, arithmetic, check_precision, resolved
from nclib.models.base import Matcher

RULES = {"precision": Rule(str, choices=PRECISIONS), "batch_size": Rule(int, low=1)}


SHARED_BYTES = 1 << 30
"""Memory budget of scoring on a GPU, so that a dozen runs share a card; more is 5 to 20 % faster."""


@contextlib.contextmanager
def _within(budget: int | None, model: torch.nn.Module) -> Iterator[None]:
    """Lower the memory budgets of a model and of the models in it; None leaves them."""
    parts = [] if budget is None else [part for part in model.modules() if isinstance(part, Matcher)]
    before = [part.memory_budget for part in parts]
    for part in parts:
        part.memory_budget = min(part.memory_budget, budget or 0)
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.memory_budget = value


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put ``model`` in evaluation mode without gradients; restore every submodule's mode afterwards.

    Parameters
    ----------
    model : torch.nn.Module
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def similarity_matrix(
    model: Matcher,
    split: Any,
    *,
    device: torch.device | str | None = None,
    batch_size: int = 256,
    precision: str = "fp32",
    logits: bool = False,
) -> Tensor:
    """Score every caption of a split against every image; each image and caption is encoded once.

    Parameters
    ----------
    model : Matcher
        Its training mode is the same afterwards.
    split : Split
        With ``images`` (one row per unique image), ``features(rows)``, ``captions`` and
        ``captions.batch(rows)``.
    device : torch.device or str, optional
        Where to compute; the model's own device by default. The model stays there.
    batch_size, logits : int, bool
        Images or captions encoded at a time; as in :meth:`Matcher.similarity`.
    precision : {"auto", "fp32", "tf32", "bf16"}
        Of the products of matrices: float32; TF32, on a GPU; bfloat16 autocast. ``"auto"``: TF32 on a GPU,
        else float32.

    Returns
    -------
    Tensor, float32 on the CPU, (n_images, n_captions)

    Raises
    ------
    ValueError
        For a precision that is unknown or that the device lacks, a batch size below 1, or data that do not
        fit the model.
    """
    check(RULES, precision=precision, batch_size=batch_size)
    if device is not None:
        model.to(device)
    where = model.device
    precision = resolved(precision, where)
    check_precision(precision, where)
    n_images, n_captions = int(split.images.shape[0]), len(split.captions)
    lengths = getattr(split.captions, "lengths", None)
    # Captions of equal length side by side: no padding in the encoder, dense groups in the similarity.
    order = np.arange(n_captions) if lengths is None else np.argsort(np.asarray(lengths), kind="stable")
    scores = torch.zeros(n_images, n_captions, device=where)  # copied once: a GPU is not waited for
    with (
        evaluating(model),
        arithmetic(precision, where),
        _within(SHARED_BYTES if where.type == "cuda" else None, model),
    ):
        parts = [
            model.encode_images(split.features(rows).to(where, non_blocking=True))
            for rows in np.split(np.arange(n_images), range(batch_size, n_images, batch_size))
        ]
        images = type(parts[0]).concat(parts)
        for i in range(0, n_captions, batch_size):
            rows = order[i : i + batch_size]
            captions = model.encode_captions(split.captions.batch(rows).to(where))
            block = model.similarity(images, captions, logits=logits)
            scores.index_copy_(1, torch.from_numpy(rows).to(where, non_blocking=True), block.float())
    return scores.cpu()
