r"""REPAIR: rank correlation and noisy pair half-replacing with memory (Zheng, Hong, Gao, Sang; 2024).

Two networks exchange divisions and train with soft margins, as in NCR. Two parts are new, and both use a
memory bank of pairs predicted clean. A pair's soft label is the rank correlation of its image's and its
caption's distances to the bank, so the similarity network does not label its own pairs. A pair that both
networks call mismatched is not dropped: one half of it is replaced by a fitting feature of the bank.

Symbols: :math:`f, g` encoded image and caption, :math:`D` distances to the bank, :math:`corre` rank
correlation, :math:`\mu, \gamma` anchors, :math:`y^*` soft label, :math:`w` posterior of the clean component,
:math:`\eta` threshold of replacing, :math:`K` candidates, :math:`M` entries of the bank, :math:`\tau` weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib import losses
from nclib.methods.base import Batch, Loop, Options, Steps, Terms, Truth, option, register
from nclib.methods.coteaching import CoTeaching, mean_report
from nclib.methods.parts.bank import PRECISION, FeatureBank, part_of, pooled
from nclib.methods.parts.replacing import ReplaceLog
from nclib.noise import auc, bank_distances, nearest_entries, rank_anchors, rank_correspondence, rank_labels

VARIANTS = ("rc+npr", "rc+drop", "hard+drop", "hard")
"""Table III. ``rc``: soft labels; ``hard``: labels 1 and 0, margins alpha and 0; ``npr``: one half of a noisy
pair is replaced; ``drop``: noisy pairs are not trained on."""

REPLACE_IMAGE = {"random": 0.5, "image": 1.0, "text": 0.0}
"""Probability that the image of a pair is replaced, rather than the caption."""


@dataclass(frozen=True)
class REPAIROptions(Options):
    """Options of REPAIR; the defaults are those of the paper."""

    bank_size: int = option(4096, low=2, help="pairs M that each network's bank holds")
    bank_precision: str = option("fp32", choices=tuple(PRECISION), help="number type of the bank")
    eta: float = option(0.25, low=0, high=1, help="both posteriors below it: one half is replaced")
    K: int = option(32, low=1, help="nearest entries that are candidates for the replaced half")
    tau: float = option(0.15, low=0, help="weight of the loss on noisy pairs")
    replace: str = option("random", choices=tuple(REPLACE_IMAGE), help="which half is replaced")
    variant: str = option("rc+npr", choices=VARIANTS, help="row of the ablation")
    margin: float = option(0.2, above=0, help="margin alpha of the triplet loss")
    m: float = option(10.0, above=1, help="base of the exponential soft margin")
    threshold: float = option(0.5, above=0, high=0.999, help="a pair is clean when its posterior exceeds it")


def half_replacement(query: Tensor, bank: Tensor, score: Callable[[Tensor], Tensor], K: int) -> Tensor:
    """Choose the entries, int64 (n,), whose other half replaces the wrong half of each pair (Eqs. 10 and 11).

    To replace an image: among the K entries whose captions are nearest to the pair's own caption, the one
    whose image the network finds most similar to that caption. To replace a caption: the same with the roles
    exchanged.

    Parameters
    ----------
    query, bank : Tensor, (n, D) and (M, D)
        Pooled features of the halves that stay, and of the bank, same modality.
    score : callable
        ``score(candidates)``, from entries (n, K') to the similarity of their other halves with the halves
        that stay, (n, K').
    K : int >= 1
        Number of candidates; all entries when the bank holds fewer.
    """
    candidates = nearest_entries(bank_distances(query, bank), K)  # (n, K')
    best = score(candidates).argmax(1, keepdim=True)
    return candidates.gather(1, best)[:, 0]


@register(
    "repair",
    summary="co-teaching with a memory bank: rank-correlation labels, half-replaced noisy pairs",
    paper="Zheng et al., 2024, arXiv 2403.08224",
)
class REPAIR(CoTeaching):
    """Algorithm 1 of the paper; ``options`` is a :class:`REPAIROptions`.

    Soft labels are made for all pairs at the start of an epoch, for the other network, as the text says;
    Algorithm 1 makes them per batch with the network's own bank.
    """

    Options = REPAIROptions
    settings: ClassVar = {
        "quick": {"bank_size": 1024},
        "standard": {"bank_size": 1024},  # as large a share of 30,000 pairs as 4,096 are of the paper's
        "f30k": {"warmup_epochs": 5, "epochs": 40, "decay_every": 30},
        "coco": {"warmup_epochs": 10, "epochs": 40, "decay_every": 30},
        "cc152k": {"warmup_epochs": 10, "epochs": 20, "decay_every": 10},
    }
    banks: list[FeatureBank]

    def __init__(self, options: REPAIROptions) -> None:
        super().__init__(options)
        self.soft, self.drop = options.variant.startswith("rc"), options.variant.endswith("drop")

    # -- before an epoch: divide, and label all pairs with both banks (Sec. III-B) -----------------------

    def begin_epoch(self, loop: Loop) -> Steps:
        division = self.divide_pairs(loop)
        if loop.active == 0:
            self.log = ReplaceLog()
            if self.soft:
                self._fill_banks(loop)
                self._label_all(loop)
        self.turn = 0
        return self.exchanged_steps(loop, division, noisy=self.noisy_now(loop) and not self.drop)

    def _fill_banks(self, loop: Loop) -> None:
        """Start each bank that is still empty with random pairs that its network trains on."""
        o = self.options
        if not hasattr(self, "banks"):
            self.banks = [FeatureBank(o.bank_size, o.bank_precision) for _ in loop.networks]
        for k, bank in enumerate(self.banks):
            clean = self.divisions[1 - k].clean
            if len(bank) or not len(clean):
                continue
            order = torch.randperm(len(clean), generator=loop.generator(f"bank {k}"))[: o.bank_size]
            with loop.evaluating():
                for batch in loop.batches_of(clean[order], least=1):
                    bank.push(*loop.encode(batch, k), batch.index)

    def _label_all(self, loop: Loop) -> None:
        """Rank correlation of every pair with each network's bank, (N, 2), and the anchors of Eq. 9."""

        def correlation(batch: Batch) -> Tensor:
            per_bank = [self._correspondence(k, *loop.encode(batch, k)) for k in range(len(self.banks))]
            return torch.stack([each.correlation for each in per_bank], dim=1)  # (B, 2)

        self.correlation = loop.each_pair(correlation)
        self.anchors = [rank_anchors(corre) for corre in self.correlation.unbind(1)]
        labels = [rank_labels(c, *a) for c, a in zip(self.correlation.unbind(1), self.anchors, strict=True)]
        self.labels = torch.stack(labels, dim=1)  # y*, (N, 2)

    def _correspondence(self, network: int, images: Any, captions: Any, anchors: Any = (None, None)) -> Any:
        """Eqs. 6-9 for encoded pairs with the bank of ``network``."""
        mu, gamma = anchors
        bank, u, t = self.banks[network], pooled(images), pooled(captions)
        entries = bank.features() if len(bank) else (u[[]], t[[]])  # none while no pair was called clean
        return rank_correspondence(u, t, *entries, mu=mu, gamma=gamma)

    # -- one iteration (Algorithm 1) --------------------------------------------------------------------

    def step(self, loop: Loop, batch: tuple[Batch, Batch | None]) -> Terms:
        clean, noisy = batch
        self.turn += 1
        if not self.soft:
            return self._hard_step(loop, clean, noisy)
        k = loop.active
        images, captions = loop.encode(clean, k)
        S = loop.compare(images, captions, k)
        y = self.labels[clean.index, 1 - k].to(loop.device, non_blocking=True)
        terms = {"clean": losses.soft_margin_triplet(S, self._margins(y)).sum()}
        self.banks[k].push(images.detach(), captions.detach(), clean.index)
        if noisy is not None:
            terms |= self._replaced(loop, noisy)
        return terms

    def _margins(self, y: Tensor) -> Tensor:
        return losses.soft_margins(y, self.options.margin, self.options.m)

    def _hard_step(self, loop: Loop, clean: Batch, noisy: Batch | None) -> Terms:
        """Ablation: every clean pair has label 1, every noisy one label 0."""
        terms = {"clean": losses.triplet(loop.similarity(clean), self.options.margin).sum()}
        if noisy is not None:
            terms["noisy"] = self.options.tau * losses.triplet(loop.similarity(noisy), 0.0).sum()
        return terms

    # -- noisy pair half-replacing (Sec. III-C) -----------------------------------------------------------

    def _replaced(self, loop: Loop, noisy: Batch) -> Terms:
        """Train on the pairs that both networks call mismatched, one half of each from the bank."""
        o, k = self.options, loop.active
        w = torch.stack([division.p_clean[noisy.index] for division in self.divisions])  # (2, B)
        selected = (w < o.eta).all(0).nonzero()[:, 0]
        if len(selected) < 2:
            return {}
        pairs = part_of(noisy, selected)
        images, captions = loop.encode(pairs, k)
        draw = torch.rand(len(pairs), generator=loop.generator(f"replace {self.turn}"))
        is_image = draw < REPLACE_IMAGE[o.replace]
        wrong_image, wrong_caption = is_image.nonzero()[:, 0], (~is_image).nonzero()[:, 0]
        bank, parts = self.banks[k], []
        if len(wrong_image):
            right = captions.select(wrong_image)
            entry = self._choose(loop, right, is_image=True)
            parts.append((bank.images.select(entry), right, entry))
        if len(wrong_caption):
            right = images.select(wrong_caption)
            entry = self._choose(loop, right, is_image=False)
            parts.append((right, bank.captions.select(entry), entry))
        of_images, of_captions, entries = zip(*parts, strict=True)
        new_images, new_captions = type(images).concat(of_images), type(captions).concat(of_captions)
        entry = torch.cat(entries)

        y = self._correspondence(k, new_images, new_captions, self.anchors[k]).label
        S = loop.compare(new_images, new_captions, k)
        same = entry[:, None] == entry[None]  # halves of one entry belong together: no negatives
        order = torch.cat([wrong_image, wrong_caption])
        self.log.add(pairs.index[order], is_image[order], bank.pairs(loop.device)[entry], y)
        return {"noisy": o.tau * losses.soft_margin_triplet(S, self._margins(y), ignore=same).sum()}

    def _choose(self, loop: Loop, half: Any, *, is_image: bool) -> Tensor:
        """Return the entries that replace the image (or else the caption) beside each ``half`` that stays."""
        bank, net, kept = self.banks[loop.active], loop.networks[loop.active], half.detach()

        def score(candidates: Tensor) -> Tensor:
            n, K = candidates.shape
            own = kept.select(torch.arange(n).repeat_interleave(K))
            entries = candidates.flatten()
            pairs = (bank.images.select(entries), own) if is_image else (own, bank.captions.select(entries))
            return net.paired_similarity(*pairs, logits=True).view(n, K)  # the order, without saturation

        with loop.evaluating():
            u, t = bank.features()
            return half_replacement(pooled(kept), t if is_image else u, score, self.options.K)

    # -- figures and record --------------------------------------------------------

    def end_epoch(self, loop: Loop) -> None:
        super().end_epoch(loop)
        if loop.active == 1 and self.soft:
            for k, end in enumerate(("", "_b")):
                loop.keep(**{f"correlation{end}": self.correlation[:, k], f"label{end}": self.labels[:, k]})
            loop.keep(**self.log.arrays())

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        report = super().diagnostics(truth)
        if not self.soft:
            return report
        areas = [{"rc_auc": auc(corre, truth.matched)} for corre in self.correlation.unbind(1)]
        report |= mean_report(areas)
        report["bank_mb"] = sum(bank.nbytes for bank in self.banks) / 1e6
        return report | self.log.report(truth)

    # -- exact resume -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"banks": [bank.state() for bank in getattr(self, "banks", [])]}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:
        if state.get("banks"):
            o = self.options
            self.banks = [FeatureBank(o.bank_size, o.bank_precision) for _ in state["banks"]]
            for bank, saved in zip(self.banks, state["banks"], strict=True):
                bank.load_state(saved, loop.device)
