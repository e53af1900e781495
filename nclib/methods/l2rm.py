r"""L2RM: learning to rematch mismatched pairs (Han, Zheng, Dai, Luo, Wang; CVPR 2024).

A beta mixture on the losses splits the pairs. Matched pairs train with the hardest-negative triplet.
Mismatched pairs are not dropped: a partial optimal transport over the mini-batch, with the given (wrong)
pairs forbidden, finds which captions fit which images, and its plan is a soft target for the similarities.

Symbols: :math:`S` similarities (images in rows), :math:`\ell` per-pair loss, :math:`w` P(clean),
:math:`C` transport cost, :math:`\tilde\pi` refined alignment, :math:`\rho` transported mass,
:math:`\lambda` Sinkhorn regularisation, :math:`\tau` temperature, :math:`\alpha` margin.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib import losses
from nclib.methods.base import Batch, Loop, Method, Options, Steps, Terms, Truth, beside, option, register
from nclib.methods.parts.apart import apart
from nclib.methods.parts.detector import detector_report
from nclib.methods.parts.rematching import RematchLog
from nclib.models.compiled import call
from nclib.noise import BetaMixture, auc, unit_interval
from nclib.ot import partial_sinkhorn
from nclib.ot.published import SAFE_RANGE

COST_FLOOR = 1e-10
LARGEST_COST = 4.0  # of 1 - cosine, and room for the learned cost
TRIPLETS = {"triplet": "mean", "hardest_triplet": "hardest"}  # of the warm-up -> negatives that count
WARMUPS = ("infonce_rce", "infonce", *TRIPLETS)
RECONSTRUCTED = 0.1  # largest share of a batch that supervises the cost


@dataclass(frozen=True)
class L2RMOptions(Options):
    """Options of L2RM; the defaults are those of the paper's Flickr30K runs."""

    rho: float = option(0.1, above=0, high=1, help="transported mass; 1 is the paper's 'w/o partial OT'")
    lam: float = option(0.01, above=0, help="Sinkhorn regularisation lambda, in units of the cost")
    mask: bool = option(True, help="forbid the given pairs (the diagonal) in the transport")
    cost: str = option("learned", choices=("learned", "cosine"), help="transport cost")
    rematch: str = option("sym_kl", choices=tuple(losses.REMATCH), help="loss between S and the plan")
    rematch_weight: float = option(1.0, low=0, help="weight of the rematching loss")
    warmup: str = option(
        "infonce_rce", choices=WARMUPS, help="warm-up loss; triplet: the mean over negatives"
    )
    threshold: float = option(0.5, above=0, high=0.999, help="a pair is matched when P(clean) exceeds it")
    tau: float = option(0.05, above=0, help="temperature of both softmaxes")
    margin: float = option(0.2, above=0, help="margin alpha of the triplet loss")
    cost_lr: float = option(2e-6, above=0, help="learning rate of the cost network")
    stop: str = option("published", choices=("published", "accurate"), help="when Sinkhorn stops")


# Compiled on a GPU: 80 small launches of a step become ten.
def _triplet_loss(S: Tensor, margin: float) -> Tensor:
    return losses.triplet(S, margin, "hardest").sum()  # Eq. 2


def _rematch_loss(S: Tensor, plan: Tensor, loss: Callable[..., Tensor], tau: float, weight: float) -> Tensor:
    return weight * loss(S, plan, tau).mean()  # Eq. 10


class CostNetwork(nn.Module):
    """Learned transport cost, Sec. 4.2: one linear layer on the similarity matrix, then ReLU.

    It starts at :math:`C = \\mathrm{ReLU}(1 - S)`. For a batch of
    b < ``width`` pairs only the first b rows and columns of the weight are used.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(-torch.eye(width))
        self.bias = nn.Parameter(torch.ones(width))

    def forward(self, S: Tensor) -> Tensor:
        b = S.shape[1]
        whole = b == len(self.bias)  # a part costs a copy of the gradients
        weight, bias = (self.weight, self.bias) if whole else (self.weight[:b, :b], self.bias[:b])
        return F.relu(F.linear(S, weight, bias))  # (images, captions)


@register(
    "l2rm",
    summary="beta-mixture split, learned cost, partial masked transport, symmetric-KL rematching",
    paper="Han et al., CVPR 2024",
)
class L2RM(Method):
    """Algorithm 1 of the paper; ``options`` is an :class:`L2RMOptions`.

    As in the official code the loss that splits the pairs is the mean over negatives; the paper prints the
    hardest one.
    """

    Options = L2RMOptions
    settings: ClassVar = {
        "standard": {"cost_lr": 2e-5},  # ten times the published one, as the model's rate
        "coco": {"lam": 0.07},
        "cc152k": {"lam": 0.07, "mask": False},  # found on the web: which pairs are wrong is unknown
    }
    buffered: Batch | None = None  # the pairs of the buffer, as they were read

    # -- warm-up: InfoNCE + reverse cross entropy on all pairs (Eqs. 3-5) -------------------------------

    def warmup_step(self, loop: Loop, batch: Batch) -> Terms:
        S = loop.similarity(batch)
        if reduction := TRIPLETS.get(self.options.warmup):
            return {"warmup": losses.triplet(S, self.options.margin, reduction).sum()}
        return {"warmup": losses.WARMUP[self.options.warmup](S, tau=self.options.tau).mean()}

    # -- once, after warm-up ----------------------------------------------------------------------------

    def begin_training(self, loop: Loop) -> None:
        self._make_cost(loop)
        draw = torch.randperm(loop.n_pairs, generator=loop.generator("buffer"))
        self.buffer = draw[: loop.batch_size]  # the images that reconstructed pairs are filled up with

    def _make_cost(self, loop: Loop) -> None:
        self.cost_network = CostNetwork(loop.batch_size).to(loop.device)
        self.cost_optimizer = torch.optim.Adam(
            self.cost_network.parameters(), lr=self.options.cost_lr, fused=loop.device.type == "cuda" or None
        )

    # -- identifying mismatched pairs (Sec. 4.1): beta mixture on the per-pair loss ----------------------

    def begin_epoch(self, loop: Loop) -> Steps:
        o = self.options

        def measured(S: Tensor) -> Tensor:
            ell, contrast = losses.triplet(S, o.margin, "mean"), losses.info_nce(S, o.tau)
            return torch.stack([ell, contrast, self.cost_network(S).diagonal()], dim=1)  # (B, 3)

        self.measured = loop.per_pair(measured).unbind(1)
        ell, _, cost = self.measured
        x = unit_interval(ell)
        self.mixture = BetaMixture().fit(x)
        self.p_clean = torch.as_tensor(self.mixture.predict_proba(x)[:, 0])  # w, (N,)
        loop.keep(loss=x, p_clean=self.p_clean, **({"cost": cost} if o.cost == "learned" else {}))
        loop.keep(mixture=[self.mixture.weights_, self.mixture.a_, self.mixture.b_])

        is_matched = self.p_clean > o.threshold
        matched, mismatched = is_matched.nonzero()[:, 0], (~is_matched).nonzero()[:, 0]
        B = loop.batch_size
        if len(matched) < B:
            raise RuntimeError(
                f"the mixture calls only {len(matched)} of {loop.n_pairs} pairs matched, fewer than one "
                f"batch ({B}); use a smaller batch (batch_size), a longer warm-up (warmup_epochs) or a lower "
                "threshold"
            )
        for group in self.cost_optimizer.param_groups:
            group["lr"] = o.cost_lr * loop.lr_scale
        self.log = RematchLog(B, loop.device)

        clean = loop.batches(matched, purpose="matched", drop_last=True)
        if len(mismatched) < B:
            warnings.warn(
                f"epoch {loop.epoch}: {len(mismatched)} mismatched pairs do not fill a batch of {B}; "
                "nothing is rematched in this epoch",
                stacklevel=2,
            )
            return beside(clean, loop, None)
        return beside(clean, loop, mismatched, "mismatched", drop_last=True)

    # -- one iteration ----------------------------------------------------------------------------------

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Terms:
        o = self.options
        clean, noisy = batch
        if o.cost == "learned":
            self._learn_cost(loop, clean)

        S = loop.similarity(clean)
        terms: Terms = {"triplet": call(_triplet_loss, S, o.margin, varying=[(S, 0)])}
        if noisy is None:
            return terms
        # With a buffer of one batch it is the previous mismatched batch.
        self.buffer, self.buffered = noisy.index, noisy

        S = loop.similarity(noisy)
        plan = self.refine(self._cost(loop, noisy, S.detach()))
        loss = losses.REMATCH[o.rematch]
        rematch = call(_rematch_loss, S, plan, loss, o.tau, o.rematch_weight, varying=[(S, 0)])
        terms["rematch"] = apart(rematch, loop.networks[0].parameters())
        self.log.add(noisy, plan)
        return terms

    def _learn_cost(self, loop: Loop, clean: Batch) -> None:
        """Learn the cost from known pairs (Sec. 4.2): k of them among unrelated ones must be cheap."""
        B, g = len(clean), loop.generator(f"cost {clean.index.tolist()[0]}")
        (k,) = torch.randint(1, max(2, int(RECONSTRUCTED * B) + 1), (1,), generator=g).tolist()
        rows, columns = (torch.randperm(B, generator=g)[:k] for _ in range(2))
        drawn = torch.stack([rows, columns, rows * B + columns])
        slots, known, places = drawn.to(loop.device, non_blocking=True)
        if self.buffered is None or self.buffered.index is not self.buffer:  # at first, and after a resume
            self.buffered = loop.batch(self.buffer)
        images = self.buffered.images.index_copy(0, slots, clean.images[known])
        loop.networks[0].eval()
        with torch.no_grad():
            S = loop.similarity(Batch(clean.index, images, clean.captions))
        loop.networks[0].train()
        # one launch forward and one back, where the two indices take a sort
        loss = self.cost_network(S).flatten().gather(0, places).sum()
        self.cost_optimizer.zero_grad()
        loss.backward()
        self.cost_optimizer.step()

    @torch.no_grad()
    def _cost(self, loop: Loop, batch: Batch, S: Tensor) -> Tensor:
        if self.options.cost == "learned":
            return self.cost_network(S)
        with loop.evaluating():  # a second encoding, which must not move the statistics of batch norm
            net = loop.networks[0]
            v, t = net.encode_images(batch.images).vectors, net.encode_captions(batch.captions).vectors
            return 1 - F.normalize(v, dim=1) @ F.normalize(t, dim=1).T  # Table 3, 'w/o cost function'

    def refine(self, cost: Tensor) -> Tensor:
        """Refined alignment: partial, masked, entropic transport of the batch (Sec. 4.3, Alg. 2).

        Parameters
        ----------
        cost : Tensor, (B, B)
            Transport cost, images in rows.

        Returns
        -------
        Tensor, (B, B)
            Plan of mass about ``rho`` (exactly, with ``stop="accurate"``), without gradient.
        """
        o = self.options
        allowed = ~torch.eye(len(cost), dtype=torch.bool, device=cost.device) if o.mask else None
        # The kernel of a GPU forms exp(-C / lambda); a small lambda leaves that to logarithms on the host.
        far = cost.is_cuda and o.stop == "published" and o.lam * SAFE_RANGE < LARGEST_COST
        return partial_sinkhorn(
            cost.detach().clamp_min(COST_FLOOR),
            o.rho,
            reg=o.lam,
            mask=allowed,
            stop=o.stop,
            method="log" if far else "auto",
        ).plan

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        loop.keep(**self.log.arrays())

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        report: dict[str, Any] = detector_report(self.p_clean, truth, self.options.threshold)
        report |= self.log.report(truth) | self.log.alignment()
        ell, contrast, cost = self.measured  # at the start of the epoch; low for a matched pair
        parts = {"split": ell, "infonce": contrast}
        if self.options.cost == "learned":
            parts["cost"] = cost
            report["cost_matched"] = float(cost[torch.as_tensor(truth.matched)].mean())
        return report | {f"auc_{name}": auc(-values, truth.matched) for name, values in parts.items()}

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        if not hasattr(self, "cost_network"):
            return {}
        return {
            "cost_network": self.cost_network.state_dict(),
            "cost_optimizer": self.cost_optimizer.state_dict(),
            "buffer": self.buffer,
        }

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        if state:
            self._make_cost(loop)
            self.cost_network.load_state_dict(state["cost_network"])
            self.cost_optimizer.load_state_dict(state["cost_optimizer"])
            self.buffer = state["buffer"]
