"""Pictures, captions and pairs that occur several times, exactly or nearly."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Indices, Pairs, blocks
from nclib.auditing.share import FEWEST_OF_KIND
from nclib.auditing.wording import quoted

Array = NDArray[Any]
#: An exact duplicate is at most this far in cosine; a near one is this much nearer than the median neighbour.
EXACT, NEAR = 1e-5, 0.1
#: Pictures that one caption stands on before it counts as repeated: this many, and this share of all pairs. A
#: repeated picture has that many captions, and this many times those of the median picture.
REPEATED, REPEATED_SHARE, UNUSUAL = 5, 0.001, 3
#: Captions of one template, or versions of one placeholder: the last of the neighbours is this much nearer
#: than that of the median.
CROWDED = 0.3
#: Kinds of pairs, see :meth:`Copies.kind`.
KINDS = ("single", "repeated caption", "repeated picture")


@dataclass(frozen=True)
class Copies:
    """Groups of equal or nearly equal pictures and captions; the number of a group is its first member.

    Parameters
    ----------
    picture : ndarray of int64, (N,)
    caption : ndarray of int64, (M,)
    said : ndarray of int64, (M,)
        Captions of the same letters and digits; without texts, as ``caption``.
    times, claims : ndarray of int64, (M,)
        Pictures that the caption of the pair stands on, and captions that its picture has.
    count : ndarray of int64, (M,)
        Of pairs with the same picture and caption, their number at the first, and 0 at the others.
    repeated_caption, repeated_picture : ndarray of bool, (M,)
        Pairs whose caption stands on many pictures, or whose picture has many captions.
    usual_captions, usual_pictures : ndarray of bool, (M,) and (N,)
        False for those that are repeated, and for those of a template.
    least : int
        Pictures of a repeated caption, and captions of a repeated picture, at least.
    kinds : ndarray of int64, (M, 3), optional
        Kinds of pairs in groups, by the pair and what it repeats.
    """

    picture: Indices
    caption: Indices
    said: Indices
    times: Indices
    claims: Indices
    count: Indices
    repeated_caption: NDArray[np.bool_]
    repeated_picture: NDArray[np.bool_]
    usual_captions: NDArray[np.bool_]
    usual_pictures: NDArray[np.bool_]
    least: int
    kinds: Indices | None = None

    def kind(self, rows: Indices, of: Indices) -> Indices:
        """Return the kind of captions ``rows`` with pictures ``of``; each kind has a calibration of its own.

        A pair and its exchange have kinds for the same reason, so that each kind is compared with itself.
        """
        repeated = self.repeated(rows, of)
        return repeated if self.kinds is None else self.kinds[rows, repeated]

    def repeated(self, rows: Indices, of: Indices) -> Indices:
        """Return what captions ``rows`` with pictures ``of`` repeat, as an index into :data:`KINDS`."""
        return np.where(~self.usual_captions[rows], 1, np.where(~self.usual_pictures[of], 2, 0))

    def pair(self, rows: Indices, of: Indices) -> Indices:
        """Return one number for each different pair of a caption and a picture."""
        return self.caption[rows] * len(self.picture) + self.picture[of]


def find_copies(pairs: Pairs, neighbours: Neighbours) -> Copies:
    """Find equal and nearly equal pictures, captions and pairs.

    Pictures are the same when their embeddings are equal or at a tenth of the median distance to the nearest
    picture; captions when their texts have the same letters and digits, or as pictures are.
    """
    picture, crowded_pictures = _linked(
        pairs.images, neighbours.similar_images, neighbours.similar_image_cosines, pairs.usable_images
    )
    caption, crowded = _linked(
        pairs.captions, neighbours.similar_captions, neighbours.similar_caption_cosines, pairs.usable
    )
    said = caption
    if pairs.texts is not None:
        words = [re.sub(r"[\W_]+", " ", text.casefold()).strip() for text in pairs.texts]
        said = first_of(np.where([not w for w in words], np.arange(len(words)).astype(str), words))
        caption = joined(len(said), said, caption)
    of = picture[pairs.image_of]
    use = pairs.usable
    times, claims = (_different(*g, use) for g in ((said, of), (of, caption)))
    pair = pd.Series(caption * len(picture) + of).where(use)
    count = np.where(pair.duplicated() | ~use, 0, pair.groupby(pair).transform("size")).astype(np.int64)
    least = int(max(REPEATED, np.ceil(REPEATED_SHARE * len(pairs))))
    repeated_caption = use & (times >= least)
    repeated_picture = use & (claims >= max(least, UNUSUAL * float(np.median(claims[use]))))
    crowded_pictures[pairs.image_of[repeated_picture]] = True
    found = Copies(
        picture=picture,
        caption=caption,
        said=said,
        times=times,
        claims=claims,
        count=count,
        repeated_caption=repeated_caption,
        repeated_picture=repeated_picture,
        usual_captions=~(crowded | repeated_caption),
        usual_pictures=~crowded_pictures,
        least=least,
    )
    if pairs.group is None:
        return found
    # Kinds are numbered by group and by what they repeat; a rare one counts as the first of its group.
    kinds = len(KINDS) * pairs.group[:, None] + np.arange(len(KINDS))
    rows = np.flatnonzero(count)
    n = np.bincount(kinds[rows, found.repeated(rows, pairs.image_of[rows])], minlength=kinds.max() + 1)
    kinds = np.where(n[kinds] < FEWEST_OF_KIND, kinds[:, :1], kinds)
    return replace(found, kinds=np.unique(kinds, return_inverse=True)[1].reshape(kinds.shape))


def first_of(values: Any) -> Indices:
    """Return for every value the place where it first occurs."""
    group, _ = pd.factorize(pd.Series(values))
    return np.unique(group, return_index=True)[1][group]


def _different(group: Indices, other: Indices, use: NDArray[np.bool_]) -> Indices:
    """Return how many different ``other`` the group of every pair has."""
    return pd.Series(other).where(use).groupby(group).transform("nunique").to_numpy()


def joined(n: int, *links: Indices) -> Indices:
    """Return the first member of the group of every item, which is linked with ``links``."""
    start, end = np.tile(np.arange(n), len(links)), np.concatenate(links)
    graph = coo_array((np.ones(len(end), bool), (start, end)), (n, n))
    return first_of(connected_components(graph, directed=False)[1])


def _linked(
    rows: Array, ids: Array, cosines: Array, good: NDArray[np.bool_]
) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the first member of the group of equal or near rows, and which rows have near rows only."""
    # Equal rows have equal sums of their bits times fixed odd numbers, in wrapping whole numbers.
    odd = np.random.default_rng(0).integers(0, 2**63, rows.shape[1], dtype=np.uint64) | np.uint64(1)
    key, own = np.empty(len(rows), np.uint64), np.arange(len(rows))
    for part in blocks(len(rows)):
        bits = np.ascontiguousarray(rows[part], np.float32).view(np.uint32)
        key[part] = (bits * odd).sum(1)
    known = np.isfinite(cosines)
    some = known.any(1) & good
    distance = np.where(known, 1 - cosines, np.inf)
    reach = max(EXACT, NEAR * float(np.median(distance[some].min(1)))) if some.any() else EXACT
    links = np.where((distance <= reach) & (ids >= 0) & good[:, None], ids, own[:, None])
    group = np.where(good, joined(len(rows), first_of(key), *links.T), own)
    last = np.where(known, distance, 0).max(1, initial=0)
    crowded = some & known.all(1) & (last <= CROWDED * float(np.median(last[some]))) if some.any() else some
    return group, crowded


def duplicates(pairs: Pairs, copies: Copies) -> tuple[Array, Array]:
    """Return, per pair, the row of an earlier pair with the same picture or caption, (M,) each, -1 for none.

    Pairs of one and the same picture row do not count as the same picture; empty texts are not the same.
    """
    first = first_pair(pairs)
    image = np.where(copies.picture != np.arange(pairs.n_images), first[copies.picture], -1)
    image[~pairs.usable_images] = -1
    captions = np.where(copies.said != np.arange(len(pairs)), copies.said, -1)
    if pairs.texts is None:
        captions[~pairs.usable] = -1
    return image[pairs.image_of], captions


def first_pair(pairs: Pairs) -> Array:
    """Return the row of the first pair of every picture, (N,); -1 for pictures that no caption claims."""
    first = np.full(pairs.n_images, -1)
    first[pairs.image_of[::-1]] = np.arange(len(pairs))[::-1]
    return first


def repeats(pairs: Pairs, copies: Copies, p_wrong: Array) -> pd.DataFrame:
    """Return repeated captions and pictures, most frequent first, as :attr:`nclib.auditing.Audit.repeats`."""
    parts, (picture, caption) = [], pairs.words
    for kind, many, group, times, names in (
        (caption, copies.repeated_caption, copies.said, copies.times, pairs.texts),
        (picture, copies.repeated_picture, copies.picture[pairs.image_of], copies.claims, pairs.pictures),
    ):
        table = pd.DataFrame({"group": group, "times": times, "wrong": p_wrong})[many]
        found = table.groupby("group", as_index=False).agg({"times": "first", "wrong": "mean"})
        name = [str(g) if names is None else names[g] for g in found["group"]]
        parts.append(found.assign(kind=kind, name=name)[["kind", "name", "times", "wrong"]])
    return pd.concat(parts, ignore_index=True).sort_values("times", ascending=False, kind="stable")


def what_repeats(repeats: pd.DataFrame, copies: Copies, pairs: Pairs) -> list[str]:
    """Return sentences about repeated captions and pictures, and about copies of pairs."""
    found, (picture, caption) = [], pairs.words
    for kind, one, many, others in (
        (caption, f"{caption} stands on", f"{caption}s stand on", f"{picture}s"),
        (picture, f"{picture} has", f"{picture}s have", f"{caption}s"),
    ):
        mine = repeats[repeats["kind"] == kind]
        if len(mine):
            first = mine.iloc[0]
            said = f"1 {one} {first['times']:,} {others}: {quoted(first['name'])}"
            if len(mine) > 1:
                said = f"{len(mine):,} {many} {copies.least} {others} or more each. The first: {said}"
            if first["wrong"] == first["wrong"]:  # else there are no probabilities
                said += f"; about {first['wrong']:.0%} of its pairs are wrong"
            found.append(f"{said}.")
    if stored := int((copies.count[pairs.usable] == 0).sum()):
        said = f"{stored:,} pairs repeat {picture} and {caption} of an earlier pair"
        found.append(f"{said}; copies count as one.")
    return found
