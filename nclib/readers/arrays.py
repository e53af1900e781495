"""Embeddings from ``.npy`` and ``.npz`` files, memory-mapped."""

from __future__ import annotations

import os
import sys
import zipfile
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_array, is_tensor
from nclib.common.npy import read_npy
from nclib.readers.listing import EMBEDDINGS, Hints, Listing, embeddings_in, text_of, unique_ids

Array = NDArray[Any]


def open_array(value: Any, name: str) -> Array:
    """Return embeddings (rows, D), memory-mapped where ``value`` is the path of a ``.npy`` file."""
    if isinstance(value, (str, PathLike)):
        path = Path(value).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"{name}: there is no file {path}")
        return _numbers(read_npy(path, mapped=True), f"{name}: {path}")
    return _numbers(np.asarray(value.detach().cpu().float() if is_tensor(value) else value), name)


def _numbers(array: Array, name: str) -> Array:
    check_array(name, array, "numbers", "rows", "D")
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def open_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file."""
    try:
        with zipfile.ZipFile(path) as whole:
            if (size := sum(info.file_size for info in whole.infolist())) > _memory() // 2:
                raise MemoryError(f"{size:,} bytes")
        with np.load(path, allow_pickle=False) as loaded:
            return dict(loaded)
    except MemoryError as error:
        raise ValueError(
            f"{path} does not fit into memory ({error}); save each array as .npy, which is read in place"
        ) from None
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz file ({error})") from error


def _memory() -> int:
    """Return the bytes of memory of this machine; a large number where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def is_array(source: Any) -> bool:
    """Whether a source is a file of arrays."""
    return isinstance(source, Path) and source.suffix in (".npy", ".npz") and source.is_file()


def read_arrays(source: Path, hints: Hints) -> Listing:
    """List the pairs of an .npz file, or of an .npy file with the captions in another."""
    more: dict[str, Array] = {}
    if source.suffix == ".npy":
        images = open_array(source, "images")
        if hints.text_emb is None:
            raise ValueError(f"{source} holds one array; give the embeddings of the captions as text_emb")
        captions = open_array(hints.text_emb, "text_emb")
    else:
        more = open_arrays(source)
        both = embeddings_in(more)
        if both is None:
            known = "; ".join(f"{i}, {c}" for i, c in EMBEDDINGS)
            raise ValueError(
                f"{source} holds {', '.join(more) or 'nothing'}; two arrays must be called {known}"
            )
        images, captions = (_numbers(array, f"{source}: embeddings") for array in both)
    m = len(captions)
    if "image_of" not in more and len(images) != m:
        raise ValueError(
            f"{source}: {len(images):,} pictures and {m:,} captions, so rows do not say what belongs "
            "together; add an array image_of, the picture row of every caption"
        )
    image_of = more.get("image_of", np.arange(m))
    check_array(f"{source}: image_of, the picture row of each caption,", image_of, "whole numbers", m)
    ids = [str(i) for i in more.get("ids", range(m))]
    texts, splits = ([*map(text_of, more[n])] if n in more else None for n in ("texts", "splits"))
    return Listing(
        unique_ids(ids, ids),
        image_of.astype(np.int64),
        texts,
        splits=splits,
        images=images,
        captions=captions,
    )
