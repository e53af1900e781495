"""The base classes of methods for wrong labels, and the training loop as a method sees it.

Data are pairs of fixed feature vectors, one of an image and one of a text, with one class each; training
classes may be wrong. A method maps both kinds of features into one space, in which the neighbours of a query
should share its class. There are two kinds of methods:

* a :class:`Projector` is fitted once in closed form (CCA, PLS, ...) and may choose its settings by the mean
  average precision on validation;
* a :class:`DeepMethod` builds networks and returns the named loss terms of a step; the loop does the rest
  (optimiser, schedule, checkpoints, selection of the best epoch on validation).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nclib.common.method import Terms, TrainingMethod, method_registry
from nclib.common.options import Options as Options
from nclib.common.options import option as option
from nclib.label_noise.parts.networks import Heads, Prototypes


@dataclass(frozen=True, eq=False)
class Training:
    """The training pairs as the learner gets them.

    Parameters
    ----------
    images, texts : Tensor, float32, (N, d_v) and (N, d_t)
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

    def __post_init__(self) -> None:
        if len(self) < 2:
            raise ValueError(f"training needs at least two pairs, got {len(self)}")

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> Training:
        """Return the same pairs on ``device``."""
        names = ("images", "texts", "image_labels", "text_labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """Some training pairs, all tensors on the device; fields as in :class:`Training`.

    Parameters
    ----------
    index : Tensor, int64, (B,)
        Rows of the training set.
    images, texts : Tensor, float32, (B, d_v) and (B, d_t)
    image_labels, text_labels : Tensor, int64, (B,)
    """

    index: Tensor
    images: Tensor
    texts: Tensor
    image_labels: Tensor
    text_labels: Tensor

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class LabelTruth:
    """The true classes of the training pairs, int64 (N,), for diagnosis only, never for training."""

    labels: np.ndarray


@dataclass(frozen=True)
class Shape:
    """The sizes of the networks to build.

    Parameters
    ----------
    image_dim, text_dim : int
        d_v and d_t.
    n_classes : int
        K.
    hidden, dim : int
        Width of hidden layers, and L, width of the common space.
    """

    image_dim: int
    text_dim: int
    n_classes: int
    hidden: int
    dim: int


class LabelLoop(Protocol):
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
        """Steps of an epoch on all pairs."""

    def generator(self, purpose: str) -> torch.Generator:
        """Return a CPU generator seeded by (run seed, epoch, purpose), the same after a resume."""

    def embed(self) -> tuple[Tensor, Tensor]:
        """Return image and text embeddings of all training pairs, (N, L) each: eval mode, no gradient."""

    def keep(self, **arrays: Any) -> None:
        """Store arrays of this epoch for figures; read back with ``epoch_arrays``."""


class DeepMethod(TrainingMethod):
    """Base class of the methods that train networks by gradient descent.

    A subclass sets ``Options`` and defines :meth:`step`.

    Attributes
    ----------
    drop_last : bool
        Whether a last, smaller batch is left out.
    """

    drop_last: ClassVar[bool] = False

    def build(self, shape: Shape) -> nn.Module:
        """Build the networks: a module with ``images(x) -> (n, L)`` and ``texts(x) -> (n, L)``.

        Everything that evaluation needs must be in its ``state_dict`` (a linear map fitted after an epoch
        is a buffer). The default is the papers' pair of perceptrons with shared class prototypes.
        """
        heads = Heads(shape.image_dim, shape.text_dim, hidden=shape.hidden, dim=shape.dim)
        heads.prototypes = Prototypes(shape.dim, shape.n_classes)
        return heads

    def parameters(self, network: nn.Module, lr: float) -> Iterable[Any]:
        """Return what the optimiser receives: parameters, or groups with learning rates of their own."""
        return network.parameters()

    def begin_epoch(self, loop: LabelLoop) -> None:
        """Prepare an epoch; parameters are trainable, the network is in training mode."""

    def batches(self, loop: LabelLoop, order: Tensor) -> Sequence[Tensor]:
        """Return the rows of each step of an epoch, from a random order of all pairs, int64 (N,)."""
        return order.split(loop.batch_size)[: loop.n_steps]

    @abstractmethod
    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        """Return the loss terms of one batch: named scalars with gradient, weights included."""

    def end_epoch(self, loop: LabelLoop) -> None:
        """Do what follows the last step of an epoch, before validation."""


class Projector(TrainingMethod):
    """Base class of the methods that are fitted in closed form.

    A subclass sets ``Options`` and defines the abstract methods below.
    """

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
    def load_state(self, loop: Any, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned, instead of :meth:`fit`."""

    def chosen(self) -> dict[str, float]:
        """Return what was chosen on validation, by name; for the record."""
        return {}


METHODS = method_registry("category method", DeepMethod, Projector)
register = METHODS.register
