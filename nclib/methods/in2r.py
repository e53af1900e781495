r"""IN2R: neighbours of one modality rectify noisy pairs of two (Liu, Feng, Huang, Ye, Lv; ICML 2026).

Two networks exchange divisions, as in NCR. Each keeps a queue of its most trusted pairs. A pair called noisy
is not trained against its own caption: its image looks up its nearest trusted images in the *other* network's
queue, a small self-attention block reasons over their captions, and their mean is a soft text prototype that
stands in for the caption. The same from the caption side. At test, queue and block are not used.

Symbols: :math:`v_i, t_i` unit vectors of image and caption, :math:`S=VT^\top` similarities (images in rows),
:math:`w` posterior of the clean component, :math:`\mathcal Q` queue of :math:`M` pairs, :math:`K`
neighbours, :math:`\hat t_i, \hat v_i` soft prototypes, :math:`\bar w` elite threshold, :math:`\lambda`
weight of the intra-modal loss, :math:`\gamma` weight of the rectification, :math:`\tau` temperature, SCE
cross entropy plus reverse cross entropy (:func:`nclib.losses.infonce_rce`).

For models that compare words with regions, S is their fine-grained similarity; the vectors are their global
embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, option, register
from nclib.methods.coteaching import CoTeaching
from nclib.methods.parts.neighbours import Queue
from nclib.methods.parts.vectors import blank_encoding, draws
from nclib.models import Matcher


@dataclass(frozen=True)
class IN2ROptions(Options):
    """Options of IN2R; the defaults are those of the paper's Flickr30K runs."""

    K: int = option(5, low=1, help="nearest trusted pairs that make a prototype")
    heads: int = option(4, low=1, help="heads of the self-attention over them")
    queue: int = option(65536, low=1, help="pairs M that each network's queue holds")
    intra: float = option(0.5, low=0, help="weight lambda of the intra-modal loss")
    gamma: float = option(1.0, low=0, help="weight of the rectification; 0: noisy pairs are dropped")
    margin: float = option(0.2, above=0, help="margin of the triplet loss and of the loss that divides")
    intra_margin: float = option(0.3, above=0, help="margin of the intra-modal triplet loss")
    tau: float = option(0.05, above=0, help="temperature of all cross entropies")
    threshold: float = option(0.5, above=0, high=0.999, help="a pair is clean when its posterior exceeds it")
    dropout: float = option(
        0.3, low=0, high=0.9, help="dropout that makes a second view of models that have none of their own"
    )


# ------------------------------------------------------------------------------------------------- networks


class Refiner(nn.Module):
    """Graph refiner: self-attention over the neighbours, residual, layer norm, mean, unit length.

    Dropout is on the attention weights; in the official code on the projected output.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, H: Tensor) -> Tensor:
        """Turn neighbours (B, K, D) into prototypes (B, D)."""
        mixed, _ = self.attention(H, H, H, need_weights=False)
        return F.normalize(self.norm(H + mixed).mean(1), dim=1)


# --------------------------------------------------------------------------------------------- the formulas


def sce(S: Tensor, tau: float = 0.05) -> Tensor:
    """Symmetric cross entropy of a similarity matrix (B, B): mean over pairs of both entropies, halved."""
    return losses.infonce_rce(S, tau).mean()


def elite_threshold(w: Tensor, threshold: float = 0.5) -> float:
    r"""Return :math:`\bar w`, the mean of the posteriors (N,) above the threshold; 1 where there are none."""
    above = w[w > threshold]
    return float(above.mean()) if len(above) else 1.0


def unit(encoding: Any) -> Tensor:
    """Return the global vectors of encoded images or captions at unit length, float32 (B, D)."""
    return F.normalize(encoding.vectors.float(), dim=1)


def nearest(query: Tensor, keys: Tensor, K: int) -> Tensor:
    """Return the K entries of ``keys`` (n, D) most similar to each ``query`` (B, D), int64 (B, min(K, n))."""
    return (query.detach() @ keys.T).topk(min(K, len(keys)), dim=1).indices


# ----------------------------------------------------------------------------------------------- the method


@register(
    "in2r",
    summary="co-teaching; noisy pairs get prototypes of neighbours in a queue of trusted pairs",
    paper="Liu et al., ICML 2026",
)
class IN2R(CoTeaching):
    """The algorithm of the paper; ``options`` is an :class:`IN2ROptions`.

    Where paper and official code differ, the defaults are: from the paper K, the mean clean probability as
    elite threshold, plain input for the division, no centring, and the best weight of its ablation; from the
    code two refiners per network, the prototype of a pair as its one positive, the intra-modal terms of the
    warm-up, and the decay of the rate in steps. The official code subtracts the mean vector of every batch,
    at test as well; the text takes the similarities of the prototypes as soft targets. Clipping counts the
    whole gradient, refiners included.
    """

    Options = IN2ROptions
    settings: ClassVar = {
        # As large a share of 12,500 and 30,000 pairs as 65,536 are of Flickr30K's 145,000.
        "quick": {"queue": 5600},
        "standard": {"queue": 13500},
        **{
            name: {
                **{"warmup_epochs": 5, "epochs": 40, "decay_every": 15, "lr": 5e-4, "weight_decay": 1e-4},
                "queue": queue,
            }
            for name, queue in (("f30k", 65_536), ("coco", 448_000), ("cc152k", 65_536))
        },
    }

    def prepare(self, network: Matcher) -> Matcher:
        width, heads = blank_encoding(network).vectors.shape[1], self.options.heads
        if width % heads:
            raise ValueError(f"heads={heads} must divide the {width} numbers of the model's global vectors")
        network.refiners = nn.ModuleDict({name: Refiner(width, heads) for name in ("text", "image")})
        # Both networks start alike: a search in the other one's queue needs a common space.
        self.first = getattr(self, "first", network)
        network.load_state_dict(self.first.state_dict())
        return network

    # -- warm-up: SCE between the modalities and, on two views, within each ------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        tau, (images, captions) = self.options.tau, loop.encode(batch)
        S, v, t = loop.compare(images, captions), unit(images), unit(captions)
        v2, t2 = self._view(loop, batch, v, t)
        return {"warmup": sce(S, tau), "intra": sce(v @ v2.T, tau) + sce(t @ t2.T, tau)}

    def _view(self, loop: Loop, batch: Batch, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors of the same pairs with other dropout, (B, D) each."""
        if draws(loop.networks[loop.active]):
            images, captions = loop.encode(batch)
            return unit(images), unit(captions)
        p = self.options.dropout
        return F.normalize(F.dropout(v, p), dim=1), F.normalize(F.dropout(t, p), dim=1)

    # -- before an epoch: co-division; the peer's posteriors decide who is trusted and who is elite ------

    def begin_epoch(self, loop: Loop) -> Steps:
        division = self.divide_pairs(loop)
        if not hasattr(self, "queues"):
            self.queues = [Queue(self.options.queue) for _ in loop.networks]
        bar = elite_threshold(division.p_clean, self.options.threshold)
        self.is_elite = division.is_clean & (division.p_clean > bar)
        # In the first epoch the queue of network B is still empty, and network A gets no rectification.
        noisy = self.options.gamma > 0 and len(self.queues[1 - loop.active]) > 0
        return self.exchanged_steps(loop, division, noisy=noisy)

    # -- one iteration: trusted pairs, which may enter the queue, and rectified noisy ones ---------------

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Terms:
        o = self.options
        clean, noisy = batch
        images, captions = loop.encode(clean)
        S, v, t = loop.compare(images, captions), unit(images), unit(captions)
        v2, t2 = self._view(loop, clean, v, t)
        within = [losses.triplet(x @ x2.T, o.intra_margin, "hardest").sum() for x, x2 in ((v, v2), (t, t2))]
        terms = {
            "triplet": losses.triplet(S, o.margin, "hardest").sum(),
            "intra": o.intra * (within[0] + within[1]),
        }
        self.queues[loop.active].push(v, t, self.is_elite[clean.index])
        if noisy is not None:
            terms["rectify"] = o.gamma * self._rectify(loop, noisy)
        return terms

    def _rectify(self, loop: Loop, noisy: Batch) -> Tensor:
        """Train noisy pairs against the prototypes of their neighbours in the peer's queue."""
        tau, (v_q, t_q) = self.options.tau, self.queues[1 - loop.active].rows()
        v, t = (unit(encoding) for encoding in loop.encode(noisy))
        near, from_captions = (nearest(x, keys, self.options.K) for x, keys in ((v, v_q), (t, t_q)))
        refiners: Any = loop.networks[loop.active].refiners
        t_hat, v_hat = refiners["text"](t_q[near]), refiners["image"](v_q[from_captions])
        return (sce(v @ t_hat.T, tau) + sce(t @ v_hat.T, tau)) / 2

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"queues": [queue.state() for queue in getattr(self, "queues", [])]}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        if state.get("queues"):
            self.queues = [Queue(self.options.queue) for _ in state["queues"]]
            for queue, saved in zip(self.queues, state["queues"], strict=True):
                queue.load_state(saved, loop.device)
