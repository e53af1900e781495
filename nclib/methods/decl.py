r"""DECL: deep evidential learning with noisy correspondence (Qin, Peng, Peng, Wang, Hu; ACM Multimedia 2022).

Retrieval inside a batch is a K-way classification, and similarities are evidence for it: they parametrise a
Dirichlet distribution per query, so that a query can be uncertain about all its candidates at once. Before
every epoch, pairs with more evidence for themselves than for any other candidate are predicted to match. The
others get a target of all zeros, and the hinge loss, whose number of negatives shrinks from nearly all to a
few, leaves them out.

Symbols: :math:`R` logits of the similarity (images in rows), :math:`H=\tanh R`, :math:`E=\exp(H/\tau)`
evidence, :math:`\alpha=E+1` Dirichlet parameters, :math:`L_i=\sum_j\alpha_{ij}` strength,
:math:`l\in\{0,1\}^N` predicted correspondence, :math:`Y=\mathrm{diag}(l)` targets, :math:`n` hardness, the
number of hardest negatives that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Options, Terms, Truth, option, register
from nclib.methods.parts.detector import detector_report
from nclib.noise import auc

TIE = 1e-6  # keeps P(clean) on the side of one half on which the prediction lies


@dataclass(frozen=True)
class DECLOptions(Options):
    """Options of DECL; the defaults are those of the paper's parameter table, equal for all its data."""

    lam1: float = option(0.8, low=0, help="weight lambda_1 of the hinge loss")
    lam2: float = option(0.1, low=0, help="weight lambda_2 of the KL divergence to the uniform Dirichlet")
    eta: float = option(0.025, low=0, help="negatives that the hinge loss drops per step")
    mu: int = option(5, low=1, help="negatives that the hinge loss keeps at last")
    tau: float = option(0.1, low=0.03, help="temperature of the evidence")
    margin: float = option(0.2, above=0, help="margin of the hinge loss, in units of tanh of the logits")


# ------------------------------------------------------------------------------------- evidence and its loss


def evidence(R: Tensor, tau: float = 0.1) -> Tensor:
    """Return the evidence ``E = exp(tanh(R) / tau)`` of every image and caption for each other.

    Rows are the queries of the image-to-text direction, columns those of the text-to-image direction.

    Parameters
    ----------
    R : Tensor, (K, K)
        Logits of the similarity, any real number, images in rows.
    tau : float, > 0

    Returns
    -------
    Tensor, (K, K), in [exp(-1 / tau), exp(1 / tau)]
    """
    return (R.tanh() / tau).exp()


def evidential_loss(alpha: Tensor, y: Tensor, lam2: float = 0.1) -> Tensor:
    """Return the evidential loss ``L_e = L_m + lam2 * L_kl`` of every query, (Q,) in the type of ``alpha``.

    ``L_m`` is the expected squared error under the Dirichlet distribution of the query,
    ``L_kl`` its Kullback-Leibler divergence to the uniform one after the evidence for the target is removed.

    Parameters
    ----------
    alpha, y : Tensor, (Q, K)
        Dirichlet parameters, at least 1, one query per row, and targets: one-hot rows, or rows of zeros for
        queries without a true partner.
    lam2 : float, >= 0

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if alpha.ndim != 2 or y.shape != alpha.shape:
        raise ValueError(
            f"alpha and y must both be (queries, K), got {tuple(alpha.shape)} and {tuple(y.shape)}"
        )
    dtype = alpha.dtype
    if alpha.device.type != "mps":  # which has no float64
        alpha = alpha.double()  # lgamma of 20,000 is 2e5: in float32 the differences below lose two digits
    y = y.to(alpha.dtype)
    K = alpha.shape[1]
    L = alpha.sum(1, keepdim=True)  # (Q, 1)
    p = alpha / L  # (Q, K)
    L_m = ((y - p).square() + p * (1 - p) / (L + 1)).sum(1)  # (Q,)
    rest = y + (1 - y) * alpha  # alpha without the evidence for the target, (Q, K)
    strength = rest.sum(1, keepdim=True)  # (Q, 1)
    L_kl = (
        strength[:, 0].lgamma()
        - math.lgamma(K)
        - rest.lgamma().sum(1)
        + ((rest - 1) * (rest.digamma() - strength.digamma())).sum(1)
    )  # (Q,)
    return (L_m + lam2 * L_kl).to(dtype)


# ------------------------------------------------------------------------------------- robust dynamic hinge


def hardness(step: int, start: int, eta: float = 0.025, mu: int = 5) -> int:
    """Return the number of hardest negatives that count at a step: ``max(floor(start - eta * step), mu)``.

    Parameters
    ----------
    step, start : int
        Optimiser steps so far, this one and warm-up included; the configured batch size.
    eta, mu : float, int
        Negatives dropped per step; smallest number.
    """
    return max(math.floor(start - eta * step), mu)


def dynamic_hinge(H: Tensor, n: int, margin: float = 0.2) -> Tensor:
    """Return the hinge loss of every pair, (K,), against its ``n`` hardest negatives in both directions.

    ``h_i = (sum of the n largest [margin + H_ij - H_ii]_+ plus the same of [margin + H_ji - H_ii]_+) / n``;
    zero when K is 1.

    Parameters
    ----------
    H : Tensor, (K, K)
        Scores, images in rows, the given pairs on the diagonal.
    n : int, >= 1
        Hardness; a batch with fewer pairs uses all its ``K - 1`` negatives.
    margin : float, >= 0
    """
    K = len(H)
    if n > K:
        n = max(K - 1, 1)
    captions, images = losses.hinges(H, margin)  # (K, K): of image i in row i, of caption j in column j
    return (captions.topk(n, dim=1).values.sum(1) + images.topk(n, dim=0).values.sum(0)) / n


# ------------------------------------------------------------------------------- predicting correspondence


def correspondence(R: Tensor, tau: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    r"""Judge every given pair of a batch by the evidence of both directions, :math:`G=E+E^\top`.

    A pair is predicted to match when its entry is the largest of its row of ``G`` (the first one in a tie).
    ``p_clean = G_ii / (G_ii + max_j G_ij)`` compares the pair with its strongest rival alone. It lies above
    one half exactly when the pair is predicted to match, so one half is the method's own threshold.

    Parameters
    ----------
    R, tau
        As in :func:`evidence`, the given pairs on the diagonal.

    Returns
    -------
    p_clean, share : Tensor, (K,), in [0, 1]
        ``share`` is ``G_ii`` over the sum of row i: the pair against all rivals together.
    uncertainty : Tensor, (K,), in (0, 2]
        ``K / L_i`` of both directions, added; 2 without any evidence.
    """
    K = len(R)
    E = evidence(R, tau)
    G = E + E.T  # (K, K)
    own = G.diagonal()
    is_matched = G.argmax(1) == torch.arange(K, device=R.device)
    rival = G.masked_fill(torch.eye(K, dtype=torch.bool, device=R.device), 0.0).amax(1)
    p = own / (own + rival)
    p_clean = torch.where(is_matched, p.clamp_min(0.5 + TIE), p.clamp_max(0.5))
    uncertainty = K / (E.sum(1) + K) + K / (E.sum(0) + K)
    return p_clean, own / G.sum(1), uncertainty


# ---------------------------------------------------------------------------------------------- the method


@register(
    "decl",
    summary="evidential loss; predicted mismatches get an empty target; hinge with shrinking hardness",
    paper="Qin et al., ACM MM 2022",
)
class DECL(Method):
    """Algorithm 1 of the paper's supplement; ``options`` is a :class:`DECLOptions`.

    As in the official code the hinge is summed over the batch, and the evidential loss is its mean.
    """

    Options = DECLOptions
    tested_epochs = "training"  # the official code starts its record at 0 after warm-up
    # Settings depend on the data alone; above a rate of 0.4 the paper's warmup_epochs are 2 on Flickr30K and
    # 1 on MS-COCO.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": {"warmup_epochs": 5, "epochs": 40, "decay_every": 20, "lr": 2e-4},
        "coco": {"warmup_epochs": 2, "epochs": 20, "decay_every": 10, "lr": 5e-4},
        "cc152k": {"warmup_epochs": 5, "epochs": 40, "decay_every": 20, "lr": 2e-4},
    }

    def __init__(self, options: DECLOptions) -> None:
        super().__init__(options)
        self.steps = 0  # optimiser steps so far, warm-up included

    # -- warm-up: every pair is taken as matched --------------------------------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        return self._terms(loop, batch, torch.ones(len(batch), device=loop.device))

    # -- which pairs correspond: one pass over all pairs before the epoch --------------------------------

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        def judge(batch: Batch) -> Tensor:
            return torch.stack(correspondence(loop.similarity(batch, logits=True), self.options.tau), dim=1)

        self.p_clean, self.share, self.uncertainty = loop.each_pair(judge).unbind(1)  # (N,) each
        self.predicted = (self.p_clean > 0.5).float()  # l
        # A last batch without mu negatives per pair is left out, as in the official code.
        rest, B = loop.n_pairs % loop.batch_size, loop.batch_size
        return loop.batches(purpose="pairs", drop_last=0 < rest < min(self.options.mu + 1, B))

    # -- one iteration: evidential loss on all pairs, hinge on the pairs predicted to match --------------

    def step(self, loop: Loop, batch: Batch) -> Terms:
        return self._terms(loop, batch, self.predicted[batch.index].to(loop.device, non_blocking=True))

    def _terms(self, loop: Loop, batch: Batch, predicted: Tensor) -> Terms:
        o = self.options
        self.steps += 1
        R = loop.similarity(batch, logits=True)
        E, Y = evidence(R, o.tau), torch.diag(predicted)  # (K, K)
        L_e = evidential_loss(E + 1, Y, o.lam2) + evidential_loss(E.T + 1, Y, o.lam2)  # (K,)
        n = hardness(self.steps, loop.batch_size, o.eta, o.mu)
        h = predicted * dynamic_hinge(R.tanh(), n, o.margin)  # (K,), zero where a mismatch is predicted
        return {"evidential": L_e.mean(), "hinge": o.lam1 * h.sum()}

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        loop.keep(p_clean=self.p_clean, share=self.share, uncertainty=self.uncertainty, steps=self.steps)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        scores = {"share": self.share, "uncertainty": -self.uncertainty}
        ranked: dict[str, Any] = {f"auc_{name}": auc(score, truth.matched) for name, score in scores.items()}
        return detector_report(self.p_clean, truth, 0.5) | ranked

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
