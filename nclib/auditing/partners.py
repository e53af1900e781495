"""Partners of captions by sparse partial transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Pairs

Array = NDArray[Any]
#: Largest scaling of the total mass: it grows without end where the edges cannot carry the mass.
LARGEST = 1e200
#: Nearest pictures of a caption, and captions of a picture, that an edge leads to.
EDGES = 16


@dataclass(frozen=True)
class Plan:
    r"""Sparse plan :math:`P_e = \exp(s_e / \epsilon + r_{row} + c_{col})` and how well it is solved.

    Parameters
    ----------
    mass : ndarray, (E,)
        Moved along every edge, in the order of the stored entries.
    rows, columns : ndarray, (n,), (m,)
        Potentials; the scalar one of the total mass is part of ``rows``.
    violation : float
        Largest of the excess of row sums, of column sums and the error of the total, over the mass.
    """

    mass: NDArray[np.float64]
    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    violation: float


def solve_plan(
    scores: csr_array,
    supply: Array,
    demand: Array,
    mass: float,
    reg: float,
    *,
    tol: float = 1e-4,
    max_iter: int = 500,
) -> Plan:
    r"""Solve entropic partial transport over a list of edges.

    Maximises :math:`\sum_e P_e s_e - \epsilon P_e (\log P_e - 1)` where row sums are at most ``supply``,
    column sums at most ``demand``, and exactly ``mass`` moves.

    Parameters
    ----------
    scores : sparse array, (n, m)
        Its stored entries are the edges, E in number.
    supply, demand : ndarray, (n,), (m,)
    mass : float
        Lowered to what all supplies or all demands with an edge can carry.
    reg : float
        :math:`\epsilon`, in the unit of the scores.
    tol : float
        Largest violation, relative to the mass.
    """
    # Ascent of the dual, one block after the other: row potentials, column potentials (both at most 0), and
    # the potential of the total; with K = exp(s / reg) these are scalings u, v <= 1 and w.
    n, m = scores.shape
    per_row, column = np.diff(scores.indptr), scores.indices
    reach = min(supply[per_row > 0].sum(), demand[np.bincount(column, minlength=m) > 0].sum())
    mass = min(mass, 0.999 * reach)
    if mass <= 0:
        return Plan(np.zeros(scores.nnz), np.full(n, -np.inf), np.zeros(m), 0.0)
    top = scores.data.max()
    kernel = csr_array((np.exp((scores.data - top) / np.float64(reg)), column, scores.indptr), (n, m))
    across = kernel.T
    u, v = np.ones(n), np.ones(m)
    by_row, violation = kernel @ v, np.inf
    for step in range(1, max_iter + 1):
        w = mass / max(u @ by_row, mass / LARGEST)
        u = np.minimum(1.0, supply / np.maximum(w * by_row, 1e-300))
        by_column = across @ u
        v = np.minimum(1.0, demand / np.maximum(w * by_column, 1e-300))
        by_row = kernel @ v
        if step % 10 == 0 or step == max_iter:
            left, arrived = w * u * by_row, w * v * by_column
            over = np.maximum(left - supply, 0).sum(), np.maximum(arrived - demand, 0).sum()
            violation = max(*over, abs(left.sum() - mass)) / mass
            if violation < tol:
                break
    kernel.data *= np.repeat(w * u, per_row)
    kernel.data *= v[column]
    log_u, log_v = np.log(np.maximum(u, 1e-300)), np.log(np.maximum(v, 1e-300))
    return Plan(kernel.data, log_u + (np.log(w) - top / reg), log_v, float(violation))


def candidate_edges(pairs: Pairs, neighbours: Neighbours) -> csr_array:
    """Return the cosines of the 16 nearest both ways, captions x pictures, (M, N), float32."""
    pictures, captions = neighbours.pictures[:, :EDGES], neighbours.captions[:, :EDGES]
    by_caption, by_picture = pictures >= 0, captions >= 0
    row = np.concatenate([by_caption.nonzero()[0], captions[by_picture]])
    column = np.concatenate([pictures[by_caption], by_picture.nonzero()[0]])
    of_captions = neighbours.picture_cosines[:, :EDGES][by_caption]
    of_pictures = neighbours.caption_cosines[:, :EDGES][by_picture]
    cosines = np.concatenate([of_captions, of_pictures])
    once = np.unique(row * pairs.n_images + column, return_index=True)[1]
    return csr_array((cosines[once], (row[once], column[once])), (len(pairs), pairs.n_images))


def temperature(neighbours: Neighbours) -> float:
    """Return a regularisation on the scale of the lists: half the median mean excess over the last cosine."""
    top = neighbours.picture_cosines
    known = np.isfinite(top)
    top = np.where(known, top, np.nan)[known.sum(1) > 1]
    return max(1e-3, float(np.median(np.nanmean(top, 1) - np.nanmin(top, 1))) / 2) if len(top) else 0.01


#: Captions less likely to be wrong take no part in the search; margin of a caption with one candidate.
TAKES_PART, LONE = 0.02, 20.0


@dataclass(frozen=True)
class Partners:
    """Plan between captions that may be wrong and the pictures near them.

    Parameters
    ----------
    image : ndarray of int64, (M,)
        Picture with the largest mass for every caption, -1 where there is none.
    best_mass, margin : ndarray, (M,)
        Part of the caption's free mass that goes there, and the log ratio to the second largest.
    plan : Plan
    """

    image: NDArray[np.int64]
    best_mass: NDArray[np.float64]
    margin: NDArray[np.float64]
    plan: Plan


def find_partners(
    pairs: Pairs,
    image_of: NDArray[np.int64],
    edges: csr_array,
    p_wrong: NDArray[np.float64],
    reg: float,
    *,
    one_to_one: bool = False,
) -> Partners:
    """Move the expected wrong captions to other pictures by sparse partial transport.

    A caption has the free mass P(wrong). A picture has as many free places as its captions have free mass;
    unless ``one_to_one``, every picture also has room for one caption more. All expected wrong captions
    move, along ``edges``, the cosines of :func:`candidate_edges`, other than the given pairs.
    """
    m = len(image_of)
    supply = np.where(np.isnan(p_wrong) | (p_wrong < TAKES_PART), 0.0, p_wrong)
    room = np.bincount(image_of, supply, pairs.n_images) + (0.0 if one_to_one else 1.0)
    if one_to_one:
        room += (np.bincount(image_of, minlength=pairs.n_images) == 0) & pairs.usable_images
    row, column = edges.tocoo().coords
    free = (supply[row] > 0) & (room[column] > 0) & (image_of[row] != column)
    row, column = row[free], column[free]
    scores = csr_array((edges.data[free], (row, column)), edges.shape)
    plan = solve_plan(scores, supply, room, float(supply.sum()), reg)
    # The two largest of every caption: edges in ascending order of mass within their caption.
    order = np.lexsort((plan.mass, row))
    ordered = row[order]
    last = np.flatnonzero(np.diff(ordered, append=-1))
    image, best, margin = np.full(m, -1), np.zeros(m), np.zeros(m)
    own, top = ordered[last], order[last]
    image[own], best[own] = column[top], plan.mass[top] / supply[own]
    second = (last > 0) & (ordered[last - 1] == own)
    log = np.log(np.maximum(plan.mass, 1e-300))
    margin[own] = np.where(second, log[top] - log[order[last - 1]], LONE).clip(0, LONE)
    return Partners(image, best, margin, plan)
