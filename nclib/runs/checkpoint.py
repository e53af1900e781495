"""Checkpoints: tensors and plain data in one safetensors file, written atomically, loaded without pickle."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nclib.common import files
from nclib.common.files import replacing

_TENSOR, _MAP, _TUPLE = "__tensor__", "__map__", "__tuple__"


class DamagedError(ValueError):
    """A file is not a checkpoint, or was changed after it was written."""


def _split(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace the tensors of ``tree`` by references and collect them."""
    if isinstance(tree, Tensor):
        name, value = f"t{len(tensors)}", tree.detach().cpu().contiguous()
        # The library refuses tensors that share memory, as tied weights do.
        held = {other.untyped_storage().data_ptr() for other in tensors.values() if other.numel()}
        tensors[name] = value.clone() if value.untyped_storage().data_ptr() in held else value
        return {_TENSOR: name}
    if isinstance(tree, Mapping):
        return {_MAP: [[key, _split(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {_TUPLE: [_split(value, tensors) for value in tree]}
    if isinstance(tree, list):
        return [_split(value, tensors) for value in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"a checkpoint holds tensors and plain data, not {type(tree).__name__}")


def _join(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_join(value, tensors) for value in tree]
    if isinstance(tree, dict):
        if _TENSOR in tree:
            return tensors[tree[_TENSOR]]
        if _TUPLE in tree:
            return tuple(_join(value, tensors) for value in tree[_TUPLE])
        return {key: _join(value, tensors) for key, value in tree[_MAP]}
    return tree


def save(path: str | Path, tree: Mapping[str, Any]) -> None:
    """Write a nested dict of tensors on any device, numbers, text, lists and tuples, atomically.

    Raises
    ------
    TypeError
        When something else is in it, or a tensor of a type that the file format lacks.
    OSError
        When it cannot be written; what was there before is kept.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_split(tree, tensors))
    with replacing(path) as file:
        try:
            save_file(tensors, file.name, {"plain": plain, "digest": digest(tensors, plain)})
        except KeyError as error:
            raise TypeError(f"a checkpoint cannot hold tensors of type {error}") from error
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from error


def load(path: str | Path) -> dict[str, Any]:
    """Read what :func:`save` wrote, a dict; tensors come back on the CPU, bit for bit.

    Raises
    ------
    OSError
        When there is no such file, or it cannot be read.
    DamagedError
        When it is damaged or was not written by :func:`save`.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    open(path, "rb").close()  # of a file that cannot be opened the library says that it is missing
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if digest(tensors, facts["plain"]) != facts["digest"]:
            raise DamagedError("its content does not match its digest")
        result: dict[str, Any] = _join(json.loads(facts["plain"]), tensors)
    except (SafetensorError, KeyError, TypeError, DamagedError, json.JSONDecodeError) as error:
        raise DamagedError(f"{path} is not a readable checkpoint ({error})") from error
    return result


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to ``*.damaged`` and warn with the reason; the run makes its content again."""
    other = path.with_name(path.name + ".damaged")
    os.replace(path, other)
    warnings.warn(f"{reason}; it was renamed to {other.name} and is made again", UserWarning, stacklevel=2)


def digest(tensors: Mapping[str, Tensor], plain: str = "") -> str:
    """Return the SHA-256 digest of named tensors and a text: equal digests mean equal bits.

    Names, types and shapes of the tensors count too; their order does not.
    """
    parts: list[Any] = [plain]
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        parts.append(f"{name}{tuple(value.shape)}{value.dtype}")
        parts.append(value.reshape(-1).view(torch.uint8).numpy())
    return files.digest(parts)
