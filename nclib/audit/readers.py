"""Pairs to audit from what people have, with embeddings; the layouts are in :mod:`nclib.data.readers`."""

from __future__ import annotations

from os import PathLike
from typing import Any

from nclib.audit.embed import embed
from nclib.audit.pairs import Pairs
from nclib.data.readers import list_pairs


def read_pairs(
    source: Any,
    *,
    folder: str | PathLike[str] | None = None,
    model: str | PathLike[str] | None = None,
    image_emb: Any = None,
    text_emb: Any = None,
    split: str | None = None,
    work: str | PathLike[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
) -> Pairs:
    """Read pairs, and embed them where they have no embeddings.

    Parameters
    ----------
    source, folder, split
        As for :func:`nclib.data.readers.list_pairs`, as are the errors.
    model : path or str, optional
        CLIP or SigLIP in the layout of ``transformers``: a folder, or a name in the hub's cache. It replaces
        embeddings that the source has.
    image_emb, text_emb
        As for :func:`nclib.data.readers.list_pairs`. ``image_emb`` alone are features on which a small model
        is trained.
    work : path, optional
        Folder for embeddings, from which a stopped command continues; by default in nclib's cache.
    seed : int
        Of training, where a model is trained.
    device : str
        Where networks run.
    progress : bool
        Print what is done.

    Returns
    -------
    Pairs
    """
    listing = list_pairs(source, folder=folder, image_emb=image_emb, text_emb=text_emb, split=split)
    return embed(listing, model=model, work=work, seed=seed, device=device, progress=progress)
