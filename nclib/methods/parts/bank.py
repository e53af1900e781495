"""REPAIR's memory bank of encoded pairs."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.methods.base import Batch
from nclib.methods.parts.vectors import fragments_of
from nclib.models.ensemble import JointEncoding

PRECISION = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def part_of(batch: Batch, rows: Tensor) -> Batch:
    """Return some ``rows`` of a batch, int64 (n,) on the host."""
    lengths = tuple(batch.captions.lengths[row] for row in rows.tolist())
    index = rows.to(batch.images.device, non_blocking=True)
    ids = batch.captions.ids[index, : max(lengths)]
    return Batch(batch.index[rows], batch.images[index], Tokens(ids, lengths))


def pooled(encoding: Any) -> Tensor:
    """Return one unit vector per encoded image or caption, float32 (B, D), without gradient, for distances.

    The mean of the regions or of the valid words where the model keeps them, its global vector otherwise; the
    members of an ensemble stand side by side.
    """
    if isinstance(encoding, JointEncoding):
        return F.normalize(torch.cat([pooled(member) for member in encoding.parts], dim=1), dim=1)
    pieces = fragments_of(encoding)
    # Words beyond a caption's length are zero, and the length itself does not survive the normalisation.
    vectors = encoding.vectors if pieces is None else pieces.sum(1)
    return F.normalize(vectors.detach().float(), dim=1)


def _flatten(encoding: Any) -> dict[str, Any]:
    """Return the tensors and lengths of an encoding by name; of an ensemble as ``parts.0.NAME``."""
    if isinstance(encoding, JointEncoding):
        members = [_flatten(part) for part in encoding.parts]
        return {f"parts.{i}.{k}": value for i, member in enumerate(members) for k, value in member.items()}
    every = {field.name: getattr(encoding, field.name) for field in dataclasses.fields(encoding)}
    return {name: value for name, value in every.items() if value is not None}


def _rebuild(template: Any, flat: dict[str, Any], name: str = "") -> Any:
    """Return an encoding built like ``template`` with the values of :func:`_flatten`."""
    if isinstance(template, JointEncoding):
        members = [_rebuild(part, flat, f"parts.{i}.") for i, part in enumerate(template.parts)]
        return JointEncoding(tuple(members))
    own = {key.removeprefix(name): value for key, value in flat.items() if key.startswith(name)}
    return dataclasses.replace(template, **own)


class BankRows:
    """``size`` slots of a number type for rows of one kind of encoding, for encodings of any model."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size, self.dtype = size, dtype
        self.tensors: dict[str, Tensor] = {}
        self.lengths: dict[str, list[int]] = {}
        self.template: Any = None  # shows how to build an encoding; made by the first write

    def write(self, slots: list[int], encoding: Any) -> None:
        """Put the rows of ``encoding`` into ``slots``, without gradient."""
        if self.template is None:  # one row shows how an encoding is built
            self.template = encoding.select(slice(0, 1)).detach()
        for name, value in _flatten(encoding).items():
            if isinstance(value, Tensor):
                self._store(name, slots, value.detach())
            else:
                kept = self.lengths.setdefault(name, [0] * self.size)
                for slot, length in zip(slots, value, strict=True):
                    kept[slot] = int(length)

    def _store(self, name: str, slots: list[int], rows: Tensor) -> None:
        store = self.tensors.get(name)
        if store is None:
            dtype = self.dtype if rows.is_floating_point() else rows.dtype
            store = rows.new_zeros(self.size, *rows.shape[1:], dtype=dtype)
        if rows.ndim > 1 and rows.shape[1] != store.shape[1]:  # captions of another batch may be longer
            width, other = max(rows.shape[1], store.shape[1]), (0, 0) * (rows.ndim - 2)
            store, rows = (F.pad(x, (*other, 0, width - x.shape[1])) for x in (store, rows))
        index = torch.tensor(slots).to(store.device, non_blocking=True)
        self.tensors[name] = store.index_copy_(0, index, rows.to(store.dtype))

    def select(self, index: Tensor) -> Any:
        """Return the slots ``index``, (n,), as an encoding in float32.

        Only encodings with lengths wait for the device: captions are grouped by length on the host.
        """
        rows_of = {name: x.index_select(0, index) for name, x in self.tensors.items()}
        flat: dict[str, Any] = {n: x.float() if x.is_floating_point() else x for n, x in rows_of.items()}
        if self.lengths:
            rows = index.tolist()
            flat |= {name: tuple(kept[row] for row in rows) for name, kept in self.lengths.items()}
        encoding = _rebuild(self.template, flat)
        return encoding.select(slice(None)) if self.lengths else encoding  # cut to the longest caption

    def state(self) -> dict[str, Any]:
        """Return the slots as tensors and plain data."""
        return {"tensors": dict(self.tensors), "lengths": dict(self.lengths)}

    def load_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what :meth:`state` returned."""
        self.tensors = {name: x.to(device, copy=True) for name, x in state["tensors"].items()}
        self.lengths = {name: list(kept) for name, kept in state["lengths"].items()}


class FeatureBank:
    """Memory of the last ``size`` encoded pairs of one network; the oldest leave first.

    An entry holds the input of the network's similarity (regions and words, or global vectors), for models
    with fragments also pooled unit vectors for distances, and the number of its training pair.

    Parameters
    ----------
    size : int >= 1
        M, the number of pairs.
    precision : {"fp32", "fp16", "bf16"}
        Number type of the kept encodings. The pooled vectors of fragments stay in float32, for the ranks.

    Attributes
    ----------
    images, captions : BankRows
        The kept encodings; ``select`` gives those of some entries.
    """

    def __init__(self, size: int, precision: str = "fp32") -> None:
        self.size, self.count, self._next = size, 0, 0
        self.images, self.captions = (BankRows(size, PRECISION[precision]) for _ in range(2))
        self._pooled: dict[str, Tensor] = {}
        self._pairs = torch.zeros(size, dtype=torch.int64)

    def __len__(self) -> int:
        return self.count

    def push(self, images: Any, captions: Any, index: Tensor) -> None:
        """Append B encoded pairs, ``index`` (B,) in the training set, on the host; the last ``size`` stay."""
        if len(index) > self.size:
            rest = slice(len(index) - self.size, None)
            images, captions, index = images.select(rest), captions.select(rest), index[rest]
        slots = [(self._next + i) % self.size for i in range(len(index))]
        self.images.write(slots, images)
        self.captions.write(slots, captions)
        place = torch.tensor(slots)
        self._pairs[place] = index
        for name, encoding in (("images", images), ("captions", captions)):
            if not isinstance(encoding, JointEncoding) and fragments_of(encoding) is None:
                continue  # the vectors of the encoding are compared
            rows = pooled(encoding)
            store = self._pooled.setdefault(name, rows.new_zeros(self.size, rows.shape[1]))
            store.index_copy_(0, place.to(rows.device, non_blocking=True), rows)
        self._next = (self._next + len(index)) % self.size
        self.count = min(self.count + len(index), self.size)

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the pooled unit vectors of images and captions, (len, D) each; an error when it is empty."""
        if not self.count:
            raise RuntimeError("the bank is empty; push encoded pairs first")
        return self._unit("images", self.images), self._unit("captions", self.captions)

    def _unit(self, name: str, rows: BankRows) -> Tensor:
        if name in self._pooled:
            return self._pooled[name][: self.count]
        return F.normalize(rows.tensors["vectors"][: self.count].float(), dim=1)

    def pairs(self, device: torch.device) -> Tensor:
        """Return the training pair of each entry, int64, (len,)."""
        return self._pairs[: self.count].to(device, non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes that the bank holds on its device."""
        kept = [*self.images.tensors.values(), *self.captions.tensors.values(), *self._pooled.values()]
        return sum(x.nbytes for x in kept)

    def state(self) -> dict[str, Any]:
        """Return everything :meth:`load_state` needs (tensors and plain data)."""
        return {
            "count": self.count,
            "next": self._next,
            "pairs": self._pairs,
            "pooled": dict(self._pooled),
            "images": self.images.state(),
            "captions": self.captions.state(),
        }

    def load_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what :meth:`state` returned, on ``device``."""
        self.count, self._next, self._pairs = state["count"], state["next"], state["pairs"]
        self._pooled = {name: x.to(device, copy=True) for name, x in state["pooled"].items()}
        self.images.load_state(state["images"], device)
        self.captions.load_state(state["captions"], device)
