"""PCSR's pseudo-classes: their head on images and captions of any model, their votes and their losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.methods.parts.vectors import blank_encoding, fragments_of
from nclib.models import Matcher
from nclib.models.ensemble import JointEncoding

HIDDEN = 256  # width of the hidden layer, as in the official code


def steps_of(encoding: Any, n: int) -> Tensor:
    """Return the fragments of encoded images or captions at ``n`` steps, float32 (B, n, D).

    Fewer fragments are followed by zeros. A caption of more words is interpolated linearly over its own
    words, so that it does not depend on the other captions of its batch. Models without fragments give their
    global vectors as the only fragment; the members of an ensemble stand side by side.
    """
    if isinstance(encoding, JointEncoding):
        return torch.cat([steps_of(part, n) for part in encoding.parts], dim=2)
    x = fragments_of(encoding)
    x = (encoding.vectors[:, None] if x is None else x).float()
    width = x.shape[1]
    if width <= n:
        return F.pad(x, (0, 0, 0, n - width))
    count = torch.tensor(getattr(encoding, "lengths", (width,) * len(x))).clamp_min(n)[:, None]
    at = (torch.arange(n) + 0.5) * count / n - 0.5  # (B, n), from 0 to count - 1
    low = at.long()
    part = (at - low).to(x.device, non_blocking=True)[..., None]
    first, second = (
        x.gather(1, i.to(x.device, non_blocking=True)[..., None].expand(-1, -1, x.shape[2]))
        for i in (low, (low + 1).minimum(count - 1))
    )
    return torch.lerp(first, second, part)


class PseudoClasses(nn.Module):
    """Logits of pseudo-classes from all fragments of an image or a caption: Linear, ReLU, Linear.

    Parameters
    ----------
    network : Matcher
        Gives the number and the width of the regions; captions are brought to that number.
    classes : int
    """

    def __init__(self, network: Matcher, classes: int) -> None:
        super().__init__()
        image = blank_encoding(network)
        first = image.parts[0] if isinstance(image, JointEncoding) else image
        regions = getattr(first, "regions", None)
        self.n = 1 if regions is None else regions.shape[1]
        width = steps_of(image, self.n).shape[2]
        self.layers = nn.Sequential(nn.Linear(self.n * width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

    def forward(self, encoding: Any) -> Tensor:
        """Return logits, (B, classes), of encoded images or captions."""
        logits: Tensor = self.layers(steps_of(encoding, self.n).flatten(1))
        return logits


def consistency(votes: Tensor) -> Tensor:
    """Return :math:`g`, (N,): largest minus second largest count of votes, (N, C)."""
    first, second = votes.topk(2, dim=1).values.unbind(1)
    return first - second


def entropy(log_pi: Tensor) -> Tensor:
    """Return the entropy of the mean distribution of a batch, from the logarithms of all, (B, C)."""
    mean = log_pi.logsumexp(0) - math.log(len(log_pi))
    return -(mean.exp() * mean).sum()


def robust_cross_entropy(log_pi: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    r"""Return the generalised cross entropy :math:`(1 - \pi_{i,target}^q) / q`, (B,).

    Parameters
    ----------
    log_pi, target : Tensor, (B, C) and int64 (B,)
        Logarithms of the distributions; classes.
    q : float in (0, 1]
    """
    return -torch.expm1(q * log_pi.gather(1, target[:, None])[:, 0]) / q
