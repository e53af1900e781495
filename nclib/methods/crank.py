r"""CRANK: count the wrong pairs, then rank (a method of this book; no paper).

Four parts, each kept because an ablation asks for it:

1. *A bounded loss.* Warm-up with generalised cross entropy on all pairs but those of a held-out tenth of the
   pictures, which stay in the batches as negatives: a wrong pair cannot dominate a batch. Every batch is a
   partial view, with some regions and words left out: a wrong pair that must be recognised by any part of
   itself is hard to learn by heart.
2. *Count.* The network was not trained to match the held-out pairs. An image of one of them with a caption of
   another is wrong for sure and scores as a wrong pair does. Right pairs hardly ever score as low as the
   lowest quarter of these, so the share of wrong pairs is four times the share of held-out pairs there:
   Storey's estimator of the share of true null hypotheses (JRSS B 2002), without a model of either
   distribution.

   .. math:: \hat\pi=\min\Big(1,\;\frac{\#\{i\in H: s_i<q_\kappa(s^0)\}}{\kappa\,\#H}\Big)

3. *Rank.* Before every epoch all pairs are ranked by score. As many as were counted get a weight near 0, the
   others train with InfoNCE and reverse cross entropy. All pairs train when no wrong ones were counted. When
   nearly all were, warm-up goes on for an epoch, and the pairs are counted again.
4. *A stable space.* On the batches of these pairs, images lie to each other as their captions do, and the
   matrix of similarities is symmetric: the two terms of SPS (Xie et al., IJCAI 2025).

Symbols: :math:`S` similarities (images in rows), :math:`\tau` temperature, :math:`s` score of a given pair,
:math:`s^0` score of a pair that is wrong for sure, :math:`\kappa` the quarter, :math:`\hat\pi` counted share,
:math:`w` weight, :math:`H` held-out pairs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Options, Terms, Truth, option, register
from nclib.methods.coteaching import divide
from nclib.methods.parts.detector import detector_report
from nclib.methods.parts.vectors import global_vectors
from nclib.methods.parts.views import DROP, training_view
from nclib.methods.sps import asymmetry, disagreement
from nclib.noise import GaussianMixture1d

LOW = 0.25  # kappa: quantile of the wrong pairs below which hardly any right pair is expected
LEAST_COUNT = 0.02  # a smaller share cannot be told from none by a held-out tenth
MOST_COUNT = 0.95  # above it the network tells no pair from a wrong one: it has learned too little to count
LEAST_WEIGHT = 0.02  # pairs below it are not loaded


@dataclass(frozen=True)
class CRANKOptions(Options):
    """Options of CRANK; one setting for all rates, chosen on validation splits."""

    tau: float = option(0.07, above=0, help="temperature")
    q: float = option(0.7, above=0, high=1, help="exponent of generalised cross entropy")
    drop: float = option(0.2, low=0, high=0.9, help=DROP)
    held: float = option(
        0.1, above=0, high=0.5, help="share of the pictures that warm-up leaves out, to count"
    )
    width: float = option(0.25, above=0, help="width of the step of the weights, in deviations of the score")
    kappa: float = option(LOW, above=0, below=1, help="quantile of the wrong pairs below which is counted")
    select: str = option(
        "rank",
        choices=("rank", "mixture", "none"),
        help="weights from count and rank, from a mixture of the losses, or none",
    )
    loss: str = option("infonce_rce", choices=("infonce_rce", "gce"), help="loss of the believed pairs")
    stable: float = option(25.0, low=0, help="weight of the two terms for a stable space, SPS's")


# ------------------------------------------------------------------------------------------ count and rank


def pair_scores(S: Tensor, tau: float) -> Tensor:
    """Score the given pairs and as many wrong ones against the other entries of their rows and columns.

    The score is the logit of the pair minus the mean of two log-sum-exps, of its row and of its column. The
    wrong pair of image i is the caption of half a batch further on. Both questions leave out the given pair
    and the wrong one, so that they differ in nothing else.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows, the given pairs on the diagonal.
    tau : float, > 0

    Returns
    -------
    Tensor, (B, 2)
        Scores of given and of wrong pairs; 0 when B is below 3, where nothing is left to compare with.
    """
    B = len(S)
    if B < 3:
        return S.new_zeros(B, 2)
    at = torch.arange(B, device=S.device)
    other = (at + B // 2) % B
    asked = torch.eye(B, dtype=torch.bool, device=S.device)
    asked[at, other] = True
    z = S / tau
    rest = z.masked_fill(asked, -math.inf)
    row, column = rest.logsumexp(1), rest.logsumexp(0)
    scores = [z[at, to] - 0.5 * (row + column[to]) for to in (at, other)]
    return torch.stack(scores, dim=1)


def counted_share(given: Tensor, wrong: Tensor, low: float = LOW) -> float:
    """Estimate the share of wrong pairs among the given ones (Storey, JRSS B 2002).

    Parameters
    ----------
    given, wrong : Tensor, (n,), (m,)
        Scores of given pairs that were not trained on, and of pairs that are wrong for sure.
    low : float in (0, 1)
        Quantile of ``wrong`` below which no right pair is expected.

    Returns
    -------
    float in [0, 1]
        Too high by the share of right pairs that score as low as that.
    """
    below = (given < wrong.quantile(low)).double().mean()
    return min(1.0, float(below) / low)


def rank_weights(score: Tensor, share: float, width: float) -> Tensor:
    """Return a weight per pair, (N,), near 0 for the ``share`` of pairs with the lowest scores.

    A smooth step at that quantile, ``width`` standard deviations of the scores wide; ones for a share that
    cannot be told from none.
    """
    if share < LEAST_COUNT:
        return torch.ones_like(score)
    spread = score.std().clamp_min(torch.finfo(score.dtype).tiny)
    return ((score - score.quantile(share)) / (width * spread)).sigmoid()


# ---------------------------------------------------------------------------------------------- the method


@register("crank", summary="a bounded loss on partial views; wrong pairs are counted, ranked, left out")
class CRANK(Method):
    """Count, then rank; ``options`` is a :class:`CRANKOptions`."""

    Options = CRANKOptions
    share: float = 0.0  # counted

    # -- 1. warm-up with a bounded loss, on partial views; held-out pairs are negatives alone

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        o = self.options
        w = self._trained(loop)[batch.index].float().to(loop.device, non_blocking=True)
        S = loop.similarity(training_view(loop, batch, o.drop))
        loss = losses.generalised_cross_entropy(S, o.tau, o.q)
        return {"gce": (w * loss).sum() / w.sum().clamp_min(1)}

    def _trained(self, loop: Loop) -> Tensor:
        """Return the pairs that warm-up trains on, bool (N,): all captions of a picture, or none."""
        if not hasattr(self, "trained"):
            image_of = loop.image_of
            n = int(image_of.max()) + 1
            order = torch.randperm(n, generator=loop.generator("held out"))
            self.trained = ~torch.isin(image_of, order[: math.ceil(self.options.held * n)])
        return self.trained

    # -- 2. count: after warm-up, and again as long as nearly all pairs are counted as wrong ------------

    def begin_training(self, loop: Loop) -> None:
        if self.options.select == "rank":
            if loop.epoch == 0:
                raise ValueError(
                    "warmup_epochs=0: crank counts the wrong pairs by what warm-up has learned; give at "
                    "least 1, or select='none'"
                )
            self._count(loop)

    def _count(self, loop: Loop) -> None:
        """Compare the held-out pairs with wrong pairs of their own images and captions."""
        held = (~self._trained(loop)).nonzero()[:, 0]
        with loop.evaluating():
            scores = [self._mean(loop, batch, pair_scores) for batch in loop.batches(held, purpose="count")]
        given, wrong = torch.cat(scores).unbind(1)
        self.share = counted_share(given, wrong, self.options.kappa)

    def _mean(self, loop: Loop, batch: Batch, measure: Callable[[Tensor, float], Tensor]) -> Tensor:
        """Return the mean over all networks of a measure of the similarities, (B, ...)."""
        every = [measure(loop.similarity(batch, k), self.options.tau) for k in range(self.n_networks)]
        return torch.stack(every).mean(0)

    # -- 3, 4. rank: before every epoch; a stable space -------------------------------------------------

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        if loop.active == 0:  # a second network trains with the same weights
            if self.share > MOST_COUNT and loop.training_epoch:
                self._count(loop)
            if self.share > MOST_COUNT:
                warnings.warn(
                    f"crank counted {self.share:.0%} of the pairs as wrong after epoch {loop.epoch}: no "
                    "score tells them apart yet, and warm-up goes on for an epoch",
                    stacklevel=2,
                )
            self.score = torch.zeros(loop.n_pairs)
            self.weight = torch.ones(loop.n_pairs)
            if self.options.select == "mixture":
                ell = loop.each_pair(lambda batch: self._mean(loop, batch, losses.info_nce))
                self.score, self.weight = -ell, divide(ell, GaussianMixture1d.published()).p_clean.float()
            elif LEAST_COUNT <= self.share <= MOST_COUNT:
                self.score = loop.each_pair(lambda batch: self._mean(loop, batch, pair_scores)[:, 0])
                self.weight = rank_weights(self.score, self.share, self.options.width)
        return loop.batches((self.weight > LEAST_WEIGHT).nonzero()[:, 0], purpose="pairs")

    def step(self, loop: Loop, batch: Batch) -> Terms:
        o = self.options
        if self.share > MOST_COUNT:
            return self.warmup_step(loop, batch)
        w = self.weight[batch.index].to(loop.device, non_blocking=True)
        view, terms = training_view(loop, batch, o.drop), {}
        if o.stable:
            images, captions = loop.encode(view)
            S = loop.compare(images, captions)
            v, t = global_vectors(images, captions)
            terms = {"stable": o.stable * (asymmetry(S) + disagreement(v.float(), t.float()))}
        else:
            S = loop.similarity(view)
        if o.loss == "gce":
            loss = losses.generalised_cross_entropy(S, o.tau, o.q)
        else:
            loss = losses.infonce_rce(S, o.tau)
        return {o.loss: (w * loss).sum() / w.sum().clamp_min(1), **terms}

    # -- figures and record ----------------------------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        loop.keep(p_clean=self.weight, score=self.score, share=self.share)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        return detector_report(self.weight, truth, 0.5) | {"counted_share": self.share}

    # -- exact resume ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"share": self.share, "trained": getattr(self, "trained", None)}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        self.share = state["share"]
        if state["trained"] is not None:
            self.trained = state["trained"]


@register("crank_plus", summary="CRANK with two networks, whose mean score counts and ranks the pairs")
class CRANKPlus(CRANK):
    """CRANK+, two networks at twice the cost; ``options`` is a :class:`CRANKOptions`.

    The mean of two scores ranks better than either. Both networks train with the same weights, and neither
    learns the held-out pairs in warm-up.
    """

    n_networks = 2
