"""One run on several processes, one per GPU, with the result of one process up to rounding.

A loss needs the similarities of *all* pairs of a batch; dividing the pairs would change the negatives. So all
processes draw the same batches and share the work on each: a process computes the columns of its share of the
captions, with all images. Then every process gathers the whole matrix and computes the same loss.

* Encoders run on shares as well where a row's encoding depends on that row alone (``Matcher.encodes_alone``).
  Batch norm and random draws (dropout) do not allow that: such encoders run on the whole batch in every
  process, with the same draws as in one process. Comparing all pairs is most of the work there.
* The gradient of a process is that of its own columns, times the number of processes; the mean over processes
  is then the gradient of the loss of the whole batch. A method that computes something without
  :meth:`Processes.compare` computes it in every process alike, and the mean leaves it as it is.

``torch.nn.parallel.DistributedDataParallel`` also takes the mean, but expects one forward call of its wrapper
per backward call and all gradients to come from there. Here a step has several forward calls, some without
gradient, methods call the parts of a model by themselves, and MSCN asks ``torch.autograd.grad`` and frees and
holds weights by turns. So the mean is taken here, in one call after the backward pass.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from nclib.common.shares import held_back
from nclib.common.tokens import Tokens

TIMEOUT = timedelta(minutes=10)  # of waiting for other processes: equal work, and one of them saves


def _each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return an encoding (dataclasses, tuples, tensors) with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_each_tensor(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{f: _each_tensor(getattr(value, f), change) for f in fields})
    return value


class _Gather(torch.autograd.Function):
    """Rows of all processes, in order, with a gradient for the own ones."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, processes: Processes, n: int, alike: bool) -> Tensor:
        ctx.processes, ctx.alike = processes, alike
        return processes.gather(own, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        processes = ctx.processes
        own = processes.share(len(grad))
        if ctx.alike:  # every process has the same gradient of the whole
            return grad[own] * processes.size, None, None, None
        # Each has the part that came through its own columns; a sum in bfloat16 would lose digits.
        dtype = torch.promote_types(grad.dtype, torch.float32)
        total = grad.to(dtype, copy=True, memory_format=torch.contiguous_format)
        processes.do(dist.all_reduce, total)
        return total[own].to(grad.dtype), None, None, None


class Processes:
    """The processes that share a run; with a single one every method costs nothing.

    Parameters
    ----------
    rank, size : int
        Number of this process, and number of processes. Process 0 prints and writes.
    device : str
        Device of this process; empty with one process, which uses the run's device.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: str = "") -> None:
        self.rank, self.size, self.device = rank, size, device
        self._apart = False

    def do(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a collective operation of torch; a RuntimeError says when another process has stopped."""
        try:
            collective(*args, **kwargs)
        except RuntimeError as error:
            raise RuntimeError(
                f"process {self.rank} of {self.size}: another process failed (see its error). Restart with "
                f"the same command to resume ({error})"
            ) from error

    # -- shares -----------------------------------------------------------------------------------------

    def splits(self, n: int) -> bool:
        """Return whether ``n`` rows or tasks are shared, so that each process has at least one."""
        return n >= self.size > 1 and not self._apart

    def share(self, n: int) -> slice:
        """Return the own rows of ``n``."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let this process compare whole batches, while other processes work on other batches."""
        self._apart = True
        try:
            yield
        finally:
            self._apart = False

    def compare(self, net: Any, images: Tensor, tokens: Tokens, *, logits: bool) -> Tensor:
        """Return ``net(images, tokens, logits=logits)``, of which each process computes its columns."""
        n_images, n = len(images), len(tokens)
        if not (self.splits(n) and self.splits(n_images)):
            return net(images, tokens, logits=logits)
        own = self.share(n)
        if net.encodes_alone:
            encoded = _each_tensor(
                net.encode_images(images[self.share(n_images)]),
                lambda rows: _Gather.apply(rows, self, n_images, False),
            )
            captions = net.encode_captions(Tokens(tokens.ids[own], tokens.lengths[own]))
        else:
            encoded, captions = net.encode_images(images), net.encode_captions(tokens).select(own)
        with held_back() as later:
            columns = net.similarity(encoded, captions, logits=logits)
        for update, parts in later.items():
            update(*(self.gather(torch.cat(rows), n) for rows in zip(*parts, strict=True)))
        whole: Tensor = _Gather.apply(columns.t(), self, n, True)
        return whole.t().contiguous()

    # -- what the others have ---------------------------------------------------------------------------

    def gather(self, own: Tensor, n: int) -> Tensor:
        """Return all ``n`` rows from the own ones of every process, without gradient."""
        sizes = [n * (k + 1) // self.size - n * k // self.size for k in range(self.size)]
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in sizes]
        self.do(dist.all_gather, parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes of tensors on the host."""
        if self.size == 1:
            return values
        self.do(dist.all_reduce, there := values.to(self.device))
        return there.to(values.device)

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over all processes."""
        if self.size == 1:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        self.do(dist.all_reduce, flat)
        flat /= self.size
        for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    @torch.no_grad()
    def align(self, networks: Iterable[nn.Module]) -> None:
        """Give every process the first one's weights: sums on a GPU may differ in their last bits."""
        if self.size == 1:
            return
        for network in networks:
            for tensor in (*network.parameters(), *network.buffers()):
                self.do(dist.broadcast, tensor.data, 0)

    def agree(self, what: str, value: object) -> None:
        """Wait for all processes; a RuntimeError names ``what`` when their values of it differ."""
        if self.size == 1:
            return
        number = int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:7])
        ends = torch.tensor([number, -number], device=self.device)
        self.do(dist.all_reduce, ends, dist.ReduceOp.MAX)
        if ends[0] != -ends[1]:
            raise RuntimeError(
                f"the processes of this run differ in {what}; start all with the same settings and code, "
                f"where all see the same folders (process {self.rank} has {value!r})"
            )


_current: ContextVar[Processes] = ContextVar("current", default=Processes())  # noqa: B039  never changed


def current() -> Processes:
    """Return the processes that share the current run; outside of a run, a single one."""
    return _current.get()


def _place(device: str, size: int) -> str:
    """Return the device of this process for a run on ``device``."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if device not in ("auto", "cuda"):
        raise ValueError(
            f"device={device!r} with {size} processes: each takes a GPU of its own; give 'auto' or 'cpu'"
        )
    if local >= there:
        raise ValueError(
            f"process {local} of this machine has no GPU of its own: there are {there}; start at most that "
            "many processes, or give device='cpu'"
        )
    return f"cuda:{local}"


@contextmanager
def processes(device: str, *, refuse: str = "") -> Iterator[Processes]:
    """Share what runs inside with the other processes that ``torchrun`` started, if it did.

    ``device`` is that of the run's settings. ``refuse`` is the name of runs that cannot be shared: a
    ValueError says when several processes would, or when the device does not fit.
    """
    joined = dist.is_available() and dist.is_initialized()
    size = dist.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or current().size > 1:
        yield current()
        return
    if refuse:
        raise ValueError(f"{refuse} run in one process, not in {size}; start without torchrun")
    place = _place(device, size)
    if not joined:
        if place != "cpu":
            torch.cuda.set_device(place)
        # Its functions keep the group at the time of their import as a default. A group that is still
        # referenced stays open when it is left, and other processes would wait for one that failed.
        importlib.import_module("torch.distributed.nn.functional")
        dist.init_process_group("gloo" if place == "cpu" else "nccl", timeout=TIMEOUT)
        atexit.register(_leave)
    group = Processes(dist.get_rank(), size, place)
    token = _current.set(group)
    try:
        with warnings.catch_warnings():
            if group.rank:
                warnings.simplefilter("ignore")  # the first process gives the same ones
            yield group
    except BaseException:
        _leave()  # otherwise the other processes wait for this one until the timeout
        raise
    finally:
        _current.reset(token)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
