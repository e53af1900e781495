"""What a training method is, and what the training loop offers it.

A method adds three things to the loop: a warm-up loss, what happens before an epoch (division of the
pairs, soft labels), and a step. It returns named loss terms; the loop does the rest (optimiser, clipping,
precision, progress, checkpoints, evaluation).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from nclib.common.prefetch import X, Y
from nclib.common.tokens import Tokens
from nclib.models import Matcher


@dataclass(frozen=True)
class Batch:
    """Pairs as a network sees them: row ``i`` of ``images`` belongs to caption ``i``.

    Parameters
    ----------
    index : Tensor, int64, (B,)
        Positions of the pairs in the training set, on the host.
    images : Tensor, float32, (B, R, F)
        Region features.
    captions : Tokens
        The B captions.
    """

    index: Tensor
    images: Tensor
    captions: Tokens

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Truth:
    """What is really so; only diagnosis may look at it, never training.

    Parameters
    ----------
    matched : ndarray, bool, (N,)
        Whether the pair's image is the one its caption was written for.
    relevance : callable or None
        ``relevance(i, j)``, (len(i), len(j)): share of the facts of pair j's caption that hold for the image
        shown in pair i, in [0, 1]. None when the data cannot tell.
    """

    matched: np.ndarray
    relevance: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch: an iterable that knows its length, for the progress bar."""

    items: Iterable[Any]
    n: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return self.n


class BatchIterable(Protocol):
    """Batches whose number is known."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


Terms = dict[str, Tensor]
"""Named scalar loss terms; the loop minimises their sum in one optimiser step."""

StepTerms = Terms | Iterator[Terms]
"""What a step gives: its terms, or (written as a generator) several terms that are minimised one after the
other, so that the code after a ``yield`` sees the updated weights."""


class Loop(Protocol):
    """What the training loop offers to a method; ``network=None`` means the network being trained."""

    networks: list[Matcher]
    active: int  # which network is being trained
    n_pairs: int
    n_held_out: int  # pairs known to be matched, for methods with a ``clean_share``
    batch_size: int
    epoch: int  # from 0, warm-up included
    n_epochs: int  # training epochs, without warm-up
    device: torch.device
    lr: float
    lr_scale: float

    @property
    def training_epoch(self) -> int:
        """Number of the epoch after warm-up, from 0; negative during warm-up."""

    def generator(self, purpose: str) -> torch.Generator:
        """Return a generator seeded by (run seed, epoch, purpose), so that a resumed run draws the same."""

    def batch(self, index: Tensor) -> Batch:
        """Load the pairs at ``index``."""

    def batches(
        self, subset: Tensor | None = None, *, purpose: str, drop_last: bool = False
    ) -> BatchIterable:
        """Return shuffled batches of all pairs, or of those at ``subset``."""

    def batches_of(self, index: Tensor, size: int = 0, least: int = 2) -> BatchIterable:
        """Return the pairs at ``index`` in this order, in batches of ``size`` (0: the run's).

        A last batch below ``least`` pairs is left out; batch normalisation needs two.
        """

    def ahead(self, load: Callable[[X], Y], items: Iterable[X]) -> Iterator[Y]:
        """Yield ``load(item)`` in order; where the data lie on disk, a thread loads before it is asked.

        ``load`` must not draw random numbers.
        """

    def held_out(self, index: Tensor) -> Batch:
        """Load known-matched pairs, ``index`` in [0, n_held_out)."""

    def each_pair(self, values: Callable[[Batch], Tensor]) -> Tensor:
        """Return ``values(batch)`` of every pair, (N, ...), on the host.

        One pass over shuffled batches with all networks in eval mode and without gradient.
        """

    def per_pair(self, loss: Callable[[Tensor], Tensor], network: int | None = None) -> Tensor:
        """Return ``loss(S)`` of every pair, (N, ...), by :meth:`each_pair`."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which all networks are in eval mode and no gradient is kept."""

    def similarity(self, batch: Batch, network: int | None = None, *, logits: bool = False) -> Tensor:
        """Return the (B, B) similarities (or logits) of a batch, images in rows, in the run's precision."""

    def vectors(self, batch: Batch, network: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the global image and caption vectors, (B, D) each, without gradient."""

    def cosine(self, batch: Batch, network: int | None = None) -> Tensor:
        """Return the (B, B) cosine of the global image and caption vectors, without gradient."""

    def reset_optimizers(self) -> None:
        """Forget the moments of all optimisers."""

    def keep(self, **arrays: Any) -> None:
        """Store per-pair arrays of this epoch for figures and diagnosis."""


class Method(ABC):
    """Base class of all training methods.

    Subclasses set ``Options`` (a frozen dataclass made with ``option``) and implement
    :meth:`warmup_step`, :meth:`begin_epoch` and :meth:`step`. With ``n_networks`` above one, an epoch does
    begin, steps and end for each network in turn; ``loop.active`` tells which one.

    Attributes
    ----------
    n_networks : int
        Networks that are trained together; their mean similarity is tested.
    clean_share : float
        Pairs known to be matched that the method needs besides the training set, as a share of its size.
        They are taken from the validation split, whose remaining pictures select the epoch.
    settings : dict
        The paper's values per data set (``f30k``, ``coco``, ``cc152k``; ``quick`` for the small preset), over
        those of :mod:`nclib.runs.presets`.
    """

    Options: ClassVar[type]
    n_networks: ClassVar[int] = 1
    clean_share: ClassVar[float] = 0.0
    settings: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, options: Any) -> None:
        self.options = options

    def prepare(self, network: Matcher) -> Matcher:
        """Return the network to train, for methods that add a part of their own to every model."""
        return network

    @abstractmethod
    def warmup_step(self, loop: Loop, batch: Batch) -> StepTerms:
        """Loss terms of a warm-up batch."""

    def begin_training(self, loop: Loop) -> None:  # noqa: B027  most methods need nothing here
        """Create what the method needs after warm-up (once per run)."""

    @abstractmethod
    def begin_epoch(self, loop: Loop) -> Steps:
        """Prepare a training epoch and return what :meth:`step` will receive, one item per step."""

    @abstractmethod
    def step(self, loop: Loop, item: Any) -> StepTerms:
        """Loss terms of one training step."""

    def end_epoch(self, loop: Loop) -> None:  # noqa: B027
        """Store arrays of the epoch (:meth:`Loop.keep`)."""

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        """Numbers of a training epoch that need the ground truth; for records only."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return everything :meth:`load_state` needs to continue exactly (tensors and plain data)."""
        return {}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what :meth:`state` returned."""
