"""Trainer of pairs: epochs, optimiser, precision, and the services that a method may ask for."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nclib.common.method import check_pair_values, check_plain, loss_terms
from nclib.common.precision import arithmetic, check_precision
from nclib.common.prefetch import X, Y
from nclib.data.dataset import Split
from nclib.evaluation import recall
from nclib.methods import AllPairs, Batch, ClosedForm, Method
from nclib.models import Matcher, similarity_matrix
from nclib.models.pretrained import Frozen
from nclib.models.scoring import evaluating
from nclib.noise import Mismatch
from nclib.runs.collapse import FALLEN, starved_networks, validation_fall
from nclib.runs.loop import Place, SavedLoop, seed_of
from nclib.runs.noisy_pairs import Batches, NoisyPairs
from nclib.runs.optimizers import build
from nclib.runs.options import PairSchedule

BATCH_NORM_NEEDS = 2  # samples in a batch, at least


class PairTrainer(SavedLoop):
    """Trains the networks of a method; is the :class:`~nclib.methods.Loop` that a method is given.

    Every draw of an epoch comes from a generator seeded by (run seed, epoch, network, purpose).

    Parameters
    ----------
    method : Method
    networks : list of Module
        ``method.n_networks`` models.
    pairs : NoisyPairs
        Training pairs.
    val : Split
        Split on which the epoch with the largest sum of the six recalls is selected.
    schedule : PairSchedule
    place : Place
    pictures_on : {"auto", "host", "device"}
        Where training pictures lie, see :meth:`~nclib.runs.noisy_pairs.NoisyPairs.place`.
    renew : callable, optional
        ``renew(k)`` builds the networks of the method's k-th restart, k from 1; needed where it restarts.

    Raises
    ------
    ValueError
        When a batch needs more pairs than there are, when the validation split is too small for the pairs
        that the method sets aside, or when the epochs do not suffice for the method's restarts.
    """

    criterion: ClassVar[str] = "rsum"
    stream: ClassVar[str] = "dropout"

    def __init__(
        self,
        method: Method,
        networks: list[Matcher],
        pairs: NoisyPairs,
        val: Split,
        schedule: PairSchedule,
        place: Place,
        *,
        pictures_on: str = "auto",
        renew: Callable[[int], list[Matcher]] | None = None,
    ) -> None:
        super().__init__(place)
        check_precision(schedule.precision, self.device)
        self.method, self.pairs, self.schedule = method, pairs, schedule
        self.networks = [network.to(self.device) for network in networks]
        self.n_pairs, self.batch_size = len(pairs), schedule.batch_size
        self.image_of = pairs.image_of
        self.n_epochs, self.lr = schedule.epochs, schedule.lr
        # A closed form takes one epoch, whatever the schedule says.
        self.n_planned = schedule.warmup_epochs + schedule.epochs
        if isinstance(method, ClosedForm):
            self.n_planned, self.n_epochs = 1, 1
        self.val, self._held_out = _set_aside(val, method.clean_share, len(pairs))
        self.n_held_out = 0 if self._held_out is None else len(self._held_out)
        if self.n_pairs < self.batch_size:
            raise ValueError(f"batch_size={self.batch_size} exceeds the {self.n_pairs} training pairs")
        self.active, self.lr_scale, self.pictures_on = 0, 1.0, pictures_on
        self.renew = renew
        self.restarts = tuple(method.restarts(schedule.epochs)) if schedule.epochs else ()

    # -- what a method may ask for ----------------------------------------------------------------------

    def generator(self, purpose: str) -> torch.Generator:
        """Return a generator on the CPU, seeded by (run seed, epoch, network being trained, purpose)."""
        return torch.Generator().manual_seed(seed_of(self.seed, self.epoch, self.active, purpose))

    def batch(self, index: Tensor) -> Batch:
        """Load the pairs at ``index``, int64 (B,), onto the run's device."""
        return self.pairs.batch(index, self.device)

    def all_pairs(self) -> AllPairs:
        """Return all pairs with the mean region of each image, float64; reads every image once."""
        split = self.pairs.split
        return AllPairs(split.mean_regions(), split.captions, self.image_of.numpy())

    def batches(self, subset: Tensor | None = None, *, purpose: str, drop_last: bool = False) -> Batches:
        """Return shuffled batches of all pairs, or of those at ``subset``, int64 (N,).

        ``purpose`` decides the order, with the run's seed and the epoch. With ``drop_last`` a last batch that
        is not full is left out, otherwise only one of a single pair.
        """
        n = self.n_pairs if subset is None else len(subset)
        order = torch.randperm(n, generator=self.generator(purpose))
        chosen = order if subset is None else subset[order]
        return self.batches_of(chosen, least=self.batch_size if drop_last else BATCH_NORM_NEEDS)

    def batches_of(self, index: Tensor, size: int = 0, least: int = BATCH_NORM_NEEDS) -> Batches:
        """Return the pairs at ``index``, int64 (N,), in this order, in batches of ``size`` (0: the run's).

        A last batch with fewer than ``least`` pairs is left out.
        """
        return Batches(self.pairs, index, size or self.batch_size, least, self.device)

    def ahead(self, load: Callable[[X], Y], items: Iterable[X]) -> Iterator[Y]:
        """Yield ``load(item)`` in order; where that pays, a thread loads before it is asked."""
        return self.pairs.in_order(load, items, self.device)

    @property
    def training_epoch(self) -> int:
        """Number of the epoch after warm-up, from 0; negative during warm-up."""
        return self.epoch - self.schedule.warmup_epochs

    def held_out(self, index: Tensor) -> Batch:
        """Load pairs that are known to be matched, by their numbers, int64 (B,), among the ``n_held_out``."""
        assert self._held_out is not None, "no pairs were set aside: the method's clean_share is 0"
        return self._held_out.batch(index, self.device)

    def similarity(self, batch: Batch, network: int | None = None, *, logits: bool = False) -> Tensor:
        """Return the (B, B) float32 similarities of a batch, or their logits, images in rows.

        ``network`` is the number of the network; by default that of the one being trained.
        """
        net = self.networks[self.active if network is None else network]
        with arithmetic(self.schedule.precision, self.device):
            S: Tensor = net(batch.images, batch.captions, logits=logits)
        return S.float()

    def encode(self, batch: Batch, network: int | None = None) -> tuple[Any, Any]:
        """Return the images and the captions of a batch as encoded by a network, for :meth:`compare`."""
        net = self.networks[self.active if network is None else network]
        with arithmetic(self.schedule.precision, self.device):
            return net.encode_images(batch.images), net.encode_captions(batch.captions)

    def compare(self, images: Any, captions: Any, network: int | None = None) -> Tensor:
        """Return the float32 similarities of encoded images (rows) and captions."""
        net = self.networks[self.active if network is None else network]
        with arithmetic(self.schedule.precision, self.device):
            S: Tensor = net.similarity(images, captions)
        return S.float()

    def evaluating(self) -> AbstractContextManager[None]:
        """Put all networks in eval mode and keep no gradient; training mode returns afterwards."""
        return evaluating(nn.ModuleList(self.networks))

    def each_pair(self, values: Callable[[Batch], Tensor]) -> Tensor:
        """Return ``values(batch)``, (B, ...), of every pair, (n_pairs, ...), on the host, in eval mode.

        A pair that would be alone in the last batch gets the mean of the others.
        """
        batches = self.batches(purpose="per pair")
        with self.evaluating():
            parts = [check_pair_values(values(b), len(b), "loop.per_pair or each_pair") for b in batches]
        rows = torch.cat(parts).cpu()
        mean = rows.to(torch.float64).mean(0).to(rows.dtype)  # of a pair that a last batch of one left out
        result = mean.expand(self.n_pairs, *mean.shape).clone()
        result[torch.cat(batches.chunks)] = rows
        return result

    def per_pair(self, loss: Callable[[Tensor], Tensor], network: int | None = None) -> Tensor:
        """Return ``loss(S)`` of every pair, (n_pairs,), ``S`` being the (B, B) similarities of a batch."""
        return self.each_pair(lambda batch: loss(self.similarity(batch, network)))

    @functools.cached_property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimiser of each network, made when it is asked for: torch takes two seconds for the first."""
        s = self.schedule
        if isinstance(self.method, ClosedForm):
            return []
        return [build(s.optimizer, _groups(n), s.lr, s.weight_decay) for n in self.networks]

    def reset_optimizers(self) -> None:
        """Give every network a new optimiser without moments."""
        self.__dict__.pop("optimizers", None)

    # -- the loop ---------------------------------------------------------------------------------------

    def _train_epoch(self, progress: bool) -> dict[str, Any]:
        if isinstance(self.method, ClosedForm):
            self.method.fit(self)
            return {"phase": "training"} | self._diagnosed()
        s, warm = self.schedule, self.epoch < self.schedule.warmup_epochs
        for pairs in filter(None, (self.pairs, self._held_out)):
            pairs.place(self.pictures_on, self.device)
        assert len(self.optimizers) == len(self.networks)  # made before the method may change the networks
        if self.epoch == s.warmup_epochs:
            self.method.begin_training(self)
        if self.training_epoch in self.restarts:
            self._restart(self.restarts.index(self.training_epoch) + 1)
        first = max((epoch for epoch in self.restarts if epoch <= self.training_epoch), default=0)
        self.lr_scale = 1.0 if warm else s.share(self.training_epoch - first)
        self.lr = s.lr * self.lr_scale
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * group["rate"]
        for net in self.networks:
            net.train()
            for part in net.modules():
                if begin := getattr(part, "begin_epoch", None):  # what is held for some epochs
                    begin(self.epoch)
        totals: dict[str, Tensor] = {}
        taken = [0] * self.method.n_networks  # steps of each network
        for network in range(self.method.n_networks):
            self.active = network
            step = self.method.warmup_step if warm else self.method.step
            items = self.batches(purpose="warm-up") if warm else self.method.begin_epoch(self)
            for item in self._shown(items, progress):
                for terms in loss_terms(step(self, item), step):
                    self._minimise(terms)
                    self._add(totals, terms)
                taken[network] += 1
            if not warm:
                self.method.end_epoch(self)
        self.active = 0
        row: dict[str, Any] = {"phase": "warm-up" if warm else "training", "lr": self.lr, "steps": sum(taken)}
        if idle := [network for network, n in enumerate(taken) if not n]:
            row["idle"] = idle  # networks that took no step
        if not warm and (few := starved_networks(taken, self.n_pairs, self.batch_size)):
            row["starved"] = few
            warnings.warn(
                f"epoch {self.epoch + 1}: network {', '.join(map(str, few))} took one step, where all pairs "
                f"fill {self.n_pairs // self.batch_size}: the method keeps one batch of pairs or fewer. Its "
                "division collapsed; try another seed, a lower lr or a longer warm-up",
                stacklevel=2,
            )
        row |= self._mean_losses(totals, sum(taken))
        if self.epoch + 1 == self.n_planned and not warm:
            self._refuse_untrained([*self.history[s.warmup_epochs :], row])
        return row if warm else row | self._diagnosed()

    def _diagnosed(self) -> dict[str, Any]:
        """Return the diagnostics of the method, where the truth is known."""
        report = self.method.diagnostics
        return check_plain(report(self.pairs.truth()), report) if self.pairs.truth_is_known else {}

    def _restart(self, number: int) -> None:
        """Put new networks with new optimisers in place; the draws of the epoch stay as they are."""
        assert self.renew is not None
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            self.networks = [network.to(self.device) for network in self.renew(number)]
        self.reset_optimizers()

    def _refuse_untrained(self, epochs: list[dict[str, Any]]) -> None:
        """Raise a ValueError when a network took no step in any epoch after warm-up."""
        for network in range(self.method.n_networks):
            if all(network in row.get("idle", ()) for row in epochs):
                raise ValueError(
                    f"{self.method.begin_epoch.__qualname__} returned no steps for network {network} in all "
                    f"{len(epochs)} epochs after warm-up: the method did not train it. Too few pairs were "
                    "kept; give more data, smaller batches, or another threshold"
                )

    def _minimise(self, terms: dict[str, Tensor]) -> None:
        network, optimizer = self.networks[self.active], self.optimizers[self.active]
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        nn.utils.clip_grad_norm_(network.parameters(), self.schedule.grad_clip)
        optimizer.step()

    def scores(self, split: Split) -> Tensor:
        """Return the similarities of a split by each network, (n, n_images, n_captions), on the host."""
        how: dict[str, Any] = {"device": self.device, "precision": self.schedule.precision}
        return torch.stack([similarity_matrix(network, split, **how) for network in self.networks])

    def score(self, split: Split) -> Tensor:
        """Return the mean of :meth:`scores` over the networks, float32 (n_images, n_captions)."""
        return self.scores(split).mean(0)

    def given_similarity(self) -> Tensor:
        """Return the similarity of every training pair, float32 (n_pairs,), the mean over the networks."""

        def similarity(batch: Batch) -> Tensor:
            scores = []
            for net in self.networks:
                images, captions = net.encode_images(batch.images), net.encode_captions(batch.captions)
                scores.append(net.paired_similarity(images, captions))
            return torch.stack(scores).mean(0).float()

        return self.each_pair(similarity)

    def _validate(self) -> dict[str, float]:
        return dict(recall(self.score(self.val), self.val.captions_per_image))

    def _look_back(self) -> None:
        """Warn when training undid what the warm-up had learnt."""
        if len(self.history) == self.n_planned and (fall := validation_fall(self.history)):
            warnings.warn(
                f"the run collapsed: {fall}, below {FALLEN:.0%} of it. Look at its curves; try a lower lr",
                stacklevel=2,
            )

    def _may_be_tested(self) -> bool:
        s = self.schedule
        first = {"all": 0, "last warm-up": s.warmup_epochs - 1, "training": s.warmup_epochs}
        if self.restarts and self.training_epoch < self.restarts[-1]:
            return False
        # Without training epochs, warm-up is the whole run.
        among = self.epoch >= first[self.method.tested_epochs]
        return not s.epochs or (among and self.method.may_be_tested(self))

    # -- checkpoints ------------------------------------------------------------------------------------

    def _weights(self) -> list[dict[str, Any]]:
        return [network.state_dict() for network in self.networks]

    def load_last(self) -> None:
        """Put the weights of the last epoch in place; errors of :func:`nclib.open_run`."""
        self._put(self._read()["networks"])

    def _put(self, weights: list[dict[str, Any]]) -> None:
        for network, state in zip(self.networks, weights, strict=True):
            network.load_state_dict(state)
            network.eval()

    def _state(self) -> dict[str, Any]:
        return {
            "networks": self._weights(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "method": check_plain(self.method.state(), self.method.state, tensors=True),
        }

    def _load_state(self, saved: dict[str, Any]) -> None:
        for network, state in zip(self.networks, saved["networks"], strict=True):
            network.load_state_dict(state)
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.method.load_state(self, saved["method"])

    def _line(self, row: dict[str, Any]) -> str:
        losses = "  ".join(f"{k[5:]} {v:.3f}" for k, v in row.items() if k.startswith("loss_"))
        extra = f"  AUC {row['auc']:.3f}" if row.get("auc") is not None else ""
        return (
            f"epoch {row['epoch']:>2}/{self.n_planned} {row['phase']:<8} {losses}"
            f"  val rSum {row['val_rsum']:.1f}{extra}  {row['seconds']:.1f} s"
        )


def _groups(network: nn.Module) -> list[dict[str, Any]]:
    """Weights of a network in groups by the ``rate`` that multiplies the learning rate, 1 for most."""
    matchers = [module for module in network.modules() if isinstance(module, Matcher)]
    rates = {p: rate for matcher in matchers for p, rate in matcher.own_rates().items()}
    towers = [module for module in network.modules() if isinstance(module, Frozen)]
    rates |= {p: part.rate for part in towers for p in part.tower.parameters()}
    groups: dict[float, list[nn.Parameter]] = {}
    for p in network.parameters():
        groups.setdefault(rates.get(p, 1.0), []).append(p)
    return [{"params": weights, "rate": rate} for rate, weights in groups.items()]


def _set_aside(val: Split, share: float, n_pairs: int) -> tuple[Split, NoisyPairs | None]:
    """Take ``share * n_pairs`` true pairs out of the validation split; return what is left, and the pairs.

    At least one picture in five stays for validation.
    """
    if not share:
        return val, None
    least = math.ceil(BATCH_NORM_NEEDS / val.captions_per_image)
    if val.n_images <= least:
        raise ValueError(
            f"the method takes pairs known to be matched out of the validation split, which has "
            f"{val.n_images} picture; it needs at least {least + 1}"
        )
    n_images = max(least, min(math.ceil(share * n_pairs / val.captions_per_image), val.n_images * 4 // 5))
    kept, aside = val.part(0, val.n_images - n_images), val.part(val.n_images - n_images, val.n_images)
    return kept, NoisyPairs(aside, Mismatch.draw(aside.image_of, 0.0, seed=0))
