"""Nearest neighbours, block by block, and proposed partners by sparse partial transport."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from tqdm import tqdm

from nclib.audit.pairs import Pairs, blocks
from nclib.common.files import digest, replacing

Array = NDArray[Any]
#: Rows of a tile of the matrix of cosines: 2048 x 8192 float32 are 64 MB.
ROWS, COLUMNS = 2048, 8192
#: Items up to which the search compares all; groups that every item searches of more; items per group and
#: rounds that place the groups; items whose lists are checked.
EXACT, PROBES, SAMPLE, ROUNDS, CHECKED = 50_000, 24, 64, 6, 256
#: Seconds between two states of the search on disk.
SAVE_EVERY = 60.0


@dataclass(frozen=True)
class Neighbours:
    """Nearest items of every item by cosine, nearest first; no item is its own neighbour.

    Every list has a row per item: indices (int32; -1 where there are fewer items than asked for) and cosines
    (float32; -inf there).

    Parameters
    ----------
    pictures, picture_cosines : ndarray, (M, k)
        Pictures nearest to every caption.
    captions, caption_cosines : ndarray, (N, k)
        Captions nearest to every picture.
    similar_images, similar_image_cosines : ndarray, (N, l)
        Pictures nearest to every picture.
    similar_captions, similar_caption_cosines : ndarray, (M, l)
        Captions nearest to every caption.
    recall : float
        Share of the true neighbours that the lists hold, on a sample; 1 where all items were compared.
    """

    pictures: Array
    picture_cosines: Array
    captions: Array
    caption_cosines: Array
    similar_images: Array
    similar_image_cosines: Array
    similar_captions: Array
    similar_caption_cosines: Array
    recall: float = field(default=1.0, kw_only=True)
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` gave when it was first called for this name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


def find_neighbours(
    pairs: Pairs,
    k: int = 32,
    similar: int = 8,
    *,
    work: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Neighbours:
    """Find the nearest neighbours of all pictures and captions, tile by tile.

    Up to 50,000 items are all compared. Of more, N in number, those looked through are placed in
    :math:`\\sqrt N` groups by spherical k-means, and every item is compared with the 24 groups whose centres
    are nearest: :math:`N \\sqrt N` comparisons in place of :math:`N^2`. A sample of exact searches gives the
    recall. Memory: the lists, 8 (M + N) (k + similar) bytes, and tiles of at most 64 MB.

    Parameters
    ----------
    pairs : Pairs
    k : int
        Pictures per caption and captions per picture.
    similar : int
        Pictures per picture and captions per caption.
    work : path, optional
        Folder for the lists so far, once a minute; called again with the same pairs, the search goes on.
    progress : bool
        Show a bar on a terminal.
    """
    if k < 1 or similar < 1:
        raise ValueError(f"neighbour lists must hold at least 1 item, got k={k} and similar={similar}")
    images, captions = (pairs.unit_images, pairs.usable_images), (pairs.unit_captions, pairs.usable)
    files: list[Path | None] = [None] * 3
    if work is not None:
        settings = str((k, similar, ROWS, EXACT, PROBES))
        key = digest([pairs.images, pairs.captions, pairs.usable, settings])[:16]
        files = [Path(work) / f"neighbours-{key}-{i}.npz" for i in range(3)]
    lists = (
        *_both_ways(captions, images, k, "neighbours", progress, files[0]),
        *_both_ways(images, None, similar, "similar pictures", progress, files[1]),
        *_both_ways(captions, None, similar, "similar captions", progress, files[2]),
    )
    large = max(len(pairs), pairs.n_images) > EXACT
    return Neighbours(*lists, recall=_recall(captions, images, lists[0]) if large else 1.0)


def _recall(left: Any, right: Any, found: Array) -> float:
    """Return which share of the exact neighbours of a sample of rows is in their lists."""
    rows = np.random.default_rng(0).permutation(np.flatnonzero(left[1]))[:CHECKED]
    best = _Best(len(rows), found.shape[1])
    every = np.arange(len(rows))
    for part in blocks(len(right[1]), COLUMNS):
        tile = left[0](rows) @ right[0](part).T
        tile[:, torch.from_numpy(~right[1][part])] = -torch.inf
        best.update(every, tile, np.arange(part.start, part.stop))
    exact = best.arrays()[0]
    held = (exact[:, :, None] == found[rows][:, None]).any(2) & (exact >= 0)
    return float(held.sum() / max(1, (exact >= 0).sum()))


def _both_ways(
    left: Any, right: Any, k: int, name: str, progress: bool, file: Path | None
) -> tuple[Array, ...]:
    """Return ids and cosines, (rows, k), of the nearest ``right`` of every ``left``, and the other way round.

    With ``right`` None, of the nearest other ``left``.
    """
    # Plan: tiles of the matrix of cosines, each made once, serve their rows and their columns; a list keeps
    # the best k so far. Among few items of one modality the matrix is symmetric: tiles on and above the
    # diagonal. Tiles of groups hold, of the columns, one group, and the rows that search it.
    own = right is None
    (rows_of, rows_ok), (cols_of, cols_ok) = left, left if own else right
    n, m = len(rows_ok), len(cols_ok)
    by_row = _Best(n, k)
    lists = [by_row] if own else [by_row, _Best(m, k)]
    grouped = max(n, m) > EXACT
    steps = _group_tiles(left, left if own else right) if grouped else _all_tiles(n, m, own)
    done = _resume(file, lists)
    saved = time.monotonic()
    with tqdm(
        total=len(steps), initial=done, desc=name, disable=None if progress else True, leave=False
    ) as bar:
        for step, tiles in enumerate(steps):
            if step < done:
                continue
            for a, b in tiles:
                tile = rows_of(a) @ cols_of(b).T
                tile.masked_fill_(torch.from_numpy(~(rows_ok[a][:, None] & cols_ok[b])), -torch.inf)
                if own:
                    tile.masked_fill_(torch.from_numpy(a[:, None] == b), -torch.inf)
                by_row.update(a, tile, b)
                # The lists of columns; of one modality only where the same tile does not come again.
                if not own or not (grouped or a[0] == b[0]):
                    lists[-1].update(b, tile.T, a)
            bar.update()
            if file is not None and (step + 1 == len(steps) or time.monotonic() - saved >= SAVE_EVERY):
                arrays = [array for one in lists for array in one.arrays()]
                with replacing(file) as out:
                    np.savez(out, np.array(step + 1), *arrays)
                saved = time.monotonic()
    return tuple(array for one in lists for array in one.arrays())


Tiles = list[list[tuple[Array, Array]]]


def _all_tiles(n: int, m: int, own: bool) -> Tiles:
    """Return the tiles, row block by row block, that cover a matrix, or its upper half."""
    columns = _parts(np.arange(m), ROWS if own else COLUMNS)
    return [[(a, b) for b in columns if not own or b[0] >= a[0]] for a in _parts(np.arange(n), ROWS)]


def _parts(rows: Array, size: int) -> list[Array]:
    return [rows[part] for part in blocks(len(rows), size)]


def _group_tiles(left: Any, right: Any) -> Tiles:
    """Return tiles, group by group, of the rows that search a group of the columns, and the group."""
    (rows_of, rows_ok), (cols_of, cols_ok) = left, right
    usable = np.flatnonzero(cols_ok)
    size = max(1, round(len(usable) ** 0.5))
    sample = np.random.default_rng(0).permutation(usable)[: SAMPLE * size]
    x = cols_of(np.sort(sample))
    centres = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:size]]
    for _ in range(ROUNDS):
        nearest = (x @ centres.T).argmax(1)
        total = torch.zeros_like(centres).index_add_(0, nearest, x)
        filled = total.any(1)
        centres[filled] = torch.nn.functional.normalize(total[filled])

    def near(of: Any, rows: Array, count: int) -> list[Array]:
        """Return the rows that have each centre among their ``count`` nearest."""
        found = np.concatenate(
            [(of(rows[part]) @ centres.T).topk(count, 1).indices.int().numpy() for part in blocks(len(rows))]
        )
        order = np.argsort(found.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(found.reshape(-1), minlength=size))[:-1]
        return np.split(rows[order // count], ends)

    searching = near(rows_of, np.flatnonzero(rows_ok), min(PROBES, size))
    members = near(cols_of, usable, 1)
    return [
        [(a, b) for a in _parts(own, ROWS) for b in _parts(group, COLUMNS)]
        for own, group in zip(searching, members, strict=True)
        if len(own) and len(group)
    ]


def _resume(file: Path | None, lists: list[_Best]) -> int:
    """Fill the lists from a file and return the number of rows that are done; 0 without a file."""
    if file is None or not file.is_file():
        return 0
    with np.load(file, allow_pickle=False) as saved:
        done, *arrays = (saved[f"arr_{i}"] for i in range(1 + 2 * len(lists)))
    for one, ids, cosines in zip(lists, arrays[::2], arrays[1::2], strict=True):
        one.ids, one.cosines = torch.from_numpy(ids), torch.from_numpy(cosines)
    return int(done)


class _Best:
    """The best ``k`` entries so far of every row."""

    def __init__(self, n: int, k: int) -> None:
        self.cosines = torch.full((n, k), -torch.inf)
        self.ids = torch.full((n, k), -1, dtype=torch.int32)

    def update(self, rows: Array, tile: Tensor, columns: Array) -> None:
        k = self.ids.shape[1]
        found = tile.topk(min(k, tile.shape[1]), dim=1)
        values = torch.cat([self.cosines[rows], found.values], 1)
        ids = torch.cat([self.ids[rows], torch.from_numpy(columns)[found.indices].int()], 1)
        best = values.topk(k, dim=1)
        self.cosines[rows] = best.values
        self.ids[rows] = ids.gather(1, best.indices).masked_fill(best.values == -torch.inf, -1)

    def arrays(self) -> tuple[Array, Array]:
        return self.ids.numpy(), self.cosines.numpy()


# ------------------------------------------------------------------------------ sparse partial transport


@dataclass(frozen=True)
class Plan:
    r"""Sparse plan :math:`P_e = \exp(s_e / \epsilon + r_{row} + c_{col})` and how well it is solved.

    Parameters
    ----------
    mass : ndarray, (E,)
        Moved along every edge.
    rows, columns : ndarray, (n,), (m,)
        Potentials; the scalar one of the total mass is part of ``rows``.
    violation : float
        Largest of the excess of row sums, of column sums and the error of the total, over the mass.
    gap : float
        Objective minus the bound from the potentials, over the mass and :math:`\epsilon`.
    iterations : int
    """

    mass: NDArray[np.float64]
    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    violation: float
    gap: float
    iterations: int


def solve_plan(
    row: Array,
    column: Array,
    value: Array,
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
    column sums at most ``demand``, and exactly ``mass`` moves: ``formulation="capped"`` of
    :func:`nclib.ot.partial_sinkhorn`, on edges in place of a matrix.

    Parameters
    ----------
    row, column : ndarray of int, (E,)
        Ends of the edges, each pair of ends once.
    value : ndarray, (E,)
        Score of every edge.
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
    n, m = len(supply), len(demand)
    kernel = np.exp((value - value.max()) / reg) if len(value) else np.zeros(0)
    reach = min(supply[np.unique(row)].sum(), demand[np.unique(column)].sum()) if len(value) else 0.0
    mass = min(mass, 0.999 * reach)
    u, v = np.ones(n), np.ones(m)
    w: Any = 1.0
    violation, step = np.inf, 0
    if mass <= 0:
        return Plan(np.zeros(len(row)), np.full(n, -np.inf), np.zeros(m), 0.0, 0.0, 0)
    for step in range(1, max_iter + 1):
        by_row = np.bincount(row, kernel * v[column], n)
        w = mass / (u @ by_row)
        u = np.minimum(1.0, supply / np.maximum(w * by_row, 1e-300))
        by_column = np.bincount(column, kernel * u[row], m)
        v = np.minimum(1.0, demand / np.maximum(w * by_column, 1e-300))
        if step % 10 == 0 or step == max_iter:
            moved = w * kernel * u[row] * v[column]
            over = np.maximum(np.bincount(row, moved, n) - supply, 0).sum()
            over_columns = np.maximum(np.bincount(column, moved, m) - demand, 0).sum()
            violation = max(over, over_columns, abs(moved.sum() - mass)) / mass
            if violation < tol:
                break
    moved = w * kernel * u[row] * v[column]
    log_u, log_v = np.log(np.maximum(u, 1e-300)), np.log(np.maximum(v, 1e-300))
    constant = np.log(w) - value.max() / reg
    # Objective and its upper bound, both over reg: the bound takes each constraint at its price.
    spent = moved[moved > 0]
    objective = (moved @ value) / reg - (spent * (np.log(spent) - 1)).sum()
    bound = moved.sum() - supply @ log_u - demand @ log_v - mass * constant
    return Plan(moved, log_u + constant, log_v, float(violation), float((bound - objective) / mass), step)


def candidate_edges(pairs: Pairs, neighbours: Neighbours, k: int = 16) -> tuple[Array, Array, Array]:
    """Return caption rows, picture rows and cosines of the ``k`` nearest both ways, (E,), no edge twice."""
    n = pairs.n_images
    keys, values = [], []
    for ids, cosines, by_caption in (
        (neighbours.pictures[:, :k], neighbours.picture_cosines[:, :k], True),
        (neighbours.captions[:, :k], neighbours.caption_cosines[:, :k], False),
    ):
        good = ids >= 0
        own = np.nonzero(good)[0]
        other = ids[good].astype(np.int64)
        keys.append(own * n + other if by_caption else other * n + own)
        values.append(cosines[good])
    key, first = np.unique(np.concatenate(keys), return_index=True)
    return key // n, key % n, np.concatenate(values)[first].astype(np.float64)


def temperature(neighbours: Neighbours) -> float:
    """Return a regularisation on the scale of the lists: half the median mean excess over the last cosine."""
    top = neighbours.picture_cosines
    known = np.isfinite(top)
    top = np.where(known, top, np.nan)[known.sum(1) > 1]
    return max(1e-3, float(np.median(np.nanmean(top, 1) - np.nanmin(top, 1))) / 2) if len(top) else 0.01


# ---------------------------------------------------------------------------------- proposed partners

#: Captions less likely to be wrong take no part in the search; margin of a caption with one candidate.
TAKES_PART, LONE = 0.02, 20.0


@dataclass(frozen=True)
class Partners:
    """Plan between captions that may be wrong and the pictures near them.

    Parameters
    ----------
    row, column, mass : ndarray, (E,)
        Caption, picture and the part of the caption's free mass on every edge.
    image : ndarray of int64, (M,)
        Picture with the largest mass for every caption, -1 where there is none.
    best_mass, margin : ndarray, (M,)
        Part of the caption's free mass that goes there, and the log ratio to the second largest.
    plan : Plan
    """

    row: Array
    column: Array
    mass: NDArray[np.float64]
    image: NDArray[np.int64]
    best_mass: NDArray[np.float64]
    margin: NDArray[np.float64]
    plan: Plan


def find_partners(
    pairs: Pairs,
    image_of: NDArray[np.int64],
    edges: tuple[Array, Array, Array],
    p_wrong: NDArray[np.float64],
    reg: float,
    *,
    one_to_one: bool = False,
) -> Partners:
    """Move the expected wrong captions to other pictures by sparse partial transport.

    A caption has the free mass P(wrong). A picture has as many free places as its captions have free mass;
    unless ``one_to_one``, every picture also has room for one caption more. All expected wrong captions
    move, along ``edges`` (captions, pictures, cosines) other than the given pairs.
    """
    m = len(image_of)
    supply = np.where(np.isnan(p_wrong) | (p_wrong < TAKES_PART), 0.0, p_wrong)
    room = np.bincount(image_of, supply, pairs.n_images) + (0.0 if one_to_one else 1.0)
    if one_to_one:
        room += (np.bincount(image_of, minlength=pairs.n_images) == 0) & pairs.usable_images
    row, column, value = edges
    free = (supply[row] > 0) & (room[column] > 0) & (image_of[row] != column)
    row, column, value = row[free], column[free], value[free]
    plan = solve_plan(row, column, value, supply, room, float(supply.sum()), reg)
    part = plan.mass / np.maximum(supply[row], TAKES_PART)
    # The two largest of every caption: edges in ascending order of mass within their caption.
    order = np.lexsort((plan.mass, row))
    ordered = row[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(row) else np.zeros(0, np.int64)
    image, best, margin = np.full(m, -1), np.zeros(m), np.zeros(m)
    own, top = ordered[last], order[last]
    image[own], best[own] = column[top], part[top]
    second = (last > 0) & (ordered[last - 1] == own)
    log = np.log(np.maximum(plan.mass, 1e-300))
    margin[own] = np.where(second, log[top] - log[order[last - 1]], LONE).clip(0, LONE)
    return Partners(row, column, part, image, best, margin, plan)


#: Fewest planted exchanges with a candidate that the probability of a partner is learnt from.
FEWEST = 20


def partner_probability(
    facts: Array, right: NDArray[np.bool_], weight: Array
) -> Callable[[Array], NDArray[np.float64]]:
    """Return P(the candidate is right), (Q,), as a function of facts about candidates, (Q, F).

    Logistic regression on planted exchanges; of few, 0; where all or none are right, the shrunk share.

    Parameters
    ----------
    facts : ndarray, (n, F)
    right : ndarray of bool, (n,)
    weight : ndarray, (n,)
        Of every exchange.
    """
    if weight.sum() < FEWEST:
        return lambda q: np.zeros(len(q))
    if right.all() or not right.any():
        return lambda q: np.full(len(q), (weight @ right + 1) / (weight.sum() + 2))
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(facts, right, logisticregression__sample_weight=weight)
    return lambda q: model.predict_proba(q)[:, 1] if len(q) else np.zeros(0)
