"""The audit, step by step: neighbours, scores, probabilities, partners, patterns, and the table of all."""

from __future__ import annotations

import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from nclib.auditing import export, report
from nclib.auditing.belief import WRONG_FROM, Belief, believe, first_share
from nclib.auditing.copies import duplicates, repeats, what_repeats
from nclib.auditing.embed import read_pairs
from nclib.auditing.exchanges import draw_queries
from nclib.auditing.neighbours import Neighbours, find_neighbours
from nclib.auditing.pairs import Pairs, from_arrays
from nclib.auditing.patterns import find_patterns, in_runs
from nclib.auditing.proposals import PROPOSED_FROM, Proposals, propose
from nclib.auditing.result import Findings, ranked, threshold_costs
from nclib.auditing.scores import SCORES, Context, with_random
from nclib.auditing.within import grouped
from nclib.common.checks import check, check_choice, check_count
from nclib.common.options import Rule, did_you_mean
from nclib.readers import list_pairs

Array = NDArray[Any]
#: Shortest caption, in words, that is not called very short; longest neighbour list; pairs from which a first
#: answer is given before the neighbours are searched.
SHORT, LONGEST, SOON = 2, 4096, 5000


class Audit(Findings):
    """Result of :func:`nclib.audit`: findings with their page and files.

    A class of its own, as imports run one way: page and files are written by modules that know the findings.
    """

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the share, and the first suspects."""
        return report.notebook_view(self)

    def summary(self) -> str:
        """Return what the audit found in a few lines, as the command prints it."""
        return report.summary(self)

    def report(self, folder: str | Path, again: str = "") -> Path:
        """Write the files of :meth:`save` and a page, and return the page's path.

        ``again`` is the command for the page to show that audits the pairs again with ``checked.csv``.
        """
        return report.write_report(self, self.save(folder), again)

    def save(self, folder: str | Path) -> Path:
        """Write the table and its facts, as :func:`nclib.auditing.export.save` does."""
        return export.save(self, Path(folder))

    def keep(self, folder: str | Path, kind: str = "parquet") -> Path:
        """Write the pairs that are kept, as :func:`nclib.auditing.export.write_kept` does."""
        return export.write_kept(self, folder, check_choice("kind", kind, tuple(export.KINDS)))

    def select(self, dataset: Any) -> Any:
        """Return the rows of the data set (of ``datasets``) that was audited, without those judged wrong."""
        return export.kept_rows(self, dataset)


def audit(
    source: Any = None,
    captions: Any = None,
    *,
    images: Any = None,
    image_of: Any = None,
    ids: Any = None,
    texts: Any = None,
    pictures: Any = None,
    score: str = "auto",
    neighbours: int | Neighbours = 32,
    seed: int = 0,
    labels: Any = None,
    by: Any = None,
    one_to_one: bool = False,
    work: str | Path | None = None,
    progress: bool = True,
    **reader: Any,
) -> Audit:
    """Audit pairs of pictures and captions: which are wrong, how many, and what belongs together.

    Parameters
    ----------
    source : Pairs, path, DataFrame or data set, optional
        What :func:`nclib.auditing.embed.read_pairs` reads; in place of arrays. Beside ``captions`` it is
        ``images``, so that ``audit(images, captions)`` takes two arrays.
    images, captions : array, tensor or path of a ``.npy`` file, (N, D) and (M, D)
        Embeddings of one model; a path is memory-mapped. Beside a table as ``source``, ``images`` is the
        folder of its pictures.
    image_of : array of int, (M,), optional
        Row of the picture that each caption claims. Needed unless there are as many pictures as captions.
    ids, texts : sequence, (M,), optional
        Names and texts of the pairs.
    pictures : sequence, (N,), optional
        Paths or URLs of the pictures.
    score : str
        One of :data:`nclib.auditing.SCORES`, or "auto": the score that tells given from exchanged pairs
        best, by the area under the ROC curve.
    neighbours : int or Neighbours
        Length of the neighbour lists, or lists that were found elsewhere, by an index of your own.
    seed : int
        Of exchanges, bootstrap and, without embeddings, of training; at least 0.
    labels : DataFrame, path or mapping, optional
        As in :meth:`Audit.tell`.
    by : str or sequence, (M,), optional
        Column of the source, such as a language, or a value for each pair: the pairs of each value have
        probabilities and a share of their own, in :attr:`Audit.by`.
    one_to_one : bool
        A picture takes no more captions than it has wrong ones (in the search for partners).
    work : path, optional
        Folder that keeps embeddings and finished neighbour blocks, so that a stopped audit continues.
    progress : bool
        Show bars on a terminal, and print what is trained and, of 5,000 pairs and more, a first share of
        wrong pairs before the neighbours are searched.
    **reader
        Options of the reader.

    Returns
    -------
    Audit

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        When inputs do not fit together; the message says what to do.

    Examples
    --------
    >>> import numpy as np, nclib
    >>> rng = np.random.default_rng(0)
    >>> images = rng.normal(size=(200, 16))
    >>> captions = images + 0.3 * rng.normal(size=(200, 16))
    >>> captions[[3, 4]] = captions[[4, 3]]
    >>> audit = nclib.audit(images=images, captions=captions, progress=False)
    >>> audit.table.sort_values("rank")["id"].head(2).tolist()
    ['3', '4']
    """
    if score != "auto" and score not in SCORES:
        raise ValueError(
            f"score={score!r}: must be auto, {', '.join(SCORES)}{did_you_mean(score, SCORES) or ''}"
        )
    check_count("seed", seed, low=0)
    check("one_to_one", one_to_one, Rule(bool))
    if not isinstance(neighbours, Neighbours):
        check_count("neighbours", neighbours)
    if captions is not None and images is None:
        source, images = None, source
    arrays = {"captions": captions, "image_of": image_of, "ids": ids, "texts": texts, "pictures": pictures}
    if isinstance(source, Pairs):
        arrays["images"] = images
    _check_read(source, reader, [name for name, value in arrays.items() if value is not None])
    if isinstance(source, Pairs):
        pairs = source
    elif source is not None:
        reader = {"folder": images, **reader}
        pairs = read_pairs(source, seed=seed, work=work, progress=progress, **reader)
    elif images is None or captions is None:
        raise ValueError(
            "give images= and captions= (arrays or .npy files), or a table, folder or data set first"
        )
    else:
        pairs = from_arrays(images, captions, image_of, ids, texts, pictures)
    groups = None if by is None else grouped(pairs, by)
    if groups is not None:
        pairs = replace(pairs, group=groups.code)
    random = with_random(pairs)
    if progress and len(pairs) >= SOON and (share := first_share(pairs, random, seed)).value >= 0:
        tqdm.write(f"first answer: {share} of {len(pairs):,} pairs are wrong; now the neighbours", sys.stderr)
    if isinstance(neighbours, Neighbours):
        near = neighbours.check(pairs)
    else:
        near = find_neighbours(pairs, min(neighbours, LONGEST), work=work, progress=progress)
    context, rng = Context(pairs, near, random), np.random.default_rng(seed)
    belief = believe(score, context, draw_queries(context, rng), seed).among_alike(groups)
    proposals = propose(belief, one_to_one, rng)
    found = find_patterns(belief, proposals)
    belief = belief.in_order(in_runs(pairs, found))
    table, repeated = _table(belief, proposals, found), repeats(pairs, context.copies, belief.ends[0])
    result = Audit(
        belief=belief,
        settings={
            "score": score,
            "neighbours": near.pictures.shape[1] if neighbours is near else neighbours,
            "one_to_one": one_to_one,
            "seed": seed,
            "auroc_on_exchanged": belief.scored.auroc,
            "repeated_from": context.copies.least,
            "partner_least": PROPOSED_FROM,
            "partner_accuracy_on_planted": proposals.accuracy,
            "neighbour_recall": near.recall,
            "plan_violation": proposals.plan.plan.violation,
        },
        table=table,
        curves={
            **_curves(*belief.scored.values[:3]),
            "threshold": threshold_costs(table["p_wrong"]),
            "reliability": belief.reliability,
        },
        patterns=found,
        proposed=proposals.image,
        found=what_repeats(repeated, context.copies, pairs),
        repeats=repeated,
        groups=[] if groups is None else groups.names,
    )
    return result if labels is None else result.tell(labels)


def _check_read(source: Any, reader: dict[str, Any], arrays: list[str]) -> None:
    """Raise a TypeError where the call has keywords that nothing would read."""
    own = [name for name in signature(audit).parameters if name != "reader"]
    read = [] if isinstance(source, Pairs) else [*signature(list_pairs).parameters, "model", "device"]
    for name in reader:
        if name not in (*read, *own):
            hint = did_you_mean(name, [*own, *read])
            raise TypeError(f"{name}= is not an option of an audit{hint}; see help(nclib.audit)")
    unread, beside = (arrays, "a source") if source is not None else (list(reader), "arrays")
    if unread:
        raise TypeError(f"{', '.join(f'{name}=' for name in unread)}: not read beside {beside}; leave it out")


def _table(belief: Belief, proposals: Proposals, found: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the table of all pairs, with the source's own columns after ours."""
    pairs, copies = belief.pairs, belief.context.copies
    pictures = range(pairs.n_images) if pairs.pictures is None else pairs.pictures
    names = np.array([*pairs.ids, ""], dtype=object)
    same_image, same_caption = duplicates(pairs, copies)
    table = pd.DataFrame(
        {
            "id": pairs.ids,
            "image": np.array([str(i) for i in pictures], dtype=object)[pairs.image_of],
            "caption": pairs.texts if pairs.texts is not None else "",
            "score": belief.score,
            **belief.columns,
            "rank": ranked(belief.ends[0], belief.score),
            "reason": reasons(belief, same_image >= 0, proposals.image >= 0, found),
            **proposals.columns(pairs),
            "image_duplicate_of": names[same_image],
            "caption_duplicate_of": names[same_caption],
        }
    )
    if pairs.columns is None:
        return table
    own = pairs.columns.rename(columns=lambda name: f"given_{name}" if name in table else name)
    return table.join(own.reset_index(drop=True))


def reasons(
    belief: Belief, copied: NDArray[np.bool_], placed: NDArray[np.bool_], found: list[dict[str, Any]]
) -> Array:
    """Return why a pair is suspect, or cannot be judged, in words, (M,); empty for the others.

    What is said of a suspect continues "The caption ..."; what stands in brackets is said of one pair.

    Parameters
    ----------
    belief : Belief
    copied, placed : ndarray of bool, (M,)
        Whether the picture stands in an earlier pair, and whether another picture is proposed.
    found : list of dict
        Of :func:`nclib.auditing.patterns.find_patterns`.
    """
    # Later ones over earlier ones.
    pairs, copies, suspect = belief.pairs, belief.context.copies, belief.ends[0] >= WRONG_FROM
    picture, caption = pairs.words
    low, lost = f"fits its {picture} badly", f"fits no {picture} here"
    reason = np.where(suspect, low, "").astype(object)
    if belief.inside is not None:
        reason[belief.by_value_only] = f"fits no better than another {caption} (of {belief.inside.of})"
    reason[suspect & copied] = f"is another one for a {picture} of an earlier pair"
    reason[placed] = f"fits another {picture} better"
    for one in found:
        rows = [pairs.row_of[name] for name in one["ids"]]
        if one["kind"] == "swap":
            reason[rows] = [f"seems to be exchanged (with that of {name})" for name in reversed(one["ids"])]
        elif one["kind"] == "shift":
            reason[rows] = f"lies in a run of shifted rows (by {one['by']:+d} {one['unit']})"
        else:
            reason[rows] = lost
    if pairs.texts is not None:
        words = np.array([len(text.split()) for text in pairs.texts])
        reason[words < SHORT] = "is very short"
    plain = np.isin(reason, ("", low, lost))
    for said, many, times in (
        (f"stands on many {picture}s", plain & copies.repeated_caption, copies.times),
        (f"has a {picture} with many {caption}s", plain & copies.repeated_picture, copies.claims),
    ):
        reason[many] = [f"{said} ({n:,})" for n in times[many]]
    if belief.reason:
        reason[pairs.usable] = belief.reason
    for row, text in pairs.problems.items():
        reason[row] = text
    return reason


def _curves(given: Array, exchanged: Array, near: Array) -> dict[str, Any]:
    every = np.concatenate([given, exchanged, near])
    low, high = (float(x) for x in np.quantile(every, [0.001, 0.999]))
    # Few pairs fill few bins, in which chance shows less.
    bins = int(np.clip(2 * np.sqrt(len(given)), 10, 60))
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    kinds = (("given", given), ("exchanged", exchanged), ("near", near))
    # Scores beyond the edges count in the outer bins.
    width = edges[1] - edges[0]
    return {
        "edges": edges,
        **{k: np.histogram(v.clip(*edges[[0, -1]]), edges)[0] / (max(len(v), 1) * width) for k, v in kinds},
    }
