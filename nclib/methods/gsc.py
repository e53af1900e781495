r"""GSC: geometrical structure consistency (Zhao, Chen, Dai, Yao, Han, Zhang, Wang; CVPR 2024).

The relations of an image to the other images of a batch should agree with those of its caption to the other
captions. A wrong pair breaks this agreement. Each epoch measures it, and the probability of every given pair.
Both, smoothed over the epochs, give the pair's weight in the next epoch. There is no division; the first
epoch, in which every weight is 1, takes the place of a warm-up.

.. math::

    \mathcal L=\frac1B\sum_i\tfrac12\omega_i\big(-\ln p^v_{ii}-\ln p^t_{ii}\big)
    +\frac\gamma B\sum_i\omega_i\big(-\ln\mathrm{softmax}_j(T_{ij})_{ii}\big),\qquad
    T=\big(G^v\mathrm{diag}(\omega)\big)\big(G^t\mathrm{diag}(\omega)\big)^\top

Symbols: :math:`S` similarities (images in rows), :math:`p^v, p^t` softmax of :math:`S/\tau` over the captions
of an image and over the images of a caption, :math:`G^v, G^t` similarities of images with images and of
captions with captions, :math:`c_i` cosine of row i of :math:`G^v\mathrm{diag}(\omega)` with row i of
:math:`G^t\mathrm{diag}(\omega)`, :math:`p_i` mean of :math:`p^v_{ii}, p^t_{ii}`, :math:`g_i` posterior of the
component with the larger :math:`c`, :math:`a, b` smoothed :math:`g, p`, :math:`\omega=\min(a,b)` weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.methods.base import Batch, Loop, Method, Options, Terms, Truth, option, register
from nclib.methods.coteaching import divide, loss_inside, loss_option, mean_report
from nclib.methods.parts.detector import detector_report, predictions
from nclib.methods.parts.vectors import global_vectors
from nclib.methods.parts.views import DROP, training_view
from nclib.models import ImageEncoding, Matcher
from nclib.models.encoders import l2
from nclib.models.sgraf import SGR
from nclib.noise import GaussianMixture1d, auc

PUBLISHED = {"warmup_epochs": 0, "decay_factor": 0.2}  # the scripts set no warm-up epochs
APART = 1e-6  # added to squared differences: a sample compared with itself still has a direction


@dataclass(frozen=True)
class GSCOptions(Options):
    """Options of GSC and GSC+; the defaults are those of the published Flickr30K runs."""

    gamma: float = option(0.01, low=0, help="weight gamma of the structure loss")
    tau: float = option(0.07, above=0, help="temperature of InfoNCE and of the predictions")
    beta: float = option(0.7, above=0, high=1, help="share of the last epoch in the weights; 1: no memory")
    drop: float = option(0.0, low=0, high=0.9, help=DROP)
    loss: str = loss_option("infonce")


# ------------------------------------------------------------------------------- similarities in one modality


def own_similarities(network: Matcher, images: Any, captions: Any) -> tuple[Tensor, Tensor]:
    r"""Compare the images of a batch with each other, and the captions with each other.

    SGR: both pass its similarity encoder, as published. Between two images, region r meets region r; between
    two captions, the words of one attend over the words of the other. A sample does not differ from itself,
    so that squared differences of images are raised by 1e-6, and the global vectors of one side of the
    captions by 1e-3.

    Other models: the cosine of global vectors, without a sigmoid. In dual encoders this is the similarity of
    the model itself. Models with fragments take the means of their regions and words, one product in place of
    two passes of an encoder whose batch norm (SAF) would also count pairs of one modality.

    Parameters
    ----------
    network : Matcher
    images, captions
        Encodings of a batch by ``network``.

    Returns
    -------
    two Tensors, (B, B)
        :math:`G^v, G^t`, in (0, 1) for SGR and [-1, 1] otherwise, with gradient.
    """
    if not isinstance(network, SGR):
        v, t = (F.normalize(x.float(), dim=-1) for x in global_vectors(images, captions))
        return v @ v.T, t @ t.T
    # Words beyond a caption's length are zero: they change the length of a context, which is made 1.
    sources = ImageEncoding(captions.vectors + APART**0.5, captions.words)
    return _by_position(network, images.vectors, images.regions), network.similarity(
        sources, captions
    ).float()


def _by_position(network: SGR, v: Tensor, regions: Tensor) -> Tensor:
    """Compare images by their global vectors (B, D), and region r with region r, (B, R, D), as (B, B)."""
    with torch.autocast(v.device.type, enabled=False):
        v, regions = v.to(network.dtype), regions.to(network.dtype)
        whole = network.global_similarity((v[:, None] - v).square() + APART)  # (B, B, S)
        local = network.local_similarity((regions[:, None] - regions).square() + APART)  # (B, B, R, S)
        nodes = l2(torch.cat([whole[:, :, None], local], dim=2))
        scores = network.score(network.graph(nodes.flatten(0, 1), None)).view(len(v), len(v)).sigmoid()
        return scores.float()


# ----------------------------------------------------------------------------------------- losses and weights


def structure(G_v: Tensor, G_t: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted structure loss of every pair and the consistency c of its halves.

    Parameters
    ----------
    G_v, G_t : Tensor, (B, B)
        Similarities within each modality, the comparison of a sample with itself included.
    omega : Tensor, (B,), in [0, 1]
        Weights of the pairs: as columns of both matrices, and of the loss.

    Returns
    -------
    loss, c : Tensor, (B,)
        The loss is at least 0, c is in [-1, 1], and 0 where all weights are 0.
    """
    v, t = G_v * omega, G_t * omega  # (B, B)
    loss = -omega * F.log_softmax(v @ t.T, dim=1).diagonal()
    return loss, F.cosine_similarity(v, t, dim=1)


# ---------------------------------------------------------------------------------------------- the methods


@register(
    "gsc",
    summary="pairs weighted by the agreement of their relations to the batch, and by their probability",
    paper="Zhao et al., CVPR 2024",
)
class GSC(Method):
    """GSC, one network; ``options`` is a :class:`GSCOptions`."""

    Options = GSCOptions
    tested_epochs = "training"
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        # No warm-up: as many epochs in all as the other methods, with the rate lowered before the last one.
        "quick": {"warmup_epochs": 0, "epochs": 5, "decay_every": 4},
        "standard": {"warmup_epochs": 0, "epochs": 12, "decay_every": 9},
        # COCO: the script of GSC leaves gamma at 1.0; this is the value of GSC+.
        "f30k": {**PUBLISHED, "epochs": 60, "decay_every": 15},
        "coco": {**PUBLISHED, "epochs": 60, "decay_every": 20, "gamma": 0.05},
        "cc152k": {**PUBLISHED, "epochs": 60, "decay_every": 15},
    }

    def __init__(self, options: GSCOptions) -> None:
        super().__init__(options)
        self.a: list[Tensor] = []  # smoothed posteriors of each network, float64 (N,)
        self.b: list[Tensor] = []  # smoothed predictions

    # -- warm-up, where a user asks for it: the same losses, all weights 1 -------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        terms, _, _ = self._terms(loop, batch, torch.ones(len(batch), device=loop.device))
        return terms

    def begin_training(self, loop: Loop) -> None:
        self.a, self.b = (
            [torch.ones(loop.n_pairs, dtype=torch.float64) for _ in loop.networks] for _ in range(2)
        )

    # -- every epoch: one pass over all pairs, with the weights from the end of the last one --------------

    def begin_epoch(self, loop: Loop) -> Iterable[Batch]:
        if loop.active == 0:
            self.omega = [omega.float() for omega in self.weights()]
            self.c, self.p = [torch.ones_like(omega) for omega in self.omega], list(self.b)
        self.log: list[tuple[Tensor, Tensor]] = []
        return loop.batches(purpose="pairs")

    def step(self, loop: Loop, batch: Batch) -> Terms:
        peer = self.omega[(loop.active + 1) % self.n_networks]  # of GSC: its own
        omega = peer[batch.index].to(loop.device, non_blocking=True)
        terms, c, p = self._terms(loop, batch, omega)
        self.log.append((batch.index, torch.stack([c, p], dim=1).detach()))
        return terms

    def _terms(self, loop: Loop, batch: Batch, omega: Tensor) -> tuple[Terms, Tensor, Tensor]:
        o, k = self.options, loop.active
        images, captions = loop.encode(training_view(loop, batch, o.drop), k)
        S = loop.compare(images, captions, k)
        loss, c = structure(*own_similarities(loop.networks[k], images, captions), omega)
        first = "mean" if loop.epoch == 0 else "hardest"  # from scratch the hardest alone do not start
        contrast = omega * loss_inside(S, o.loss, o.tau, negatives=first) / 2  # (B,)
        terms = {"contrast": contrast.mean(), "structure": o.gamma * loss.mean()}
        return terms, c, predictions(S, o.tau)

    # -- after the epoch: the weights of the next one ------------------------------------------------------

    def weights(self) -> list[Tensor]:
        """Return the weights of all pairs by each network, float64 (N,) in [0, 1]."""
        return [torch.minimum(a, b) for a, b in zip(self.a, self.b, strict=True)]

    def end_epoch(self, loop: Loop) -> None:
        k, beta = loop.active, self.options.beta
        index, values = (torch.cat(part) for part in zip(*self.log, strict=True))
        values = values.cpu().double()
        every = values.mean(0).repeat(loop.n_pairs, 1)  # a pair left out by a last batch of one: the mean
        every[index] = values
        self.c[k], self.p[k] = every.unbind(1)
        # divide puts the lower mean first; the consistent pairs are those with the larger c.
        g = divide(-self.c[k], GaussianMixture1d.published()).p_clean
        self.a[k] = beta * g + (1 - beta) * self.a[k]
        self.b[k] = beta * self.p[k] + (1 - beta) * self.b[k]
        end = "_b" if k else ""
        arrays = {"p_clean": self.weights()[k], "consistency": self.c[k], "prediction": self.p[k]}
        loop.keep(**{name + end: value for name, value in arrays.items()})

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        reports = [detector_report(omega, truth, 0.5) for omega in self.weights()]
        consistent = [{"auc_consistency": auc(c, truth.matched)} for c in self.c]
        return mean_report(reports) | mean_report(consistent)

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        self.a, self.b = list(state["a"]), list(state["b"])


@register(
    "gsc_plus",
    summary="GSC with two networks, each trained with the weights of the other",
    paper="Zhao et al., CVPR 2024",
)
class GSCPlus(GSC):
    """GSC+, two networks; ``options`` is a :class:`GSCOptions`.

    Both use weights from the end of the last epoch. The official code of GSC+ compares word k of one caption
    with word k of the other, as it does regions; here, as in that of GSC, words attend over words.
    """

    n_networks = 2
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        **GSC.settings,
        "coco": {**PUBLISHED, "epochs": 30, "decay_every": 15, "gamma": 0.05},
        "cc152k": {**PUBLISHED, "epochs": 60, "decay_every": 20, "gamma": 0.02},
    }
