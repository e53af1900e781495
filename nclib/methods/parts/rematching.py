"""Per-epoch diagnostics of rematching (L2RM): partners, transported mass, precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nclib.methods.base import Batch, Truth
from nclib.models.compiled import call

SCORED = ("rematch_precision", "rematch_relevance", "best_relevance", "given_relevance", "chance_relevance")


class RematchLog:
    """Collects plans (B, B) of one epoch on their device; nothing is read back before the epoch ends."""

    def __init__(self, batch_size: int, device: torch.device) -> None:
        self.batch_size = batch_size
        self._rows: list[Tensor] = []
        self._index: list[Tensor] = []
        # Sums over rows of which more than half moved, and over the others: of sorted alignments, of their
        # entropies, and of ones.
        self._sums = torch.zeros(2, batch_size + 2, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, plan: Tensor) -> None:
        """Note the plan (B, B) of one batch of mismatched pairs."""
        rows, sums = call(_describe, plan, varying=[(plan, 0)])
        self._rows.append(rows)
        self._index.append(batch.index)
        self._sums += sums.to(self._sums)

    def arrays(self) -> dict[str, Tensor]:
        """Return per-row results of the epoch.

        ``rematch_image``, ``rematch_caption``: pairs whose image and caption were brought together, int64
        (M,). ``rematch_mass``, ``rematch_share``: mass that left the image's row over its marginal, and the
        share of it on the best caption. ``ranked_moved``, ``ranked_unmoved``: mean sorted alignment of rows
        that received more than half of their marginal, and of the others.
        """
        if not self._rows:
            return {}
        rows = torch.cat(self._rows).cpu()
        index = torch.stack(self._index)  # (batches, B)
        to = rows[:, 2].long().view(index.shape)
        means, _ = self._means()
        return {
            "rematch_image": index.flatten(),
            "rematch_caption": index.gather(1, to).flatten(),
            "rematch_mass": rows[:, 0],
            "rematch_share": rows[:, 1],
            "ranked_moved": means[0, :-1],
            "ranked_unmoved": means[1, :-1],
        }

    def _means(self) -> tuple[Tensor, Tensor]:
        """Return means of the sorted alignments and of the entropy, (2, B + 1), and numbers of rows, (2,)."""
        sums = self._sums.cpu()
        return sums[:, :-1] / sums[:, -1:].clamp_min(1), sums[:, -1]

    def alignment(self) -> dict[str, float]:
        """Describe the rows of the plans, each divided by its mass: how much they say.

        ``top_moved``, ``top_unmoved``: mean largest entry of rows of which more than half of the marginal
        moved, and of the others, in (0, 1]. ``entropy_moved``, ``entropy_unmoved``: mean entropy over that of
        a uniform row, in [0, 1]. Only for kinds of rows that there were.
        """
        means, n = self._means()
        report: dict[str, float] = {}
        even = math.log(self.batch_size)
        for kind, row, count in zip(("moved", "unmoved"), means, n, strict=True):
            if count:
                report |= {f"top_{kind}": float(row[0]), f"entropy_{kind}": float(row[-1]) / even}
        return report

    def report(self, truth: Truth) -> dict[str, float]:
        """Score the rematched pairs against the known content of image and caption; empty when unknown.

        A row is *rematched* when more than half of its marginal moved; ``rematch_rows`` is the share of such
        rows. Relevance is the share of a caption's facts that hold for the image. ``rematch_precision``:
        share of rematched rows whose chosen caption is at least as relevant as every other caption of the
        batch, and not irrelevant. ``rematch_relevance``, ``best_relevance``, ``given_relevance``,
        ``chance_relevance``: mean relevance of the chosen captions, of the most relevant captions of the
        batch, of the captions that the rows came with, and of any other caption of the batch.
        """
        if not self._rows or truth.relevance is None:
            return {}
        blocks = []
        for rows, index in zip(torch.cat(self._rows).cpu().split(self.batch_size), self._index, strict=True):
            mass, _, to = rows.unbind(1)
            relevance = truth.relevance(index, index)  # (B, B)
            others = relevance.clone().fill_diagonal_(-1.0)
            chosen = relevance.gather(1, to.long()[:, None])[:, 0]
            best = others.max(1)[0]
            chance = others.clamp_min(0).sum(1) / (len(index) - 1)
            right = ((chosen >= best) & (chosen > 0)).float()
            each = [(mass > 0.5).float(), right, chosen, best, relevance.diagonal(), chance]
            blocks.append(torch.stack(each, dim=1))
        table = torch.cat(blocks)
        moved = table[table[:, 0] > 0]
        means = moved[:, 1:].mean(0).tolist() if len(moved) else []
        return {"rematch_rows": float(table[:, 0].mean()), **dict(zip(SCORED, means, strict=False))}


def _describe(plan: Tensor) -> tuple[Tensor, Tensor]:
    """Return mass, largest share and its column of every row (B, 3), and what is added to the sums."""
    plan = plan.clamp_min(1e-10)
    mass, B = plan.sum(1), len(plan)
    share = plan / mass[:, None]  # (B, B), rows sum to one
    best, to = share.max(1)
    rows = torch.stack([mass * B, best, to.to(mass)], dim=1).float()  # (B, 3)
    moved = (mass * B > 0.5).to(share)
    ranked = share.sort(1, descending=True)[0]
    entropy = torch.special.entr(share).sum(1, keepdim=True)
    noted = torch.cat([ranked, entropy, torch.ones_like(entropy)], dim=1)  # (B, B + 2)
    return rows, torch.stack([moved, 1 - moved]) @ noted
