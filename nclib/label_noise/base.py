"""What a method of category retrieval is, and what the loop offers it.

Data are pairs of fixed feature vectors, one of an image and one of a text, with one class each; training
classes may be wrong. A method maps both kinds of features into one space, in which the neighbours of a query
should share its class. There are two kinds of methods:

* a :class:`Projector` is fitted once in closed form (CCA, PLS, ...) and may choose its settings by the mean
  average precision on validation;
* a :class:`DeepMethod` builds networks and returns the named loss terms of a step; the loop does the rest
  (optimiser, schedule, checkpoints, selection of the best epoch on validation).

Either is one file in this package: it sets ``Options``, decorates its class with ``@METHODS.register(...)``,
and then appears in the catalogue, in :func:`nclib.run` and in the tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nclib.label_noise.networks import Heads, Prototypes


@dataclass(frozen=True, eq=False)
class Training:
    """The training pairs as the learner gets them.

    Parameters
    ----------
    images : Tensor, float32, (N, d_v)
    texts : Tensor, float32, (N, d_t)
        Row i of ``texts`` belongs to row i of ``images``.
    image_labels, text_labels : Tensor, int64, (N,)
        Given (noisy) classes, 0..K-1; noise may differ between the two.
    n_classes : int
        K; a class may have no sample.
    """

    images: Tensor
    texts: Tensor
    image_labels: Tensor
    text_labels: Tensor
    n_classes: int

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> Training:
        """Return the same pairs on ``device``."""
        tensors = (self.images, self.texts, self.image_labels, self.text_labels)
        moved = [x.to(device) for x in tensors]
        return Training(moved[0], moved[1], moved[2], moved[3], self.n_classes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some training pairs; ``index`` (B,) int64 tells their rows in the training set, same device."""

    index: Tensor
    images: Tensor
    texts: Tensor
    image_labels: Tensor
    text_labels: Tensor

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class Truth:
    """The true class of every training pair, int64 (N,) on the host; only diagnosis may look at it."""

    labels: np.ndarray


@dataclass(frozen=True)
class Shape:
    """What networks must fit: feature widths, number of classes, and the size asked for.

    Parameters
    ----------
    image_dim, text_dim : int
        d_v and d_t.
    n_classes : int
        K.
    hidden : int
        Width of hidden layers.
    dim : int
        L, width of the common space.
    """

    image_dim: int
    text_dim: int
    n_classes: int
    hidden: int
    dim: int


Terms = dict[str, Tensor]
"""Named scalar loss terms of one step; the loop minimises their sum, so weights are already in them."""


class Loop(Protocol):
    """What the training loop offers to a :class:`DeepMethod`."""

    network: Any  # what DeepMethod.build returned
    optimizer: torch.optim.Optimizer
    train: Training  # on the device
    n_pairs: int
    n_classes: int
    batch_size: int
    epoch: int  # 0-based
    n_epochs: int
    iteration: int  # optimiser steps taken before this one, over all epochs
    device: torch.device

    @property
    def n_steps(self) -> int:
        """Steps per epoch."""

    def generator(self, purpose: str) -> torch.Generator:
        """Return a CPU generator seeded by (run seed, epoch, purpose), the same after a resume."""

    def embed(self) -> tuple[Tensor, Tensor]:
        """Return image and text embeddings of all training pairs, (N, L) each: eval mode, no gradient."""

    def keep(self, **arrays: Any) -> None:
        """Store arrays of this epoch for figures; read back with ``epoch_arrays``."""


class DeepMethod(ABC):
    """Base class of the methods that train networks by gradient descent.

    Subclasses set ``Options`` (a frozen dataclass of ``option`` fields) and implement
    :meth:`step`. ``settings`` holds values of schedule, networks and options per data set, under the name of
    the data set or ``"quick"``; they go over the general preset and under what the user gives.
    """

    Options: ClassVar[type]
    settings: ClassVar[dict[str, dict[str, Any]]] = {}
    drop_last: ClassVar[bool] = False  # whether a last, smaller batch is left out

    def __init__(self, options: Any) -> None:
        self.options = options

    def build(self, shape: Shape) -> nn.Module:
        """Build the networks: a module with ``images(x) -> (n, L)`` and ``texts(x) -> (n, L)``.

        Everything that evaluation needs must be in its ``state_dict`` (a linear map fitted after an epoch
        is a buffer). The default is the papers' pair of perceptrons with shared class prototypes.
        """
        heads = Heads(shape.image_dim, shape.text_dim, hidden=shape.hidden, dim=shape.dim)
        heads.prototypes = Prototypes(shape.dim, shape.n_classes)
        return heads

    def parameters(self, network: nn.Module, lr: float) -> Iterable[Any]:
        """Return what the optimiser is given: parameters, or groups with learning rates of their own."""
        return network.parameters()

    def begin_epoch(self, loop: Loop) -> None:  # noqa: B027  most methods need nothing here
        """Prepare an epoch; parameters are trainable, the network is in training mode."""

    @abstractmethod
    def step(self, loop: Loop, batch: Batch) -> Terms:
        """Return the loss terms of one batch."""

    def end_epoch(self, loop: Loop) -> None:  # noqa: B027
        """Follow the last step of an epoch, before validation."""

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        """Return numbers of the epoch that need the ground truth; for records only."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return everything :meth:`load_state` needs to continue exactly (tensors and plain data)."""
        return {}

    def load_state(self, loop: Loop, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what :meth:`state` returned; tensors come from the host."""


class Projector(ABC):
    """Base class of the methods that are fitted in closed form.

    Subclasses set ``Options`` and implement the three methods below. ``settings`` is as for
    :class:`DeepMethod`; ``supervised`` says whether labels are looked at.
    """

    Options: ClassVar[type]
    settings: ClassVar[dict[str, dict[str, Any]]] = {}
    supervised: ClassVar[bool] = True

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def fit(self, train: Training, validate: Callable[[], float]) -> None:
        """Fit to the training pairs (on the host).

        Parameters
        ----------
        train : Training
        validate : callable
            Returns the mean validation mAP of the two directions, with the projections as they are when it is
            called; for choosing a dimension or a weight. Keep the setting with the largest value.
        """

    @abstractmethod
    def project_images(self, x: Tensor) -> Tensor:
        """Map image features (n, d_v) into the common space, (n, L)."""

    @abstractmethod
    def project_texts(self, x: Tensor) -> Tensor:
        """Map text features (n, d_t) into the common space, (n, L)."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the fitted values (tensors and plain data)."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned, instead of :meth:`fit`."""

    def chosen(self) -> dict[str, float]:
        """Return what was chosen on validation, by name; for the record."""
        return {}
