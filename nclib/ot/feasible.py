"""Feasibility: the largest mass that can flow through the allowed entries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Integer capacity of the total weight of a problem (the flow solver counts in int32).
CAPACITY = 2**29


def crowded_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Lower bound of the largest mass from the number of forbidden entries alone; tight for dense masks.

    A cut that separates rows A from columns B needs every entry of A x B to be forbidden, so B is no larger
    than the fullest row of forbidden entries and A no larger than the fullest column.

    Parameters
    ----------
    mask : Tensor of bool, shape (..., n, m)
    p, q : Tensor of float64, shape (..., n) and (..., m)

    Returns
    -------
    Tensor, shape (...)
    """
    if mask.ndim == 2 and mask.device.type == "cpu":
        # once per training step: NumPy takes a third of the time, and products are quicker than counting
        allowed = mask.numpy().astype(np.float32)
        n, m = allowed.shape
        with np.errstate(all="ignore"):  # BLAS can raise flags for what it reads past the end of a row
            in_row = torch.tensor(m - (allowed @ np.ones(m, np.float32)).min())
            in_col = torch.tensor(n - (np.ones(n, np.float32) @ allowed).min())
    else:
        in_row, in_col = (~mask).sum(-1).amax(-1), (~mask).sum(-2).amax(-1)
    total_p, total_q = p.sum(-1), q.sum(-1)
    cut = total_p + total_q - in_col * p.amax(-1) - in_row * q.amax(-1)
    return torch.minimum(torch.minimum(total_p, total_q), cut)


def proportional_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Mass of one feasible flow: a lower bound of the largest mass.

    Every row spreads its weight over its allowed columns in proportion to their weights, then overfull
    columns are scaled back.

    Parameters
    ----------
    mask : Tensor of bool, shape (..., n, m)
        True where transport is allowed.
    p, q : Tensor of float64, shape (..., n) and (..., m)
        Weights of rows and columns, not negative.

    Returns
    -------
    Tensor of float64, shape (...)
    """
    allowed = mask.to(p.dtype)
    reach = (allowed @ q.unsqueeze(-1)).squeeze(-1)  # (..., n)
    share = torch.where(reach > 0, p / reach, 0.0)
    load = q * (share.unsqueeze(-2) @ allowed).squeeze(-2)  # (..., m)
    return torch.minimum(load, q).sum(-1)


def reachable(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Upper bound of the largest mass: the weight of the rows (columns) with any useful entry.

    Parameters
    ----------
    mask : Tensor of bool, broadcastable to (..., n, m)
        True where transport is allowed.
    p, q : Tensor, shape (..., n) and (..., m)
        Weights of rows and columns, not negative.

    Returns
    -------
    Tensor, shape (...)
    """
    used = mask & useful(p, q)
    return torch.minimum((p * used.any(-1)).sum(-1), (q * used.any(-2)).sum(-1))


def useful(p: Tensor, q: Tensor) -> Tensor:
    """Entries (..., n, m) whose row and column both have weight.

    Parameters
    ----------
    p, q : Tensor, shape (..., n) and (..., m)
        Weights of rows and columns, not negative.

    Returns
    -------
    Tensor of bool, shape (..., n, m)
    """
    return (p > 0).unsqueeze(-1) & (q > 0).unsqueeze(-2)


def max_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Largest mass that can flow from rows to columns through the allowed entries.

    Parameters
    ----------
    mask : Tensor of bool, shape (..., n, m)
        True where transport is allowed.
    p, q : Tensor, shape (..., n) and (..., m)
        Weights of rows and columns, not negative.

    Returns
    -------
    Tensor of float64, shape (...)
        Exact to about 1e-7 of the larger total: integer capacities, one problem at a time on the CPU.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n, m = mask.shape[-2:]
    host = mask.reshape(-1, n, m).cpu().numpy()
    rows, cols = p.reshape(-1, n).cpu().numpy(), q.reshape(-1, m).cpu().numpy()
    out = np.zeros(len(host))
    for k, (allowed, pk, qk) in enumerate(zip(host, rows, cols, strict=True)):
        unit = max(pk.sum(), qk.sum()) / CAPACITY
        if unit == 0:
            continue
        graph = np.zeros((n + m + 2, n + m + 2), np.int32)  # source, rows, columns, sink
        graph[0, 1 : n + 1] = np.rint(pk / unit)
        graph[1 : n + 1, n + 1 : -1] = np.where(allowed, CAPACITY, 0)
        graph[n + 1 : -1, -1] = np.rint(qk / unit)
        out[k] = maximum_flow(csr_array(graph), 0, n + m + 1).flow_value * unit
    return torch.as_tensor(out, device=p.device).reshape(p.shape[:-1])
