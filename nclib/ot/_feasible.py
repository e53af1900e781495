"""How much mass can flow at all through the allowed entries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Integer capacity that stands for the total weight of a problem (the flow solver counts in int32).
CAPACITY = 2**29


def proportional_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Mass of one feasible flow: a lower bound of the largest mass, exact in the usual cases.

    Every row spreads its weight over its allowed columns in proportion to their weights, then overfull
    columns are scaled back.

    Parameters
    ----------
    mask : Tensor of bool, shape (..., n, m)
    p, q : Tensor of float64, shape (..., n) and (..., m)

    Returns
    -------
    Tensor, shape (...)
    """
    allowed = mask.to(p.dtype)
    reach = (allowed @ q.unsqueeze(-1)).squeeze(-1)  # (..., n)
    share = torch.where(reach > 0, p / reach, torch.zeros_like(reach))
    load = q * (share.unsqueeze(-2) @ allowed).squeeze(-2)  # (..., m)
    return torch.minimum(load, q).sum(-1)


def max_flow(mask: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Largest mass that can flow from rows to columns through the allowed entries (exact to 1e-7 or so).

    Runs on the CPU, one problem at a time; called only when the bound of :func:`proportional_flow` is too
    small to decide.
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
