"""Checkpoints as tensors and plain data: one safetensors file, written atomically, loaded without pickle."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Chunk = bytes | memoryview
KINDS = {  # names of the file format
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TENSOR, _MAP, _TUPLE = "__tensor__", "__map__", "__tuple__"


class DamagedError(ValueError):
    """A file is not a checkpoint, or not as it was written."""


def _split(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace the tensors of ``tree`` by references and collect them."""
    if isinstance(tree, Tensor):
        if tree.dtype not in KINDS:
            raise TypeError(f"a checkpoint cannot hold tensors of {tree.dtype}")
        name = f"t{len(tensors)}"
        tensors[name] = tree.detach().cpu().contiguous()
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


def _chunks(tensors: Mapping[str, Tensor], plain: str) -> Iterator[Chunk]:
    """Yield the bytes of a safetensors file, tensors from where they lie: the library copies all of them."""
    # Large elements first, as the library does: every tensor then starts at a multiple of its element.
    order = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    parts = [value.reshape(-1).view(torch.uint8).numpy().data for _, value in order]
    header: dict[str, Any] = {"__metadata__": {"plain": plain, "crc32": _sum(plain, parts)}}
    end = 0
    for name, value in order:
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    yield from parts


def _sum(plain: str, parts: Iterable[Chunk]) -> str:
    """Return a checksum of everything but the places of the tensors, which the format checks itself."""
    crc = zlib.crc32(plain.encode())
    for part in parts:
        crc = zlib.crc32(part, crc)
    return f"{crc:08x}"


def write_atomically(path: Path, data: bytes | Iterable[Chunk]) -> None:
    """Write ``data`` so that ``path`` holds either the old content or the new, whatever happens.

    Raises
    ------
    OSError
        When it cannot be written, on a full disk for example; ``path`` is then as before.
    """
    part = path.with_name(path.name + f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as handle:
            handle.writelines([data] if isinstance(data, bytes) else data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, path)
    except OSError as error:
        reason = f"{error.strerror}; what was there before is kept. Make room or choose another place"
        raise OSError(error.errno, reason, str(path)) from error
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def save(path: str | Path, tree: Mapping[str, Any]) -> None:
    """Write a nested dict of tensors, numbers, text, lists and tuples.

    Raises
    ------
    TypeError
        When something else is in it.
    """
    tensors: dict[str, Tensor] = {}
    plain = _split(tree, tensors)
    write_atomically(Path(path), _chunks(tensors, json.dumps(plain)))


def load(path: str | Path) -> dict[str, Any]:
    """Read what :func:`save` wrote; tensors come back on the CPU, bit for bit.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    OSError
        When there is one that cannot be read.
    DamagedError
        When the file is damaged or was not written by :func:`save`; it is a ValueError.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        open(path, "rb").close()  # the library says of every file that it cannot open that there is none
    except FileNotFoundError:
        raise FileNotFoundError(f"no checkpoint at {path}") from None
    except OSError as error:
        reason = f"{error.strerror}; this checkpoint cannot be read. Make it readable, or take another out"
        raise OSError(error.errno, reason, str(path)) from error
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        with open(path, "rb") as raw:
            raw.seek(8 + int.from_bytes(raw.read(8), "little"))
            found = _sum(facts["plain"], iter(lambda: raw.read(1 << 24), b""))
        if found != facts["crc32"]:
            raise DamagedError("its content does not match its checksum")
        result: dict[str, Any] = _join(json.loads(facts["plain"]), tensors)
    except (SafetensorError, KeyError, TypeError, DamagedError, json.JSONDecodeError) as error:
        raise DamagedError(
            f"{path} is not a readable checkpoint ({error}); delete it to start anew"
        ) from error
    return result


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to ``*.damaged`` and warn, so that nothing is lost and what it held is remade."""
    other = path.with_name(path.name + ".damaged")
    os.replace(path, other)
    warnings.warn(f"{reason}; it was renamed to {other.name} and is made again", UserWarning, stacklevel=2)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a short SHA-256 of named tensors: equal digests mean equal bits."""
    import hashlib

    h = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().to("cpu").contiguous()
        h.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        h.update(value.view(torch.uint8).numpy().tobytes() if value.ndim else str(value).encode())
    return h.hexdigest()[:16]
