"""The base class of training methods for wrong pairs, and the training loop as a method sees it.

A method adds three things to the loop: a warm-up loss, what happens before an epoch (such as a division of
the pairs), and a step. It returns named loss terms; the loop does the rest (optimiser, gradient clipping,
precision, progress, checkpoints, evaluation).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from nclib.common.method import Terms, TrainingMethod, method_registry
from nclib.common.options import Options as Options
from nclib.common.options import option as option
from nclib.common.prefetch import X, Y
from nclib.common.tokens import Tokens
from nclib.data.dataset import Captions
from nclib.models import Matcher

StepTerms = Terms | Iterator[Terms]
"""What a step gives: its terms; or, written with ``yield``, several terms that are minimised one after the
other, so that the code after a ``yield`` sees the updated weights."""


TestedEpochs = Literal["all", "last warm-up", "training"]


@dataclass(frozen=True)
class Batch:
    """Pairs as a network sees them: row ``i`` of ``images`` belongs to caption ``i``.

    Parameters
    ----------
    index : Tensor, int64, (B,), on the host
        Positions of the pairs in the training set.
    images : Tensor, float32, (B, R, F)
        Region features.
    captions : Tokens, length B
    """

    index: Tensor
    images: Tensor
    captions: Tokens

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class AllPairs:
    """All training pairs at once, as closed forms see them: NumPy arrays, one vector an image.

    Parameters
    ----------
    images : ndarray, float64, (n_images, F)
        Mean region of every image.
    captions : Captions
        Of all pairs, packed end to end.
    image_of : ndarray, int64, (N,)
        Image that every caption is given.
    """

    images: np.ndarray
    captions: Captions
    image_of: np.ndarray


@dataclass(frozen=True)
class Truth:
    """The ground truth of the training pairs, for diagnosis only, never for training.

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
    """The items of an epoch, one per :meth:`Method.step`, with their number ``n`` for the progress bar."""

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


class Loop(Protocol):
    """What the training loop offers to a method; ``network=None`` means the network being trained."""

    networks: list[Matcher]
    active: int  # which network is being trained
    n_pairs: int
    image_of: Tensor  # image that every pair is given, int64 (N,), on the host
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

    def all_pairs(self) -> AllPairs:
        """Return all pairs with the mean region of each image; reads every image once."""

    def batches(
        self, subset: Tensor | None = None, *, purpose: str, drop_last: bool = False
    ) -> BatchIterable:
        """Return shuffled batches of all pairs, or of those at ``subset``."""

    def batches_of(self, index: Tensor, size: int = 0, least: int = 2) -> BatchIterable:
        """Return the pairs at ``index`` in this order, in batches of ``size`` (0: the run's).

        A last batch below ``least`` pairs is left out; batch normalisation needs two.
        """

    def ahead(self, load: Callable[[X], Y], items: Iterable[X]) -> Iterator[Y]:
        """Yield ``load(item)`` in order; where images are not on the device, a thread may load ahead.

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

    def encode(self, batch: Batch, network: int | None = None) -> tuple[Any, Any]:
        """Return the images and the captions of a batch as encoded by a network, in the run's precision."""

    def compare(self, images: Any, captions: Any, network: int | None = None) -> Tensor:
        """Return the similarities of encoded images (rows) and captions, as :meth:`similarity` does."""

    def reset_optimizers(self) -> None:
        """Forget the moments of all optimisers."""

    def keep(self, **arrays: Any) -> None:
        """Store per-pair arrays of this epoch for figures and diagnosis."""


def beside(
    clean: BatchIterable, loop: Loop, subset: Tensor | None, purpose: str = "", *, drop_last: bool = False
) -> Steps:
    """Return the steps (clean batch, noisy batch or None), one per clean batch.

    Parameters
    ----------
    clean : batches that know their number
    loop : Loop
    subset : Tensor, int64, (n,), or None
        Noisy pairs, enough for one batch, shuffled again for every pass; None: no noisy batches.
    purpose : str
        Names the draws of the noisy batches, together with the number of the pass.
    drop_last : bool
        Leave out a last noisy batch that is not full.
    """

    def noisy() -> Iterator[Batch]:
        for turn in itertools.count():
            yield from loop.batches(subset, purpose=f"{purpose} {turn}", drop_last=drop_last)

    return Steps(zip(clean, itertools.repeat(None) if subset is None else noisy(), strict=False), len(clean))


class Method(TrainingMethod):
    """Base class of the training methods for wrong pairs.

    A subclass sets ``Options`` and defines :meth:`warmup_step`, :meth:`begin_epoch` and :meth:`step`. With
    ``n_networks`` above one, an epoch begins, steps and ends for each network in turn; ``loop.active`` is the
    number of the network.

    Attributes
    ----------
    n_networks : int
        Networks that are trained together; their mean similarity is tested.
    clean_share : float
        Pairs known to be matched that the method needs besides the training set, as a share of its size.
        They are taken from the validation split, whose remaining images select the epoch.
    tested_epochs : {"all", "last warm-up", "training"}
        Epochs among which validation selects the tested one: all; the last one of warm-up and those after it;
        or only those after warm-up, so that a training that collapses is not hidden behind its warm-up. Runs
        that consist of warm-up alone select among all.
    """

    n_networks: ClassVar[int] = 1
    clean_share: ClassVar[float] = 0.0
    tested_epochs: ClassVar[TestedEpochs] = "all"

    def prepare(self, network: Matcher) -> Matcher:
        """Return the network to train, for methods that add a part of their own to every model."""
        return network

    @abstractmethod
    def warmup_step(self, loop: Loop, batch: Batch) -> StepTerms:
        """Return the loss terms of a warm-up batch (of all pairs, shuffled), as :meth:`step`."""

    def restarts(self, epochs: int) -> Sequence[int]:
        """Return the training epochs, ascending from 1, that begin with new networks and optimisers.

        Their weights are drawn again; the method keeps what it knows. The decay of the rate counts from the
        last restart, and only epochs from the last restart of the run on are tested. A ValueError says when
        the run's training ``epochs`` do not suffice.
        """
        return ()

    def begin_training(self, loop: Loop) -> None:
        """Create what the method needs after warm-up (once per run)."""

    @abstractmethod
    def begin_epoch(self, loop: Loop) -> Iterable[Any]:
        """Prepare a training epoch and return what :meth:`step` will receive, one item per step.

        Usually ``loop.batches(...)``; :class:`Steps` adds the number of items to an iterable that lacks it.
        """

    @abstractmethod
    def step(self, loop: Loop, batch: Any) -> StepTerms:
        """Return the loss terms of one training step, scalars with gradient; see :data:`StepTerms`.

        Parameters
        ----------
        loop : Loop
        batch : Batch, or whatever else :meth:`begin_epoch` gives
        """

    def end_epoch(self, loop: Loop) -> None:
        """Store arrays of the epoch (:meth:`Loop.keep`)."""

    def may_be_tested(self, loop: Loop) -> bool:
        """Return whether validation may select this epoch, one of those that ``tested_epochs`` names."""
        return True


class ClosedForm(Method):
    """Base of the methods that are fitted to all pairs at once, without epochs, batches and gradients.

    A subclass sets ``Options`` and ``model``, and defines :meth:`prepare` and :meth:`fit`.

    Attributes
    ----------
    model : str
        The model whose view of images and captions the method takes; no other can be asked for.
    """

    model: ClassVar[str]

    @abstractmethod
    def fit(self, loop: Loop) -> None:
        """Put the fitted values into ``loop.networks[0]``, which :meth:`prepare` made."""

    def warmup_step(self, loop: Loop, batch: Batch) -> StepTerms:
        raise TypeError(f"{type(self).__name__} is fitted at once, without steps")

    def begin_epoch(self, loop: Loop) -> Iterable[Any]:
        raise TypeError(f"{type(self).__name__} is fitted at once, without epochs")

    step = warmup_step


METHODS = method_registry("method", Method)
register = METHODS.register
