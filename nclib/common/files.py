"""Small helpers for files: atomic writes, checksums, and the folder for generated data."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def cache_folder() -> Path:
    """Return the folder for generated data: ``$NCLIB_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("NCLIB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("nclib", appauthor=False))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` so that the file appears whole or not at all."""
    write_bytes(path, text.encode("utf8"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` so that the file appears whole or not at all."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with open(part, "xb") as file:
            file.write(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def checksum(parts: Iterable[Any]) -> str:
    """Return the sha256 of strings, bytes and arrays (dtype and shape included), in the order given."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            little = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
            digest.update(f"{little.dtype.str}{little.shape}".encode())
            digest.update(little.reshape(-1).view(np.uint8).data)
        else:
            data = part if isinstance(part, bytes) else str(part).encode("utf8")
            digest.update(f"{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()
