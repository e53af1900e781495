"""Trainer of category retrieval: epochs, optimiser, learning rate, evaluation."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nclib.common.method import check_plain, check_terms
from nclib.data import CategorySplit
from nclib.evaluation import mean_average_precision
from nclib.label_noise import DeepMethod, LabelBatch, LabelTruth, Projector, Training
from nclib.runs.loop import Place, SavedLoop, seed_of
from nclib.runs.options import LabelSchedule

BETAS = (0.5, 0.999)  # of Adam, as MRL and its successors
EVALUATED = 1024  # pairs passed at a time without gradient


def retrieval_map(images: Tensor, texts: Tensor, labels: np.ndarray) -> dict[str, float]:
    """Return ``map_i2t``, ``map_t2i`` and their mean ``map_avg``, each in [0, 1], over the whole gallery.

    ``images`` and ``texts`` are embeddings, (n, L), ``labels`` the true classes of the pairs, int64 (n,).
    """
    i2t = mean_average_precision(images, texts, labels, labels)
    t2i = mean_average_precision(texts, images, labels, labels)
    return {"map_i2t": i2t, "map_t2i": t2i, "map_avg": (i2t + t2i) / 2}


def inputs_of(split: CategorySplit) -> tuple[Tensor, Tensor]:
    """Return the features of images and texts as tensors."""
    return torch.from_numpy(split.images), torch.from_numpy(split.texts)


class LabelTrainer(SavedLoop):
    """Trains one method; is the :class:`~nclib.label_noise.LabelLoop` that a deep method is given.

    Every draw of an epoch comes from a generator seeded by (run seed, epoch, purpose).

    Networks are trained by Adam, at a rate that falls from epoch to epoch.

    Parameters
    ----------
    method : DeepMethod or Projector
    network : Module or None
        What ``method.build`` returned; None for a projector.
    train : Training
        N pairs with the given labels.
    truth : ndarray, int64, (N,)
        True classes, for diagnosis only.
    val : CategorySplit
        Split on which the epoch with the largest mean mAP is selected.
    schedule : LabelSchedule
    place : Place
    """

    criterion: ClassVar[str] = "map_avg"
    stream: ClassVar[str] = "torch"

    def __init__(
        self,
        method: DeepMethod | Projector,
        network: Any,
        train: Training,
        truth: np.ndarray,
        val: CategorySplit,
        schedule: LabelSchedule,
        place: Place,
    ) -> None:
        super().__init__(place)
        self.method, self.val, self.schedule, self.truth = method, val, schedule, LabelTruth(truth)
        self.n_pairs, self.n_classes = len(train), train.n_classes
        self.batch_size, self.n_epochs = min(schedule.batch_size, self.n_pairs), schedule.epochs
        self.n_planned = self.n_epochs if isinstance(method, DeepMethod) else 1  # a closed form takes one
        self.iteration, self.network, self.train = 0, network, train
        if network is not None:
            self.network = network.to(self.device)
            self.networks = [self.network]
        if isinstance(method, DeepMethod):
            self.train, lr = train.to(self.device), schedule.lr
            weights = method.parameters(self.network, lr)
            self.optimizer: torch.optim.Optimizer
            self.optimizer = torch.optim.Adam(weights, lr=lr, betas=BETAS, fused=True)
            self._rates = [group["lr"] for group in self.optimizer.param_groups]

    # -- what a method may ask for ----------------------------------------------------------------------

    @property
    def n_steps(self) -> int:
        """Steps of an epoch on all pairs."""
        whole, rest = divmod(self.n_pairs, self.batch_size)
        return whole + (rest > 0 and not getattr(self.method, "drop_last", False))

    def generator(self, purpose: str) -> torch.Generator:
        """Return a generator seeded by (run seed, epoch, purpose)."""
        return torch.Generator().manual_seed(seed_of(self.seed, self.epoch, purpose))

    def embed(self) -> tuple[Tensor, Tensor]:
        """Return image and text embeddings of all training pairs, (N, L) each: eval mode, no gradient."""
        return self._embed(self.train.images, self.train.texts)

    # -- the loop ---------------------------------------------------------------------------------------

    def _train_epoch(self, progress: bool) -> dict[str, Any]:
        if isinstance(self.method, DeepMethod):
            return self._train_networks(self.method, progress)
        self.method.fit(self.train, lambda: self.evaluate(self.val)["map_avg"])
        return {f"chosen_{k}": float(v) for k, v in self.method.chosen().items()}

    def _train_networks(self, method: DeepMethod, progress: bool) -> dict[str, Any]:
        self.iteration = sum(row["steps"] for row in self.history)
        scale = self._scale_rates()
        self.network.train()
        method.begin_epoch(self)
        order = torch.randperm(self.n_pairs, generator=self.generator("batches")).to(self.device)
        chunks = method.batches(self, order)
        totals: dict[str, Tensor] = {}
        for index in self._shown(list(chunks), progress):
            terms = check_terms(method.step(self, self.batch(index)), method.step)
            self.optimizer.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()
            self.optimizer.step()
            self._add(totals, terms)
            self.iteration += 1
        method.end_epoch(self)
        row: dict[str, Any] = {"lr": self.schedule.lr * scale, "steps": len(chunks)}
        row |= self._mean_losses(totals, len(chunks))
        return row | check_plain(method.diagnostics(self.truth), method.diagnostics)

    def _scale_rates(self) -> float:
        """Set the learning rates of this epoch; return their share of those that were given."""
        scale = 1.0
        if self.schedule.lr_schedule == "cosine":
            scale = 0.5 * (1 + math.cos(math.pi * self.epoch / self.n_epochs))
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * scale
        return scale

    def batch(self, index: Tensor) -> LabelBatch:
        """Return the training pairs at ``index``, (B,) int64 on the device."""
        t = self.train
        parts = (x[index] for x in (t.images, t.texts, t.image_labels, t.text_labels))
        return LabelBatch(index, *parts)

    def _validate(self) -> dict[str, float]:
        return self.evaluate(self.val)

    def _line(self, row: dict[str, Any]) -> str:
        losses = "".join(f"  {k[5:]} {v:.3f}" for k, v in row.items() if k.startswith("loss_"))
        return (
            f"epoch {row['epoch']:>3}/{self.n_planned}{losses}  val mAP {row['val_map_avg']:.3f}  "
            f"{row['seconds']:.1f} s"
        )

    # -- evaluation -------------------------------------------------------------------------------------

    @torch.no_grad()
    def _embed(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        v, t = images, texts
        if self.network is not None:
            was = self.network.training
            self.network.eval()
            v, t = (
                torch.cat([net(part.to(self.device)) for part in x.split(EVALUATED)])
                for net, x in ((self.network.images, images), (self.network.texts, texts))
            )
            self.network.train(was)
        if isinstance(self.method, Projector):
            return self.method.project_images(v), self.method.project_texts(t)
        return v, t

    def embed_split(self, split: CategorySplit) -> tuple[Tensor, Tensor]:
        """Return image and text embeddings of a split, (n, L) each."""
        return self._embed(*inputs_of(split))

    def evaluate(self, split: CategorySplit) -> dict[str, float]:
        """Return the mean average precision on a split, by its true labels."""
        return retrieval_map(*self.embed_split(split), split.labels)

    # -- checkpoints ------------------------------------------------------------------------------------

    def _weights(self) -> dict[str, Any]:
        if isinstance(self.method, Projector):
            return check_plain(self.method.state(), self.method.state, tensors=True)
        return dict(self.network.state_dict())

    def _put(self, weights: dict[str, Any]) -> None:
        if isinstance(self.method, Projector):
            self.method.load_state(self, weights)
        else:
            self.network.load_state_dict(weights)
            self.network.eval()

    def _state(self) -> dict[str, Any]:
        if isinstance(self.method, Projector):
            return {}
        self.optimizer.zero_grad(set_to_none=True)  # room for the copy that is written
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": check_plain(self.method.state(), self.method.state, tensors=True),
        }

    def _load_state(self, saved: dict[str, Any]) -> None:
        if isinstance(self.method, Projector):
            self._put(self.best["weights"])
        else:
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.method.load_state(self, saved["method"])
