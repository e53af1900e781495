"""Category retrieval: mean average precision over class labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_array, check_choice, check_count, is_tensor
from nclib.evaluation.scores import Float, as_matrix, ascending, host

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LEVELS = 2**30 - 2**14  # steps of the scores' fixed point; with the relevance bit they fill 32 bits
OFF = 0.3  # keeps scores such as 0, 1/2 and 1, where rounding errors fall to both sides, inside a step
DIGITS = 13  # decimals in which equal scores agree
SORTED = 16  # rows sorted at once: they stay in the cache
BLOCK = 2048  # gallery items brought to float64 at once
MANY = 8  # more ties than this in a row, and the whole row is sorted again

Hits = NDArray[np.bool_]


def _kind(device: torch.device) -> torch.dtype:
    import torch

    return torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64


def norms(x: Any, name: str) -> NDArray[np.float64]:
    """Return the length of each row of what :func:`as_matrix` returned, (n,), at least 1e-12."""
    if is_tensor(x):
        lengths = x.to(_kind(x.device)).norm(dim=1).cpu().double().numpy()
    else:
        parts = (host(x[i : i + BLOCK]).astype(np.float64) for i in range(0, x.shape[0], BLOCK))
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.concatenate([np.sqrt(np.einsum("ij,ij->i", part, part)) for part in parts])
    if not np.isfinite(lengths).all():
        raise ValueError(f"{name} holds NaN or infinite values, or values too large to be normalised")
    return np.maximum(lengths, 1e-12)


def unit(x: Any, lengths: NDArray[np.float64], rows: slice) -> Float:
    """Return rows of unit length on the host, float64."""
    values: Float = host(x[rows]).astype(np.float64)
    values /= lengths[rows, None]
    return values


def classes(x: Any, n: int, name: str) -> NDArray[Any]:
    """Return the labels of n items on the host, (n,) or (n, C)."""
    labels = x.detach().cpu().numpy() if is_tensor(x) else np.asarray(x)
    check_array(name, labels, "whole numbers or booleans", n, *("n_classes",) * (labels.ndim == 2))
    return labels


def _words(labels: NDArray[Any]) -> NDArray[Any]:
    """Return several labels per item as bits, (words, n): a shared class is one AND."""
    kind, size = (np.uint32, 32) if labels.shape[1] <= 32 else (np.uint64, 64)
    places = np.arange(labels.shape[1]) % size
    bits = (labels != 0).astype(kind) << places.astype(kind)
    return np.ascontiguousarray(np.bitwise_or.reduceat(bits, np.arange(0, labels.shape[1], size), axis=1).T)


def _relevant(own: NDArray[Any], others: NDArray[Any]) -> Hits:
    """Return which items share a class with which queries: classes (n,), or bits (words, n)."""
    if others.ndim == 1:
        return np.equal(own[:, None], others)
    shared = own[0, :, None] & others[0]
    for mine, theirs in zip(own[1:], others[1:], strict=True):
        shared |= mine[:, None] & theirs
    return shared != 0


def _ranked(similarity: Float, relevant: Hits) -> Hits:
    """Return ``relevant`` in descending order of similarity, equal scores by position."""
    # Plan: 1. one sort of 32-bit integers replaces a sort of indices and a gather: the score in fixed point
    # (steps of 1e-9), relevance in the last bit, so that within a step the wrong items come first; 2. steps
    # that hold right items as well, which are rare, are ordered by the full scores, step by step, or the
    # whole row where there are many of them.
    steps = similarity * -LEVELS
    steps += OFF
    keys = steps.astype(np.int32)
    keys <<= 1
    keys |= relevant
    ordered = np.sort(keys, axis=1)
    hits = (ordered & 1).astype(np.bool_)
    flat = ordered.reshape(-1)
    row, place = np.divmod(np.flatnonzero((flat[1:] ^ flat[:-1]) == 1), ordered.shape[1])
    inside = place < ordered.shape[1] - 1  # not the last key of a row beside the first of the next
    row, place = row[inside], place[inside]
    many = np.bincount(row, minlength=len(keys)) > MANY
    again = np.flatnonzero(many)
    if again.size:
        order = ascending(-similarity[again].round(DIGITS))
        hits[again] = np.take_along_axis(relevant[again], order, 1)
    for r, p in zip(row[~many[row]], place[~many[row]], strict=True):
        tied = np.flatnonzero((keys[r] | 1) == ordered[r, p + 1])
        order = tied[np.argsort(-similarity[r, tied].round(DIGITS), kind="stable")]
        first = np.searchsorted(ordered[r], ordered[r, p])
        hits[r, first : first + len(tied)] = relevant[r, order]
    return hits


def _on_host(
    queries: Any, gallery: Any, lengths: tuple[Any, Any], ql: Any, gl: Any, k: int, chunk: int
) -> tuple[float, int]:
    """Sum of average precisions, and the number of queries that have a relevant item."""
    n = gallery.shape[0]
    inverse = 1.0 / np.arange(1, n + 1)
    nth = np.arange(1, n + 1, dtype=np.float64)
    scores = np.empty((min(chunk, queries.shape[0]), n))
    if gl.ndim == 2:
        ql, gl = _words(ql), _words(gl)
    total, answered = 0.0, 0
    for i in range(0, queries.shape[0], chunk):
        labels = ql[..., i : i + chunk]
        q = unit(queries, lengths[0], slice(i, i + chunk))
        for j in range(0, n, BLOCK):
            block = unit(gallery, lengths[1], slice(j, j + BLOCK))
            np.matmul(q, block.T, out=scores[: len(q), j : j + BLOCK])
        for j in range(0, len(q), SORTED):
            rows = slice(j, min(j + SORTED, len(q)))
            wanted = _relevant(labels[..., rows], gl)
            for hits in _ranked(scores[rows], wanted)[:, :k]:
                place = np.flatnonzero(hits)
                if place.size:
                    total += float(nth[: place.size] @ inverse[place]) / place.size
                    answered += 1
    return total, answered


def _on_device(
    queries: Tensor, gallery: Any, lengths: tuple[Any, Any], ql: Any, gl: Any, k: int, chunk: int
) -> tuple[float, int]:
    import torch

    device = queries.device
    kind = _kind(device)
    digits = DIGITS if kind == torch.float64 else 6

    def there(x: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.as_tensor(x).to(device, dtype)

    g = there(gallery, kind) / there(lengths[1], kind)[:, None]
    several = torch.float32 if gl.ndim == 2 else None  # counts of shared classes, by one product
    labels, others = there(ql, several), there(gl, several)
    rank = torch.arange(1, k + 1, device=device, dtype=kind)
    total, answered = torch.zeros((), device=device, dtype=kind), torch.zeros((), device=device)
    for i in range(0, len(queries), chunk):
        q = queries[i : i + chunk].to(kind) / there(lengths[0][i : i + chunk], kind)[:, None]
        scores = (q @ g.T).round(decimals=digits)  # (chunk, n)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]  # (chunk, k)
        own = labels[i : i + chunk]
        wanted = own[:, None] == others if others.ndim == 1 else own @ others.T > 0
        hits = wanted.gather(1, order).to(kind)
        n_hits = hits.sum(1)
        total += ((hits.cumsum(1) / rank * hits).sum(1) / n_hits.clamp_min(1)).sum()
        answered += (n_hits > 0).sum()
    return float(total), int(answered)


def mean_average_precision(
    queries: Any,
    gallery: Any,
    query_labels: Any,
    gallery_labels: Any,
    k: int | None = None,
    *,
    empty: str = "zero",
    chunk: int = 192,
) -> float:
    """Mean average precision of category retrieval by cosine similarity.

    ``AP = sum_{j <= k} rel_j precision(j) / sum_{j <= k} rel_j`` over the gallery in descending order, equal
    scores by position. Tensors on an accelerator are ranked there, everything else on the host; the matrix of
    all scores never exists.

    Parameters
    ----------
    queries, gallery : Tensor or ndarray, (n_q, d) and (n_g, d)
        Embeddings, normalised here.
    query_labels, gallery_labels : array of int, (n_q,) and (n_g,), or (n_q, C) and (n_g, C)
        Classes; or zeros and ones, where items are relevant that share a class.
    k : int >= 1, optional
        Length of the ranking; the whole gallery ("mAP@all") unless given.
    empty : {"zero", "skip"}
        A query without any relevant item in the ranking counts as 0 (the rule for single labels), or is
        left out (the field's rule for several labels).
    chunk : int >= 1
        Queries per block; memory is about ``8 * chunk * n_g`` bytes on the host.

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError, TypeError
        If shapes or labels do not fit, an embedding is not finite, or an option is out of range.

    Examples
    --------
    >>> from nclib.evaluation import mean_average_precision
    >>> queries, gallery = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.1], [0.2, 1.0], [0.9, 0.5]]
    >>> round(mean_average_precision(queries, gallery, [0, 1], [0, 1, 1]), 4)
    1.0
    """
    q, g = as_matrix(queries, "queries"), as_matrix(gallery, "gallery")
    lengths = norms(q, "queries"), norms(g, "gallery")
    if q.shape[1] != g.shape[1]:
        raise ValueError(f"queries have {q.shape[1]} dimensions and gallery {g.shape[1]}; they must agree")
    ql = classes(query_labels, q.shape[0], "query_labels")
    gl = classes(gallery_labels, g.shape[0], "gallery_labels")
    if ql.shape[1:] != gl.shape[1:]:
        raise ValueError(f"query_labels and gallery_labels differ in form: {ql.shape} and {gl.shape}")
    check_choice("empty", empty, ("zero", "skip"))
    check_count("chunk", chunk)
    length = min(g.shape[0] if k is None else check_count("k", k), g.shape[0])
    if is_tensor(q):  # as_matrix leaves a tensor only where it lies on an accelerator
        total, answered = _on_device(q, g, lengths, ql, gl, length, chunk)
    else:
        total, answered = _on_host(q, g, lengths, ql, gl, length, chunk)
    asked = q.shape[0] if empty == "zero" else answered
    if asked == 0:
        raise ValueError("no query has a relevant item in the gallery, so there is nothing to average")
    return total / asked
