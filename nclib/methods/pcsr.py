r"""PCSR: pseudo-label consistency-guided sample refinement (Liu, Liu, Feng, Huang; AAAI 2026).

Two networks exchange divisions, as in NCR, and divide the noisy pairs once more. A head assigns every image a
pseudo-class in every epoch. If these votes agree the pair is refinable: its image takes the caption of the
pair in the clean batch whose pseudo-class is most alike. Otherwise it is ambiguous: it joins last, and its
pseudo-class is learned with a robust loss.

Symbols: :math:`S` similarities (images in rows), :math:`\pi, \rho` distribution over the C pseudo-classes of
image and caption, :math:`n_{ic}` votes of image i for class c, :math:`g` consistency, :math:`\theta` its
threshold, :math:`\lambda` share of the pairs above it, :math:`w` posterior of the clean component of the
losses, :math:`w^c` of the stable component of the changes of :math:`\pi` since training, :math:`y` soft
label, :math:`\bar H` entropy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import normalize

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, Truth, beside, option, register
from nclib.methods.coteaching import CoTeaching, Division, divide, first_epoch, mean_report
from nclib.methods.parts.classes import PseudoClasses, consistency, entropy, robust_cross_entropy
from nclib.models import Matcher
from nclib.noise import GaussianMixture1d

LAMBDA = 0.4, 0.9  # wanted share of pairs above the threshold, at the start and at the end of the run
SMOOTHING, RATE = 0.3, 0.2  # of the threshold's update
KINDS = ("ambiguous", "refinable", "clean")
"""Kinds of pairs by their number in the kept arrays."""


@dataclass(frozen=True)
class PCSROptions(Options):
    """Options of PCSR; the defaults are those of the official code, whose slips are mended."""

    margin: float = option(0.2, above=0, help="margin alpha of a pair whose label is 1")
    m: float = option(10.0, above=1, help="base of the exponential soft margin")
    tau: float = option(0.05, above=0, help="temperature of the warm-up loss")
    threshold: float = option(0.5, above=0, high=0.999, help="a pair is clean when its posterior exceeds it")
    classes: int = option(256, low=2, help="number of pseudo-classes")
    refinable_from: float = option(
        0.5, low=0, high=1, help="share of the training epochs before refinable pairs join; 1: never"
    )
    ambiguous_from: float = option(
        0.8, low=0, high=1, help="share of the training epochs before ambiguous pairs join; 1: never"
    )
    entropy_weight: float = option(10.0, low=0, help="weight of the entropy of a batch's pseudo-classes")
    q: float = option(0.7, above=0, high=1, help="exponent of the robust loss of ambiguous pairs")
    label_threshold: float = option(0.5, low=0, high=1, help="labels of replaced captions below it become 0")


def next_threshold(theta: float, g: Tensor, t: int, T: int) -> float:
    r"""Move the threshold of the consistency towards one that a wanted share of the pairs exceeds.

    .. math:: \theta \leftarrow 0.7\,\theta + 0.3\,(\theta - 0.2\,(\lambda_t - \lambda)), \qquad
              \lambda_t = 0.4 + 0.5\,t/T

    Parameters
    ----------
    theta : float
        Threshold so far.
    g : Tensor, (N,)
        Consistency of the pairs; :math:`\lambda` is the share above ``theta``.
    t, T : int
        Epoch and number of epochs, warm-up included.
    """
    wanted = LAMBDA[0] + (LAMBDA[1] - LAMBDA[0]) * t / T
    share = float((g > theta).double().mean())
    return (1 - SMOOTHING) * theta + SMOOTHING * (theta - RATE * (wanted - share))


def clean_labels(w: Tensor, w_c: Tensor) -> Tensor:
    """Return the labels of clean pairs, (B,): :math:`w + (1 - w) w^c [w^c > 1/2]`."""
    return w + (1 - w) * w_c * (w_c > 0.5)


@register(
    "pcsr",
    summary="co-teaching; noisy pairs with consistent pseudo-classes get a clean caption, the rest come last",
    paper="Liu et al., AAAI 2026",
)
class PCSR(CoTeaching):
    """Algorithm of the official code, whose slips are mended; ``options`` is a :class:`PCSROptions`.

    The pseudo-classes may collapse into one, so that all votes agree: ``classes_used`` of a record counts
    those that the votes of an epoch name. Labels of replaced captions carry no gradient; in the official code
    they do, and training makes them smaller. There the head votes in warm-up, too, before it is trained, a
    caption that several images of a batch take is a negative of each of them, and the entropy is the mean of
    single distributions; here it is that of the batch's mean distribution, meant to keep all classes in use.
    """

    Options = PCSROptions
    settings: ClassVar = {
        name: {"warmup_epochs": 5, "epochs": 50, "decay_every": 30, "batch_size": 128, "lr": 2e-4}
        for name in ("f30k", "coco", "cc152k")
    }

    def __init__(self, options: PCSROptions) -> None:
        super().__init__(options)
        self.n_votes: list[Tensor] = []  # of each network, int16 (N, C), on the device
        self.log_pi: list[Tensor] = []  # of each network, last trained on, float32 (N, C), on the device
        self.theta = [0.0, 0.0]

    def prepare(self, network: Matcher) -> Matcher:
        network.pseudo_classes = PseudoClasses(network, self.options.classes)
        return network

    def may_be_tested(self, loop: Loop) -> bool:
        # The official code forgets its best epoch when a stage begins: the last stage alone is tested.
        o = self.options
        starts = [first_epoch(share, loop) for share in (o.refinable_from, o.ambiguous_from)]
        return loop.training_epoch >= max((s for s in starts if s < loop.n_epochs), default=0)

    # -- warm-up: half of InfoNCE on all pairs -----------------------------------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        images, captions = loop.encode(batch)
        with torch.no_grad():
            log_pi = self._log_pi(loop, images)
        self._keep(loop, batch.index, log_pi)
        S = loop.compare(images, captions)
        return {"warmup": losses.info_nce(S, self.options.tau).mean() / 2}

    def begin_training(self, loop: Loop) -> None:
        loop.reset_optimizers()

    def _log_pi(self, loop: Loop, encoding: Any, network: int | None = None) -> Tensor:
        """Log-probabilities of the pseudo-classes of encoded images or captions, (B, C)."""
        net = loop.networks[loop.active if network is None else network]
        head = cast(PseudoClasses, net.pseudo_classes)
        return head(encoding).log_softmax(1)

    def _keep(self, loop: Loop, index: Tensor, log_pi: Tensor) -> None:
        """Keep the distributions, (n, C), of pairs that the active network trains on, at ``index``, (n,)."""
        self.log_pi = self.log_pi or self._tables(loop, torch.nan, torch.float32)
        self.log_pi[loop.active][index.to(loop.device, non_blocking=True)] = log_pi

    def _tables(self, loop: Loop, value: float, dtype: torch.dtype) -> list[Tensor]:
        """Return a table of all pairs and classes for each network, (N, C), filled with a value."""
        shape = loop.n_pairs, self.options.classes
        return [torch.full(shape, value, dtype=dtype, device=loop.device) for _ in loop.networks]

    # -- two divisions by the peer: by the loss, then by the consistency of the votes --------------------

    def pair_values(self, loop: Loop, networks: list[int]) -> Tensor:
        """Return the triplet loss and the log-probabilities of every pair, (N, len(networks), 1 + C)."""

        def values(batch: Batch) -> Tensor:
            each = []
            for k in networks:
                images, captions = loop.encode(batch, k)
                ell = losses.triplet(loop.compare(images, captions, k), self.options.margin, "mean")
                each.append(torch.cat([ell[:, None], self._log_pi(loop, images, k)], dim=1))
            return torch.stack(each, dim=1)

        return loop.each_pair(values)

    def posterior(self, loop: Loop, network: int, values: Tensor) -> Division:
        division = divide(values[:, 0], GaussianMixture1d.published(), self.options.threshold)
        now = values[:, 1:].to(loop.device)
        w_c = torch.zeros_like(division.p_clean)
        if self.log_pi:
            # KL(now || kept), (N,); NaN for a pair that was not trained on before.
            change = (now.exp() * (now - self.log_pi[network])).sum(1).cpu()
            kept = ~change.isnan()
            if bool(change[kept].any()):
                w_c[kept] = divide(change[kept], GaussianMixture1d.published()).p_clean
        self.n_votes = self.n_votes or self._tables(loop, 0, torch.int16)
        self.n_votes[network][torch.arange(loop.n_pairs, device=loop.device), now.argmax(1)] += 1
        g = consistency(self.n_votes[network]).cpu()
        t, T = loop.epoch, loop.epoch - loop.training_epoch + loop.n_epochs
        theta = float(g.double().mean()) if loop.training_epoch == 0 else self.theta[network]
        self.theta[network] = theta = next_threshold(theta, g, t, T)
        kind = torch.where(division.is_clean, 2, g > theta)
        voted = now.argmax(1).cpu()
        self.divided[network] = {"kind": kind.byte(), "consistency": g, "stable": w_c, "voted": voted}
        return division

    def begin_epoch(self, loop: Loop) -> Steps:
        if loop.active == 0:
            self.divided: list[dict[str, Tensor]] = [{}, {}]
        clean = loop.batches(self.divide_pairs(loop).clean, purpose="clean")
        if not len(clean):
            self.warn_idle(loop, len(self.divisions[1 - loop.active].clean), "are called clean")
        steps: Any = clean
        stages = {"refinable": self.options.refinable_from, "ambiguous": self.options.ambiguous_from}
        for kind, share in stages.items():
            pairs = (self.divided[1 - loop.active]["kind"] == KINDS.index(kind)).nonzero()[:, 0]
            in_use = len(clean) and loop.training_epoch >= first_epoch(share, loop) and len(pairs) > 1
            steps = beside(steps, loop, pairs if in_use else None, kind)
        return cast(Steps, steps)

    # -- one iteration: a step for each kind of pairs ----------------------------------------------------

    def step(self, loop: Loop, batch: tuple[tuple[Batch, Batch | None], Batch | None]) -> Iterator[Terms]:
        (clean, refinable), ambiguous = batch
        yield self._clean(loop, clean)
        if ambiguous is not None:
            yield self._replaced(loop, clean, ambiguous, "ambiguous")
        if refinable is not None:
            yield self._replaced(loop, clean, refinable, "refinable")

    def _clean(self, loop: Loop, clean: Batch) -> Terms:
        images, captions = loop.encode(clean)
        S = loop.compare(images, captions)
        w_c = self.divided[1 - loop.active]["stable"][clean.index].float()
        y = clean_labels(self.given(loop, clean), w_c.to(loop.device, non_blocking=True))
        log_pi, target = self._log_pi(loop, images), self._log_pi(loop, captions).argmax(1)
        return {
            "clean": losses.soft_margin_triplet(S, self._margins(y)).sum(),
            "classes": F.nll_loss(log_pi, target),
            "entropy": self._entropy(log_pi),
        }

    def _replaced(self, loop: Loop, clean: Batch, noisy: Batch, kind: str) -> Terms:
        """Train noisy images with captions of the clean batch, chosen by the pseudo-classes."""
        net = loop.networks[loop.active]
        with loop.evaluating():
            log_pi, known = (self._log_pi(loop, net.encode_images(b.images)) for b in (noisy, clean))
            self._keep(loop, noisy.index, log_pi)
            pi, known = (normalize(x.exp(), dim=1) for x in (log_pi, known))
            y, chosen = (pi @ known.T).max(1)  # (n,)
            y = y.masked_fill(y < self.options.label_threshold, 0.0).clamp(0, 1)
        S = loop.similarity(Batch(noisy.index, noisy.images, clean.captions))[:, chosen]  # (n, n)
        same = chosen[:, None] == chosen[None]  # images that take one caption: no negatives
        terms = {kind: losses.soft_margin_triplet(S, self._margins(y), ignore=same).sum()}
        if kind == "ambiguous":
            images, captions = loop.encode(noisy)  # its own captions
            log_pi, target = self._log_pi(loop, images), self._log_pi(loop, captions).argmax(1)
            terms["robust"] = robust_cross_entropy(log_pi, target, self.options.q).mean()
            terms["entropy_ambiguous"] = self._entropy(log_pi)
        return terms

    def _margins(self, y: Tensor) -> Tensor:
        return losses.soft_margins(y, self.options.margin, self.options.m)

    def _entropy(self, log_pi: Tensor) -> Tensor:
        return -self.options.entropy_weight * entropy(log_pi)

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        super().end_epoch(loop)
        if loop.active == 1:
            for part, end in zip(self.divided, ("", "_b"), strict=True):
                loop.keep(**{name + end: value for name, value in part.items()})

    def diagnostics(self, truth: Truth) -> dict[str, Any]:
        used = mean_report([{"classes_used": len(part["voted"].unique())} for part in self.divided])
        return super().diagnostics(truth) | used

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"votes": self.n_votes, "log_pi": self.log_pi, "theta": self.theta}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        self.n_votes = [votes.to(loop.device) for votes in state["votes"]]
        self.log_pi = [log_pi.to(loop.device) for log_pi in state["log_pi"]]
        self.theta = list(state["theta"])
