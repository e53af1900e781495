"""Weights in the first file format of PyTorch (before 1.6), read without torch; no code of the file runs."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MAGIC = 0x1950A86A20F9469CFC6C  # the first number of such a file
TYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


class _Tensor(NamedTuple):
    """Where a tensor lies: the name of its storage, and its first element, shape and strides in elements."""

    storage: tuple[Any, ...]
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Plain(pickle.Unpickler):
    """An unpickler that knows descriptions of tensors, and no other object."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in TYPES:
            return name
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda *args: _Tensor(*args[:4]),
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is not a tensor")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read_weights(path: str | PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a file by name.

    Parameters
    ----------
    path : path
        Written by ``torch.save`` of a state dict; tensors of float32 and int64.

    Raises
    ------
    ValueError
        When the file is of another kind, holds something else than tensors, or is cut.
    """
    # The file: a magic number, the protocol and sizes of types; the tensors by name, each in a storage; the
    # names of the storages in the order in which their lengths and elements follow.
    try:
        with open(path, "rb") as file:
            if _Plain(file).load() != MAGIC:
                raise pickle.UnpicklingError("it begins with another number")
            _, _, tensors, names = (_Plain(file).load() for _ in range(4))
            type_of = {t.storage[2]: TYPES[t.storage[1]] for t in tensors.values()}
            storages = {}
            for name in names:
                dtype, size = np.dtype(type_of[name]), int.from_bytes(file.read(8), "little")
                storages[name] = np.frombuffer(file.read(size * dtype.itemsize), dtype, size)
        return {name: _placed(storages[tensor.storage[2]], tensor) for name, tensor in tensors.items()}
    except (pickle.UnpicklingError, ValueError, KeyError, IndexError, AttributeError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read as weights ({error})") from None


def _placed(storage: Array, tensor: _Tensor) -> Array:
    """Return a tensor in its shape; an IndexError where it reaches beyond its storage."""
    at = np.full(tensor.shape, tensor.first)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        at += (stride * np.arange(size)).reshape(-1, *[1] * (len(tensor.shape) - axis - 1))
    return storage[at]
