r"""SPS: seeking proxy point via stable feature space (Xie, Cai, Tong, Hu, Zhu; IJCAI 2025).

Two networks exchange divisions, as in NCR, and train with InfoNCE. On the pairs that are very probably right
two terms make the feature space stable: the similarity matrix becomes symmetric, and images lie to each other
as their captions do. In that space a noisy image takes a proxy, the caption of the most similar image among
the strictly clean pairs of the step, with a soft label.

Symbols: :math:`S` similarities (images in rows), :math:`\tau` temperature, :math:`\ell_i` InfoNCE of a pair,
:math:`p_i` mean probability of a pair in both directions, :math:`w` posterior of the clean component,
:math:`\bar v, \bar t` mean of the regions and of the words, :math:`C^v, C^t` their cosines with each other,
:math:`j^*` proxy, :math:`y` soft label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, beside, option, register
from nclib.methods.coteaching import CoTeaching, first_epoch, loss_inside, loss_option, softmax_loss
from nclib.methods.parts.bank import pooled
from nclib.methods.parts.vectors import global_vectors
from nclib.methods.parts.views import DROP, training_view

PUBLISHED = {"warmup_epochs": 5, "epochs": 40, "decay_every": 10, "batch_size": 128, "lr": 2e-4}


@dataclass(frozen=True)
class SPSOptions(Options):
    """Options of SPS; the defaults are those of the official Flickr30K runs."""

    tau: float = option(0.07, above=0, help="temperature of both softmaxes")
    sure: float = option(
        0.6, low=0, high=0.999, help="a pair is strictly clean when its posterior exceeds it"
    )
    threshold: float = option(0.5, above=0, high=0.999, help="a pair is clean when its posterior exceeds it")
    symmetry: float = option(25.0, low=0, help="weight of the asymmetry of the similarities")
    geometry: float = option(25.0, low=0, help="weight of the disagreement of image and caption cosines")
    clean_from: float = option(
        0.25, low=0, high=1, help="share of the training epochs before clean pairs are trained on; 1: never"
    )
    noisy_from: float = option(
        0.375, low=0, high=1, help="share of the training epochs before noisy pairs are trained on; 1: never"
    )
    label_threshold: float = option(0.5, low=0, high=1, help="labels of proxies below it become 0")
    drop: float = option(0.0, low=0, high=0.9, help=DROP)
    loss: str = loss_option("infonce")


def proxies(images: Tensor, sure: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the proxy :math:`j^*`, int64 (n,), of every noisy image and its cosine, (n,).

    Parameters
    ----------
    images, sure : Tensor, (n, D) and (m, D)
        Mean regions of the noisy and of the strictly clean images.
    """
    cosine, proxy = (normalize(images, dim=1) @ normalize(sure, dim=1).T).max(1)
    return proxy, cosine


def pair_log_probabilities(S: Tensor, tau: float, copies: Tensor | None = None) -> Tensor:
    r"""Return the log-probability of every given pair in both directions, (2, B): of captions, of images.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    tau : float, > 0
    copies : Tensor, (B,), optional
        How often the caption of each column occurs in the batch. Copies then count as one caption in the
        softmax of an image, so that they do not share its probability.
    """
    captions, images = losses.log_probabilities(S, tau)
    if copies is not None:
        captions = captions - (captions - copies.log()).logsumexp(1, keepdim=True)
    return torch.stack([captions.diagonal(), images.diagonal()])


def probability(S: Tensor, tau: float, copies: Tensor | None = None) -> Tensor:
    """Return :math:`p_i`, (B,) in (0, 1), the mean of a pair's two probabilities; see the function above."""
    return pair_log_probabilities(S, tau, copies).exp().mean(0)


def proxy_labels(p: Tensor, cosine: Tensor, threshold: float = 0.5) -> Tensor:
    """Return the soft labels of images with proxies, (B,): ``p * cosine``, 0 below the threshold."""
    y = p * cosine
    return y.masked_fill(y < threshold, 0.0)


def proxy_loss(S: Tensor, proxy: Tensor, loss: str, tau: float) -> Tensor:
    """Return the loss of noisy images against their proxies, (n,); copies of a proxy do not compete.

    Parameters
    ----------
    S : Tensor, (n, n)
        Similarities of the images with the proxies.
    proxy : Tensor, int64, (n,)
        Which caption every column is; equal numbers are copies.
    loss, tau
        As of :func:`nclib.methods.coteaching.loss_inside`.
    """
    same = proxy[:, None] == proxy[None]
    if loss == "triplet":
        to_captions, to_images = losses.hinges(S, 0.2)
        return (to_captions.masked_fill(same, 0.0).amax(1) + to_images.amax(0)) / tau
    log_p = pair_log_probabilities(S, tau, same.sum(1).to(S.dtype))
    return softmax_loss(log_p, loss).sum(0)


def asymmetry(S: Tensor) -> Tensor:
    r"""Return the mean of :math:`(S_{ij} - S_{ji})^2` over all entries of S, (B, B)."""
    return (S - S.T).square().mean()


def disagreement(v: Tensor, t: Tensor) -> Tensor:
    r"""Return the mean of :math:`(C^v_{ij} - C^t_{ij})^2` for mean regions v and mean words t, (B, D)."""
    v, t = normalize(v, dim=1), normalize(t, dim=1)
    return (v @ v.T - t @ t.T).square().mean()


@register(
    "sps",
    summary="co-teaching; stable feature space on strictly clean pairs, proxy captions for noisy images",
    paper="Xie et al., IJCAI 2025",
)
class SPS(CoTeaching):
    """Algorithm of the official code, whose slips are mended; ``options`` is an :class:`SPSOptions`.

    A proxy that several images take is one caption of the softmax; in the official code its copies compete.
    """

    Options = SPSOptions
    settings: ClassVar = {
        "f30k": PUBLISHED,
        # Half as long, the rate falls in the middle: noisy pairs start there, not at a tenth of the rate.
        "coco": {**PUBLISHED, "epochs": 20, "noisy_from": 0.5},
        "cc152k": PUBLISHED,
    }

    def __init__(self, options: SPSOptions) -> None:
        super().__init__(options)
        if options.sure < options.threshold:
            raise ValueError(
                f"sure={options.sure:g} lies below threshold={options.threshold:g}; strictly clean pairs "
                "must be clean"
            )

    # -- warm-up: InfoNCE on all pairs -------------------------------------------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        S = loop.similarity(training_view(loop, batch, self.options.drop))
        return {"warmup": self.pair_loss(S).mean()}

    # -- three kinds of pairs, by the peer's mixture on the same loss ------------------------------------

    def pair_loss(self, S: Tensor) -> Tensor:
        return loss_inside(S, self.options.loss, self.options.tau, negatives="mean")

    def kinds(self, network: int) -> Tensor:
        """Return the kind of every pair by a network's own division, (N,): noisy 0, clean 1, sure 2."""
        division = self.divisions[network]
        is_sure = division.p_clean > self.options.sure
        return torch.where(is_sure, 2, division.is_clean.long())

    def begin_epoch(self, loop: Loop) -> Steps:
        o = self.options
        self.divide_pairs(loop)
        noisy, clean, sure = (self.kinds(1 - loop.active).eq(kind).nonzero()[:, 0] for kind in range(3))
        batches = loop.batches(sure, purpose="sure")
        if not len(batches):
            self.warn_idle(loop, len(sure), "are called strictly clean")
        now = loop.training_epoch
        in_use = len(batches) and now >= first_epoch(o.noisy_from, loop) and len(noisy) > 1
        steps = beside(batches, loop, noisy if in_use else None, "noisy")
        in_use = now >= first_epoch(o.clean_from, loop) and len(clean) > 1
        band = loop.batches(clean, purpose="clean") if in_use else ()
        # Clean pairs are few and not shuffled again when they run out.
        return Steps(zip(steps, chain(band, repeat(None)), strict=False), len(steps))

    # -- one iteration: labels from the weights before it, then a step for each kind of pairs ------------

    def step(self, loop: Loop, batch: tuple[tuple[Batch, Batch | None], Batch | None]) -> Iterator[Terms]:
        (sure, noisy), clean = batch
        o = self.options
        with loop.evaluating():
            if clean is not None:
                w = self.given(loop, clean)
                y_clean = w + (1 - w) * probability(loop.similarity(clean), o.tau)
            if noisy is not None:
                proxy, y_noisy = self._proxies(loop, sure, noisy)
        sure = training_view(loop, sure, o.drop)
        yield self._stable(loop, sure)
        if clean is not None:
            S = loop.similarity(training_view(loop, clean, o.drop))
            yield {"clean": (y_clean * loss_inside(S, o.loss, o.tau)).mean()}
        if noisy is not None:
            S = self._to_captions_of(loop, training_view(loop, noisy, o.drop), sure)[:, proxy]
            yield {"noisy": (y_noisy * proxy_loss(S, proxy, o.loss, o.tau)).mean()}

    def _stable(self, loop: Loop, sure: Batch) -> Terms:
        """InfoNCE of strictly clean pairs with the two terms that make the feature space stable."""
        o = self.options
        images, captions = loop.encode(sure)
        S = loop.compare(images, captions)
        terms = {"sure": loss_inside(S, o.loss, o.tau).mean(), "symmetry": o.symmetry * asymmetry(S)}
        v, t = global_vectors(images, captions)
        return terms | {"geometry": o.geometry * disagreement(v.float(), t.float())}

    def _to_captions_of(self, loop: Loop, images: Batch, captions: Batch) -> Tensor:
        """Similarities of the images of one batch, (n,), with the captions of another, (m,): (n, m)."""
        return loop.similarity(Batch(images.index, images.images, captions.captions))

    def _proxies(self, loop: Loop, sure: Batch, noisy: Batch) -> tuple[Tensor, Tensor]:
        """Proxies of noisy images in a strictly clean batch, and their labels, (n,) each."""
        o, net = self.options, loop.networks[loop.active]
        u, bank = (pooled(net.encode_images(batch.images)) for batch in (noisy, sure))
        proxy, cosine = proxies(u, bank)
        copies = (proxy[:, None] == proxy[None]).sum(1).to(u.dtype)
        S = self._to_captions_of(loop, noisy, sure)[:, proxy]
        return proxy, proxy_labels(probability(S, o.tau, copies), cosine, o.label_threshold)
