r"""UOT-RCL: a unified optimal transport framework (Han, Luo, Liu, Nan; arXiv 2403.13480).

Two uses of transport. *Semantic alignment*: before every epoch the neighbours in both modalities vote on the
class of each pair; partial transport turns the votes into soft labels, at first for the cheapest fifth of the
pairs, later for most. *Relation alignment*: within a batch, images and texts are matched by their
similarities to a few confident pairs; the plan is the soft target of a contrastive loss.

Symbols: :math:`z^v, z^t` unit embeddings, :math:`\mu` prototypes, :math:`p^v, p^t` class probabilities,
:math:`\tilde y` given labels, :math:`Y^v, Y^t` moving targets, :math:`\mathcal G` confident pairs,
:math:`\mathcal C` consistency, :math:`s` transported mass, :math:`r` class shares, :math:`\bar Y = N\hat Y`
corrected labels, :math:`R` relation scores, :math:`M` relation plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.common.options import Options, option
from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, LabelTruth, Terms, register
from nclib.label_noise.mrl import multimodal_contrast
from nclib.label_noise.parts import correction as correct
from nclib.label_noise.parts.label_report import LOGGED, accuracy, label_report, relation_report
from nclib.ot import label_transport, sinkhorn

KEPT_ENTRIES = 2**20  # corrected labels are stored for figures up to this size


@dataclass(frozen=True)
class UOTRCLOptions(Options):
    """Options of UOT-RCL; the defaults are those of the paper's Wikipedia runs."""

    warmup_epochs: int = option(2, low=0, help="first epochs, with cross entropy on the given labels")
    neighbours: int = option(10, low=1, help="voting neighbours per pair and modality")
    pool: int = option(8192, low=0, help="pairs among which neighbours are searched; 0: all")
    per_class: int = option(5, low=1, help="confident pairs per class")
    confident: str = option("jsd", choices=("jsd", "random"), help="how confident pairs are chosen")
    consistency: str = option("folded", choices=("folded", "off"), help="Eq. 7; off: every pair counts fully")
    gamma: float = option(0.99, low=0, high=1, help="momentum of the targets (Eq. 9)")
    s_start: float = option(0.2, low=0, high=1, help="transported mass at first")
    s_end: float = option(0.8, low=0, high=1, help="transported mass in the last epoch")
    reg_semantic: float = option(0.05, above=0, help="entropy weight of the label transport")
    plc: str = option("transport", choices=("transport", "ce", "off"), help="label loss after warm-up")
    label_loss: str = option("ce", choices=("ce", "bounded"), help="loss of a label after warm-up")
    lam: float = option(0.4, low=0, help="weight lambda of the relation loss; 0: without it")
    relation: str = option("transport", choices=("transport", "instance", "mrl"), help="kind of contrast")
    reg_relation: float = option(0.01, above=0, help="entropy weight, in units of the largest relation cost")
    tau1: float = option(1.0, above=0, help="temperature of the class probabilities")
    tau2: float = option(1.0, above=0, help="temperature of the relation scores")
    tau3: float = option(1.0, above=0, help="temperature of the contrastive loss")


@register(
    "uot_rcl",
    summary="labels corrected by partial transport of neighbours' votes, relations aligned by transport",
    paper="Han et al., 2024",
)
class UOTRCL(DeepMethod):
    """UOT-RCL in the paper's order; ``options`` is a :class:`UOTRCLOptions`.

    The similarity in Eq. 16 has a positive sign, so that a similar confident pair scores high; printed is
    the sign of a distance.
    """

    Options = UOTRCLOptions
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        # quick has a quarter of the paper's epochs. gamma: 0.95 moves the targets about as far as 0.99 does
        # there. warmup_epochs: two short epochs are too few for useful relations. lam: the smallest of the
        # paper's sweep, because early relation plans are impure.
        "quick": {"warmup_epochs": 6, "gamma": 0.95, "lam": 0.1},
        "wikipedia": {"neighbours": 10, "batch_size": 100},
        "nuswide": {"neighbours": 200, "batch_size": 500},
        "xmedianet": {"neighbours": 150, "batch_size": 100},
    }

    def __init__(self, options: UOTRCLOptions) -> None:
        super().__init__(options)
        self.targets: list[Tensor] = []  # Y^v, Y^t
        self.correcting = False  # whether this epoch has corrected labels

    # -- once per epoch, over all pairs -----------------------------------------------------------------

    def begin_epoch(self, loop: LabelLoop) -> None:
        """Correct the labels and choose the confident pairs; nothing in warm-up."""
        if loop.epoch == 0:
            given = (loop.train.image_labels, loop.train.text_labels)
            self.targets = [F.one_hot(y, loop.n_classes).float() for y in given]
        self.correcting = False
        self.plans: list[tuple[Tensor, Tensor]] = []  # rows and relation plan of each batch
        if loop.epoch >= self.options.warmup_epochs:
            loop.network.prototypes.normalise()
            self._correct(loop, *loop.embed())

    @torch.no_grad()
    def _correct(self, loop: LabelLoop, zv: Tensor, zt: Tensor) -> None:
        o, mu = self.options, loop.network.prototypes.weight
        logits = [z @ mu / o.tau1 for z in (zv, zt)]  # (N, K)
        # Eqs. 4, 5. At temperature 1 all divergences are tiny and only their order counts: float64.
        p = [x.double().softmax(1) for x in logits]
        self.predicted = (p[0] + p[1]).argmax(1)
        self.predicted_apart = [x.argmax(1) for x in logits]  # by the image, by the text
        if o.confident == "random":
            drawn = torch.randperm(loop.n_pairs, generator=loop.generator("confident"))
            self.confident = drawn[: o.per_class * loop.n_classes].sort().values.to(loop.device)
        else:
            self.confident = correct.confident_pairs(p[0], p[1], o.per_class)
        if len(self.confident) < 2:
            return
        uv, ut = F.normalize(zv, dim=1), F.normalize(zt, dim=1)
        self.anchors = [uv[self.confident], ut[self.confident]]  # of the relations
        self.cost = self.semantic_cost(loop, uv, ut)
        mass = self.mass_at(loop.epoch, loop.n_epochs)
        given = torch.cat([loop.train.image_labels, loop.train.text_labels])
        r = torch.bincount(given, minlength=loop.n_classes).double() / len(given)
        plan = label_transport(self.cost, mass, r, reg=o.reg_semantic, tol=1e-6)  # Eqs. 10 to 14
        self.corrected = (len(zv) * plan.plan).float()  # (N, K), rows sum to 0..1
        self.correcting = True
        # Eq. 9, after the cost was computed
        named = F.one_hot((logits[0] + logits[1]).argmax(1), loop.n_classes).float()
        self.targets = [o.gamma * y + (1 - o.gamma) * named for y in self.targets]
        self.report = {
            "s": mass,
            "transported_mass": float(plan.mass),
            "transport_passes": float(plan.iterations),
            "transport_converged": float(plan.converged),
            "confident_size": float(len(self.confident)),
        }

    def semantic_cost(self, loop: LabelLoop, uv: Tensor, ut: Tensor) -> Tensor:
        """Return the sample by class cost from the neighbours' votes (Eqs. 7, 8), float64 (N, K)."""
        o = self.options
        k, pool = o.neighbours, None
        if 0 < o.pool < loop.n_pairs:
            # Of a random pool of M of the N pairs take k M/N neighbours: on average they are as close as
            # the k nearest of all N.
            pool = torch.randperm(loop.n_pairs, generator=loop.generator("pool"))[: o.pool].to(uv.device)
            k = max(1, round(k * o.pool / loop.n_pairs))
        vote = torch.zeros_like(self.targets[0])
        for z, other, y in ((uv, ut, self.targets[0]), (ut, uv, self.targets[1])):
            votes = correct.neighbour_vote(z, y, k, pool=pool)
            if o.consistency == "folded":
                votes = correct.consistency(z, other, self.confident)[:, None] * votes
            vote += votes
        return correct.semantic_cost(vote)

    def mass_at(self, epoch: int, n_epochs: int) -> float:
        """Return s of an epoch: ``s_start`` after warm-up, ``s_end`` in the last, on a line between."""
        o = self.options
        steps = max(n_epochs - 1 - o.warmup_epochs, 1)
        return float(o.s_start + (o.s_end - o.s_start) * min(1.0, (epoch - o.warmup_epochs) / steps))

    # -- once per batch ---------------------------------------------------------------------------------

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        """Return label loss and relation loss (Eq. 19), or cross entropy in warm-up (Eq. 2)."""
        o, net = self.options, loop.network
        net.prototypes.normalise()
        zv, zt = net.images(batch.images), net.texts(batch.texts)
        log_p = [(net.prototypes(z) / o.tau1).log_softmax(1) for z in (zv, zt)]
        if not self.correcting:
            return {"ce": self.target_loss(batch, log_p)}
        terms = {}
        if o.plc != "off":
            label_loss = self.given_loss if o.plc == "ce" else self.corrected_loss
            terms["plc"] = label_loss(batch, log_p)
        if o.lam > 0 or not terms:
            if o.relation == "mrl":  # MRL's contrast instead of the relations
                terms["bhg"] = o.lam * multimodal_contrast(zv, zt, o.tau3).mean()
            else:
                terms["bhg"] = o.lam * self.relation_loss(batch, zv, zt)
        return terms

    def target_loss(self, batch: LabelBatch, log_p: list[Tensor]) -> Tensor:
        """Return the cross entropy against the targets Y, in warm-up the given labels (Eq. 2)."""
        each = zip(self.targets, log_p, strict=True)
        return -torch.stack([(y[batch.index] * lp).sum(1) for y, lp in each]).sum(0).mean()

    def given_loss(self, batch: LabelBatch, log_p: list[Tensor]) -> Tensor:
        """Return the loss of the given labels, for comparison."""
        images, texts = self.label_losses(log_p)
        return F.nll_loss(-images, batch.image_labels) + F.nll_loss(-texts, batch.text_labels)

    def corrected_loss(self, batch: LabelBatch, log_p: list[Tensor]) -> Tensor:
        """Return the loss of the corrected labels (Eq. 15): little mass counts little."""
        images, texts = self.label_losses(log_p)
        return (self.corrected[batch.index] * (images + texts)).sum(1).mean()

    def label_losses(self, log_p: list[Tensor]) -> list[Tensor]:
        r"""Return the loss of every class, (n, K) each: :math:`-\log p`, or MRL's :math:`\log(1-p)`."""
        if self.options.label_loss == "bounded":
            return [torch.log(-torch.expm1(x.clamp_max(-torch.finfo(x.dtype).eps))) for x in log_p]
        return [-x for x in log_p]

    def relation_loss(self, batch: LabelBatch, zv: Tensor, zt: Tensor) -> Tensor:
        """Return the contrastive loss against the relation plan of the batch, both directions (Eq. 18)."""
        u = [F.normalize(z.detach(), dim=1) for z in (zv, zt)]
        plan = self.relation_plan(u[0], u[1], self.anchors)
        if plan.numel() + sum(kept.numel() for _, kept in self.plans) <= LOGGED:
            self.plans.append((batch.index, plan))
        logits = zv @ zt.T / self.options.tau3
        each = ((plan, logits), (plan.T, logits.T))
        soft = [(row_shares(m) * x.log_softmax(1)).sum(1) for m, x in each]
        return -torch.stack(soft).sum(0).mean()

    @torch.no_grad()
    def relation_plan(self, uv: Tensor, ut: Tensor, anchors: list[Tensor]) -> Tensor:
        """Return M, the transport between images and texts by their relations (Eqs. 16, 17), (B, B).

        From unit embeddings, (B, L), and those of the confident pairs in both modalities, (|G|, L).
        """
        o = self.options
        if o.relation == "instance":  # every pair is its own only partner (the paper's negative example)
            return torch.eye(len(uv), device=uv.device) / len(uv)
        each = zip((uv, ut), anchors, strict=True)
        r = [correct.relation_scores(u, a, o.tau2) for u, a in each]
        cost = correct.relation_cost(*r)
        # At temperature 1 the divergences are of order 0.01: the entropy weight is in units of the largest.
        cost = cost / cost.max().clamp_min(torch.finfo(cost.dtype).tiny)
        return sinkhorn(cost, reg=o.reg_relation, tol=1e-4, max_iter=200).plan

    # -- for the record ---------------------------------------------------------------------------------

    def end_epoch(self, loop: LabelLoop) -> None:
        """Keep the corrected labels for figures."""
        if self.correcting:
            loop.keep(confident=self.confident)
            if self.corrected.numel() <= KEPT_ENTRIES:
                loop.keep(corrected=self.corrected.half())

    def diagnostics(self, truth: LabelTruth) -> dict[str, float]:
        """Accuracy of the corrected labels, purity of the confident pairs and of the relation plan."""
        if not self.correcting:
            return {}
        labels = torch.as_tensor(truth.labels, device=self.corrected.device)
        return {
            **self.report,
            **label_report(self.corrected, labels),
            **relation_report(self.plans, labels),
            "vote_accuracy": accuracy(self.cost.argmin(1), labels),
            "predicted_accuracy": accuracy(self.predicted, labels),
            "predicted_accuracy_image": accuracy(self.predicted_apart[0], labels),
            "predicted_accuracy_text": accuracy(self.predicted_apart[1], labels),
            "confident_purity": accuracy(self.predicted[self.confident], labels[self.confident]),
        }

    def state(self) -> dict[str, Any]:
        return {"targets": self.targets}

    def load_state(self, loop: LabelLoop, state: dict[str, Any]) -> None:
        self.targets = [y.to(loop.device) for y in state["targets"]]


def row_shares(plan: Tensor) -> Tensor:
    """Divide the rows of a plan (n, m) by their sums; empty rows stay 0."""
    return plan / plan.sum(1, keepdim=True).clamp_min(torch.finfo(plan.dtype).tiny)
