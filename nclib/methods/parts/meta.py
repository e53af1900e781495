r"""A score learned by a meta-network, and the gradient of a loss after the next step of training.

MSCN replaces the last layer of a similarity model by a small network :math:`V(z; \Theta)` on the similarity
vector :math:`z`, and trains :math:`\Theta` so that *one step further* the model :math:`\phi` tells known
matches from known mismatches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.methods.base import Batch, Loop
from nclib.models import Matcher, compiling

NARROWING = 4  # a similarity vector of 256 numbers has a hidden layer of 64
LEAST_HIDDEN = 8  # some models describe a pair by a single number
EVALUATION_BYTES = 1 << 28  # largest chunk of similarity vectors without gradient

Loss = Callable[[Tensor], Tensor]


class MetaNet(nn.Module):
    """Score of a similarity vector: Linear (to a quarter), ReLU, Linear; its sigmoid is the similarity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(LEAST_HIDDEN, width // NARROWING)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, z: Tensor) -> Tensor:
        """Map vectors (..., width) to logits (...)."""
        logits: Tensor = self.layers(z).squeeze(-1)
        return logits


class MetaMatcher(Matcher):
    """A model that gives pair vectors, with its final score replaced by a meta-network."""

    def __init__(self, model: Matcher) -> None:
        super().__init__(
            feature_dim=model.feature_dim, vocab_size=model.vocab_size, n_regions=model.n_regions
        )
        self.model = model
        self.meta = MetaNet(model.pair_dim)
        self.needs_regions = model.needs_regions

    @property
    def pair_dim(self) -> int:
        return self.model.pair_dim

    def encode_images(self, images: Tensor) -> Any:
        return self.model.encode_images(images)

    def encode_captions(self, tokens: Tokens) -> Any:
        return self.model.encode_captions(tokens)

    def pair_vectors(self, images: Any, captions: Any, *, paired: bool = False) -> Tensor:
        """Return the model's similarity vectors in the weights' number type."""
        return self.model.pair_vectors(images, captions, paired=paired).to(self.dtype)

    def similarity(self, images: Any, captions: Any, *, logits: bool = False) -> Tensor:
        """Compare every image with every caption: (B, C) in (0, 1), or the logits of these."""
        size = self._chunk(len(images))
        columns = []
        for first in range(0, len(captions), size):
            part = captions if size >= len(captions) else captions.select(slice(first, first + size))
            columns.append(self._score(self.pair_vectors(images, part), logits))
        return torch.cat(columns, 1)

    def paired_similarity(self, images: Any, captions: Any, *, logits: bool = False) -> Tensor:
        """Compare image i with caption i only, (n,) in (0, 1), or the logits of these."""
        return self._score(self.pair_vectors(images, captions, paired=True), logits)

    def _score(self, z: Tensor, logits: bool) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            score: Tensor = self.meta(z)
        return score if logits else torch.sigmoid(score)

    def _chunk(self, n_images: int) -> int:
        """Captions whose similarity vectors with all images fit the budget."""
        budget = self.model.memory_budget
        if not torch.is_grad_enabled():
            budget = min(budget, EVALUATION_BYTES)
        return max(1, budget // (2 * n_images * self.pair_dim * self.dtype.itemsize))

    def forward(
        self, images: Tensor, tokens: Tokens, *, logits: bool = False, paired: bool = False
    ) -> Tensor:
        """Compare all images with all captions, (B, C), if ``paired`` image i with caption i only, (B,)."""
        compare = self.paired_similarity if paired else self.similarity
        return compare(self.encode_images(images), self.encode_captions(tokens), logits=logits)


def look_ahead_gradient(
    network: MetaMatcher,
    batch: Batch,
    train_loss: Loss,
    pairs: Batch,
    meta_loss: Loss,
    *,
    lr: float,
    seed: int,
) -> tuple[list[Tensor], Tensor]:
    r"""Gradient with respect to :math:`\Theta` of the meta loss after one SGD step of :math:`\phi`.

    .. math:: \hat\phi' = \phi - \eta \nabla_\phi L_{tr}(\phi, \Theta), \qquad
              \frac{d}{d\Theta} L_m(\hat\phi'(\Theta), \Theta)

    The gradient of :math:`L_{tr}` is itself differentiated, as in the paper.

    Parameters
    ----------
    network : MetaMatcher
        Its weights and buffers stay as they are.
    batch, train_loss : Batch, callable
        Training batch, all images of which are compared with all captions, and scalar loss of their logits.
    pairs, meta_loss : Batch, callable
        Meta pairs, and scalar loss of the logit of each.
    lr, seed : float, int
        :math:`\eta`, and the seed of the dropout.

    Returns
    -------
    gradients : list of Tensor
        In the order of ``network.meta.parameters()``.
    loss : Tensor
        The meta loss, detached.
    """
    weights: dict[str, Tensor] = dict(network.named_parameters())
    buffers = dict(network.named_buffers())
    # new leaves, so that gradients reach them even while training holds them fixed
    theta = {n: value.detach().requires_grad_() for n, value in weights.items() if n.startswith("meta.")}
    phi = {n: value for n, value in weights.items() if n not in theta}
    devices = [network.device] if network.device.type == "cuda" else []

    def logits(of: Batch, phi: dict[str, Tensor], draws: int, *, paired: bool) -> Tensor:
        tensors = {**phi, **theta, **{name: value.clone() for name, value in buffers.items()}}
        how, inputs = {"logits": True, "paired": paired}, (of.images, of.captions)
        with torch.random.fork_rng(devices=devices):  # leaves the generators as they were
            torch.manual_seed(draws)
            out: Tensor = torch.func.functional_call(network, tensors, inputs, how)
        return out

    # The fused recurrent kernels of CUDA have no second derivative, and neither has what is compiled.
    with torch.backends.cudnn.flags(enabled=False), compiling("off"), torch.enable_grad():
        loss = train_loss(logits(batch, phi, seed, paired=False))
        gradients = torch.autograd.grad(loss, list(phi.values()), create_graph=True, allow_unused=True)
        step = zip(phi.items(), gradients, strict=True)
        ahead = {name: value if g is None else value - lr * g for (name, value), g in step}
        after = meta_loss(logits(pairs, ahead, seed + 1, paired=True))
        return list(torch.autograd.grad(after, list(theta.values()))), after.detach()


class MetaPairs:
    """Known matches and an equal number of random mismatches, drawn again for every pass.

    A mismatch is a training caption with the image of another training pair. Captions are distinct. A draw
    of the caption's own image gets the weight 0; images are compared themselves (the official code compares
    numbers of captions with numbers of images). The loop gives known matches, training pairs and draws.
    """

    def __init__(self, loop: Loop) -> None:
        g = loop.generator("meta set")
        self.loop, self.n = loop, min(loop.n_held_out, loop.n_pairs)
        self.caption_of = torch.randperm(loop.n_pairs, generator=g)[: self.n]
        self.image_of = torch.randint(loop.n_pairs, (self.n,), generator=g)

    def load(self, rows: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """Load pairs: ``rows`` below n are matches, from n to 2 n mismatches; matches come first.

        Return pairs, label and weight, float (len(rows),): label 1 for matches, 0 for mismatches; weight 0
        where a mismatch turned out to be none.
        """
        loop = self.loop
        matches, drawn = rows[rows < self.n], rows[rows >= self.n] - self.n
        label = (torch.arange(len(rows)) < len(matches)).float().to(loop.device, non_blocking=True)
        if not len(drawn):
            return loop.held_out(matches), label, torch.ones_like(label)
        own, other = loop.batch(self.caption_of[drawn]), loop.batch(self.image_of[drawn])
        differs = (own.images != other.images).flatten(1).any(1).float()
        wrong = Batch(own.index, other.images, own.captions)
        if not len(matches):
            return wrong, label, differs
        pairs = join_batches(loop.held_out(matches), wrong)
        return pairs, label, torch.cat([label.new_ones(len(matches)), differs])

    def batches(self, size: int) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Return shuffled meta batches without end; every pass is shuffled again."""
        return self.loop.ahead(self.load, self._rows(size))

    def _rows(self, size: int) -> Iterator[Tensor]:
        for turn in itertools.count():
            order = torch.randperm(2 * self.n, generator=self.loop.generator(f"meta {turn}"))
            yield from (rows for rows in order.split(size) if len(rows) > 1)  # batch normalisation needs two

    def scores(self, network: MetaMatcher, size: int = 256) -> tuple[Tensor, Tensor]:
        """Return the scores that a network gives to the matches and to the mismatches, on the host."""
        parts = []
        for pairs, label, weight in self.loop.ahead(self.load, torch.arange(2 * self.n).split(size)):
            parts.append(torch.stack([network(pairs.images, pairs.captions, paired=True), label, weight]))
        score, label, weight = torch.cat(parts, dim=1).cpu()
        wrong = (label == 0) & (weight == 1)
        return score[label == 1], score[wrong if bool(wrong.any()) else label == 0]


def join_batches(a: Batch, b: Batch) -> Batch:
    """Return the n pairs of one batch and the m of another, n + m in all."""
    width = max(a.captions.ids.shape[1], b.captions.ids.shape[1])
    ids = [F.pad(part.captions.ids, (0, width - part.captions.ids.shape[1])) for part in (a, b)]
    captions = Tokens(torch.cat(ids), (*a.captions.lengths, *b.captions.lengths))
    return Batch(torch.cat([a.index, b.index]), torch.cat([a.images, b.images]), captions)
