"""SGRAF: an SGR and a SAF model with encoders of their own, whose similarities are averaged (AAAI 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.models.base import Index, Matcher
from nclib.models.registry import register
from nclib.models.sgraf import SAF, SGR


@dataclass(frozen=True)
class JointEncoding:
    """The same rows as encoded by each member of an ensemble."""

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def vectors(self) -> Tensor:
        """Global vectors of the members side by side, unit length each, (B, D of all members)."""
        return torch.cat([F.normalize(part.vectors, dim=-1) for part in self.parts], dim=-1)

    def select(self, index: Index) -> JointEncoding:
        """Return the rows ``index`` of every member's encoding."""
        return JointEncoding(tuple(part.select(index) for part in self.parts))

    def detach(self) -> JointEncoding:
        """Return the same values without a gradient."""
        return JointEncoding(tuple(part.detach() for part in self.parts))

    @staticmethod
    def concat(parts: Sequence[JointEncoding]) -> JointEncoding:
        """Return all rows of ``parts``, in order."""
        members = zip(*(joint.parts for joint in parts), strict=True)
        return JointEncoding(tuple(type(member[0]).concat(member) for member in members))


def _mean(scores: Sequence[Tensor], logits: bool) -> Tensor:
    """Mean of ``sigmoid(scores)``, or its logit, exact where a sigmoid would round to 1; shapes (...)."""
    stacked = torch.stack(list(scores))
    if logits:
        return torch.logsumexp(F.logsigmoid(stacked), 0) - torch.logsumexp(F.logsigmoid(-stacked), 0)
    return torch.sigmoid(stacked).mean(0)


@register("sgraf", summary="mean similarity of an SGR and a SAF model", paper="AAAI 2021")
class SGRAF(Matcher):
    """Ensemble of SGR and SAF; takes the options of both.

    Parameters
    ----------
    steps, **common
        As in :class:`~nclib.models.sgraf.SGR`; SAF takes all of them but ``steps``.
    """

    Options = SGR.Options  # SAF's and ``steps``

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.sgr = SGR(**common)
        self.saf = SAF(**{name: value for name, value in common.items() if name != "steps"})
        self.needs_regions = self.saf.needs_regions

    @property
    def members(self) -> tuple[Matcher, Matcher]:
        """The two models."""
        return self.sgr, self.saf

    def encode_images(self, images: Tensor) -> JointEncoding:
        """Encode region features (B, R, feature_dim) by both members."""
        return JointEncoding(tuple(member.encode_images(images) for member in self.members))

    def encode_captions(self, tokens: Tokens) -> JointEncoding:
        """Encode captions by both members."""
        return JointEncoding(tuple(member.encode_captions(tokens) for member in self.members))

    def similarity(self, images: JointEncoding, captions: JointEncoding, *, logits: bool = False) -> Tensor:
        """Return the mean of the members' similarities (B, C), or its logit."""
        parts = zip(self.members, images.parts, captions.parts, strict=True)
        return _mean([m.similarity(i, c, logits=True) for m, i, c in parts], logits)

    @property
    def pair_dim(self) -> int:
        """Width of both members' similarity vectors side by side."""
        return sum(member.pair_dim for member in self.members)

    def pair_vectors(self, images: JointEncoding, captions: JointEncoding, *, paired: bool = False) -> Tensor:
        """Return the similarity vectors of SGR and SAF side by side, (B, C, 2 S) or (B, 2 S)."""
        parts = zip(self.members, images.parts, captions.parts, strict=True)
        return torch.cat([member.pair_vectors(i, c, paired=paired) for member, i, c in parts], -1)

    def paired_similarity(
        self, images: JointEncoding, captions: JointEncoding, *, logits: bool = False
    ) -> Tensor:
        """Return the mean of the members' similarities of image i and caption i, (n,), or its logit."""
        parts = zip(self.members, images.parts, captions.parts, strict=True)
        return _mean([member.paired_similarity(i, c, logits=True) for member, i, c in parts], logits)
