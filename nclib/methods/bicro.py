r"""BiCro: bi-directional cross-modal similarity consistency (Yang et al., CVPR 2023).

Two networks divide the pairs for each other by a beta mixture on their losses. The few most reliable pairs of
a clean batch are *anchors*. If an image is close to an anchor's image, its caption should be as close to that
anchor's caption, and the other way round: the agreement of the two closenesses is the pair's soft label. It
sets the pair's margin in the triplet loss.

Symbols: :math:`\ell` per-pair loss, :math:`w` P(clean), :math:`u, t` global vectors of image and caption,
:math:`\mathcal A` anchors, :math:`R^I, R^T` ratio of closenesses seen from the image and from the caption,
:math:`\hat y` soft label, :math:`\hat\alpha` its margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, option, register
from nclib.methods.coteaching import CoTeaching, Division, divide
from nclib.methods.parts.anchors import (
    by_reliability,
    clean_labels,
    closeness_ratios,
    n_anchors,
    noisy_labels,
    small_loss,
)
from nclib.methods.parts.vectors import global_vectors
from nclib.models import Matcher
from nclib.noise import BetaMixture

PUBLISHED = {"warmup_epochs": 10, "epochs": 40, "decay_every": 30, "batch_size": 128, "lr": 2e-4}


@dataclass(frozen=True)
class BiCroOptions(Options):
    """Options of BiCro; the defaults are those of the official scripts."""

    margin: float = option(0.2, above=0, help="margin alpha of a pair whose label is 1")
    base: float = option(10.0, above=1, help="base m of the soft margin alpha (m^y - 1) / (m - 1)")
    keep_ratio: float = option(0.3, above=0, high=1, help="share of a warm-up batch that counts: least loss")
    threshold: float = option(0.5, low=0, high=0.999, help="a pair is clean when P(clean) exceeds it")
    label_threshold: float = option(0.5, low=0, high=1, help="soft labels up to it become 0")


@register(
    "bicro",
    summary="co-teaching; soft labels from the agreement of closeness to anchors in both modalities",
    paper="Yang et al., CVPR 2023",
)
class BiCro(CoTeaching):
    """Algorithm of the paper; ``options`` is a :class:`BiCroOptions`.

    The official code differs in three places. Its default mixture is Gaussian. It writes the labels of the
    first pairs of a clean batch to the non-anchors in the order of their reliability, so that nearly every
    label lands on another pair, and leaves ties of the anchors to the sort. Against a negative caption it
    uses the margin of that caption, because transposing one-dimensional margins does not change them.
    """

    Options = BiCroOptions
    settings: ClassVar = {
        # Five epochs in all, as elsewhere; three of them warm up, so that the first division meets networks
        # that have learned something. Half of a batch counts there, the default of the official code.
        "quick": {"warmup_epochs": 3, "epochs": 2, "decay_every": 1, "keep_ratio": 0.5},
        **dict.fromkeys(("f30k", "coco", "cc152k"), PUBLISHED),
    }

    # -- warm-up: all pairs, but only the small losses of a batch count ---------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        ell = losses.triplet(loop.similarity(batch), self.options.margin, "mean")
        return {"warmup": small_loss(ell, self.options.keep_ratio).sum()}

    # -- division by the peer: beta mixture on the losses -----------------------------------------------

    def posterior(self, loop: Loop, network: int, values: Tensor) -> Division:
        return divide(values, BetaMixture.bicro(), self.options.threshold)

    def begin_epoch(self, loop: Loop) -> Steps:
        division = self.divide_pairs(loop)
        # labels in clean and in noisy batches, NaN where none
        self.label = torch.full((2, loop.n_pairs), torch.nan, device=loop.device)
        return self.exchanged_steps(loop, division, noisy=self.noisy_now(loop))

    # -- one iteration: labels from the peer, then the noisy batch, then the clean one -------------------

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Iterator[Terms]:
        clean, noisy = batch
        y_clean, y_noisy = self.labels(loop, clean, noisy)
        if noisy is not None and y_noisy is not None:
            yield {"noisy": self._loss(loop, noisy, y_noisy)}
        yield {"clean": self._loss(loop, clean, y_clean)}

    def labels(self, loop: Loop, clean: Batch, noisy: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Label a clean and a noisy batch by the peer of the active network, with the same anchors."""
        o = self.options
        peer: Matcher = loop.networks[1 - loop.active]
        with loop.evaluating():
            images, captions = peer.encode_images(clean.images), peer.encode_captions(clean.captions)
            S = peer.similarity(images, captions).float()
            u, t = global_vectors(images, captions)
            order = by_reliability(S, o.margin)
            anchors = order[-n_anchors(len(order)) :]
            known = u[anchors], t[anchors]
            ratios = closeness_ratios(u, t, *known)
            y_clean = clean_labels(*ratios, order, o.label_threshold)
            self.label[0, clean.index.to(loop.device, non_blocking=True)] = y_clean
            if noisy is None:
                return y_clean, None
            u, t = global_vectors(peer.encode_images(noisy.images), peer.encode_captions(noisy.captions))
            y_noisy = noisy_labels(*closeness_ratios(u, t, *known), o.label_threshold)
            self.label[1, noisy.index.to(loop.device, non_blocking=True)] = y_noisy
            return y_clean, y_noisy

    def _loss(self, loop: Loop, batch: Batch, y: Tensor) -> Tensor:
        o = self.options
        margins = losses.soft_margins(y.float(), o.margin, o.base)
        return losses.soft_margin_triplet(loop.similarity(batch), margins).sum()

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        super().end_epoch(loop)
        end = "_b" if loop.active else ""
        loop.keep(**{f"label_clean{end}": self.label[0], f"label_noisy{end}": self.label[1]})
