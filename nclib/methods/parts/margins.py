"""The soft-margin triplet, and what the released code of BiCro and MSCN computes in its place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nclib import losses


def released_soft_margin_triplet(S: Tensor, margins: Tensor) -> Tensor:
    """Hardest-negative triplet as released: image to text takes the margin of the *negative* caption.

    ``max_j [a_j + S_ij - S_ii]_+ + max_j [a_i + S_ji - S_ii]_+``. The one-dimensional margins are meant to be
    transposed for one direction, which leaves them as they are.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    margins : Tensor, (B,)
        Margin of each pair.

    Returns
    -------
    Tensor, (B,)
    """
    d = S.diagonal()
    own = torch.eye(len(S), dtype=torch.bool, device=S.device)
    to_captions = (S + margins[None] - d[:, None]).masked_fill(own, 0.0).clamp_min(0)  # (B, B)
    to_images = (S + margins[None] - d[None]).masked_fill(own, 0.0).clamp_min(0)  # (B, B)
    return to_captions.amax(1) + to_images.amax(0)


SOFT_TRIPLET: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pair": losses.soft_margin_triplet,
    "released": released_soft_margin_triplet,
}
"""Whose margin counts against a negative caption: that of the pair, or of the negative (released code)."""
