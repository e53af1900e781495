"""Audit of pairs: the call, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.audit import export, patterns
from nclib.audit.calibration import Calibration, Share, anchored, calibrate, relabelled
from nclib.audit.neighbours import Neighbours, find_neighbours
from nclib.audit.pairs import Pairs, fold_of, from_arrays
from nclib.audit.partners import (
    Partners,
    candidate_edges,
    find_partners,
    partner_probability,
    temperature,
)
from nclib.audit.scores import PARTS, SCORES, combination, exchange, parts_of
from nclib.common.options import did_you_mean
from nclib.noise import auc, detection
from nclib.noise import calibration as compare

Array = NDArray[Any]
COLUMNS = (
    *("id", "image", "caption", "score", "p_wrong", "p_low", "p_high", "rank", "reason"),
    *("partner_id", "partner_score", "partner_margin", "partner_mass", "partner_p"),
    *("image_duplicate_of", "caption_duplicate_of"),
)
ASSUMPTION = (
    "The probabilities hold if wrong pairs are like captions exchanged at random among these pairs. Wrong "
    "captions that are related to the picture get too low a probability, and make the share too low."
)
TOGETHER = (
    "The captions of a picture are wrong together here. The share is read off the cosines alone: other "
    "scores ask other pairs too, and these are wrong in another way than exchanged captions are."
)
#: Exchanged pairs: at least (more draws for few pairs, at most 10), at most; planted share, most planted.
EXCHANGED, MOST_EXCHANGED, PLANTED, MOST_PLANTED = 5000, 200_000, 0.1, 5000
#: Cosines that differ by less, given and exchanged, are those of copies of one pair.
SAME = 1e-5
#: Least probability of a partner that is proposed; exchanges that it is learnt from, in at most five draws.
PARTNER_LEAST, TRIALS = 0.2, 1000
#: Shortest caption, in words, that is not called very short.
SHORT = 2
LABELS = ("wrong", "right", "unsure")


@dataclass
class Audit:
    """Result of :func:`nclib.audit`: a table, a share of wrong pairs, and what the probabilities assume.

    Attributes
    ----------
    pairs : Pairs
    neighbours : Neighbours
    score : str
        Name of the score in use.
    settings : dict
        Settings of the call, and what was measured on planted exchanges.
    seed : int
    table : DataFrame
        One row per pair. ``rank`` 1 is the most suspicious; ``partner_id`` names the pair whose picture
        the caption fits better, ``partner_p`` the probability that this picture is the caption's own if the
        pair is wrong and its own picture is here; none is proposed below 0.2. ``p_wrong`` is NaN for pairs
        that cannot be judged (``reason`` says why).
    share : Share
        Share of wrong pairs with a 95 % interval.
    curves : dict
        ``edges``, and the densities ``given``, ``exchanged`` (at random), ``near`` (with similar pictures) of
        the score; ``reliability``, a list of (stated probability, share planted, pairs) on planted
        exchanges; ``threshold``, expected counts ``dropped``, ``wrong_kept``, ``right_lost`` when pairs of
        P(wrong) >= ``t`` are dropped.
    assumption : str
        Which mismatches the probabilities are calibrated for.
    patterns : list of dict
        ``kind`` ("swap", "shift" or "orphan"), ``ids``, ``by`` (rows or pictures of a shift, else None)
        and ``unit`` of ``by``.
    """

    pairs: Pairs
    neighbours: Neighbours
    score: str
    settings: dict[str, Any]
    seed: int
    table: pd.DataFrame
    share: Share
    curves: dict[str, Any]
    assumption: str
    patterns: list[dict[str, Any]]
    calibration: Calibration = field(repr=False)
    plan: Partners = field(repr=False)
    proposed: Array = field(repr=False)
    labels: dict[str, str] = field(default_factory=dict, repr=False)

    def partners(self, k: int = 3) -> pd.DataFrame:
        """Return the k best other pictures of every suspect caption, and captions of every picture.

        Returns
        -------
        DataFrame
            ``direction`` ("picture of caption" or "caption of picture"), ``id``, ``place`` (1 to k),
            ``partner_id``, ``mass`` (part of the caption's free mass in the plan) and ``proposed``: whether
            it is right with a probability of at least 0.2, as learnt from planted exchanges. For the second
            direction, ``id`` is the first pair of the picture, and ``partner_id`` the pair of the caption.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        names = np.array([*self.pairs.ids, ""], dtype=object)
        first = _first_pair(self.pairs)
        edges = pd.DataFrame({"row": self.plan.row, "image": self.plan.column, "mass": self.plan.mass})
        edges = edges[edges["mass"] > 1e-3].sort_values("mass", ascending=False, kind="stable")
        edges["proposed"] = self.proposed[edges["row"]] == edges["image"]
        parts = []
        for direction, key in (("picture of caption", "row"), ("caption of picture", "image")):
            place = edges.groupby(key).cumcount() + 1
            best = edges[place <= k].assign(place=place, direction=direction).sort_values([key, "place"])
            caption, picture = names[best["row"]], names[first[best["image"]]]
            own, other = (caption, picture) if key == "row" else (picture, caption)
            parts.append(best.assign(id=own, partner_id=other))
        columns = ["direction", "id", "place", "partner_id", "mass", "proposed"]
        return pd.concat(parts, ignore_index=True)[columns]

    def check(self, truth: Any, partner_of: Any = None, *, budget: int = 200) -> dict[str, float | None]:
        """Compare the audit with known mistakes.

        Parameters
        ----------
        truth : array of bool, (M,), or mapping of id to bool
            True where the pair is wrong. A mapping may name some of the pairs; the others do not count.
        partner_of : array of int, (M,), optional
            Row of the picture that each caption belongs to; -1 where it belongs to none.
        budget : int
            Pairs that a person checks.

        Returns
        -------
        dict
            ``auroc``, ``average_precision``, ``precision_at_100``, ``recall_at_budget``,
            ``fpr_at_95_recall``, ``calibration_error``, ``share_error`` (estimate minus truth),
            ``partner_accuracy`` of the proposed partners, ``partner_stated``, their mean P(wrong) times
            ``partner_p``, ``partner_recall`` among wrong pairs that have a partner, and the counts ``n``,
            ``n_wrong``, ``n_proposed``. None where undefined.
        """
        wrong, known = self._truth(truth)
        p = self.table["p_wrong"].to_numpy()
        use = known & self.pairs.usable
        # Equal probabilities are ordered as the table's rank is.
        fit = self.table["rank"].to_numpy()[use].astype(float)
        y, n_wrong = wrong[use], int(wrong[use].sum())
        out: dict[str, float | None] = {"n": int(use.sum()), "n_wrong": n_wrong}
        found = detection(fit, ~y) if len(y) else {}
        out |= {"auroc": found.get("auc"), "average_precision": found.get("ap"), "fpr_at_95_recall": None}
        by_rank = y[np.argsort(fit)]
        out["precision_at_100"] = float(by_rank[:100].mean()) if len(y) else None
        out["recall_at_budget"] = float(by_rank[:budget].sum() / n_wrong) if n_wrong else None
        if 0 < n_wrong < len(y):
            until = int(np.searchsorted(np.cumsum(by_rank), 0.95 * n_wrong)) + 1
            out["fpr_at_95_recall"] = float((~by_rank[:until]).sum() / (~y).sum())
        stated = np.isfinite(p) & use
        out["calibration_error"] = compare(1 - p[stated], ~wrong[stated])["ece"] if stated.any() else None
        out["share_error"] = self.share.value - float(y.mean()) if len(y) and self.share.value >= 0 else None
        if partner_of is not None:
            partner_of = np.asarray(partner_of)
            if partner_of.shape != (len(self.pairs),) or partner_of.dtype.kind not in "iu":
                raise ValueError(
                    f"partner_of must hold {len(self.pairs)} picture rows, got {partner_of.dtype} of shape "
                    f"{partner_of.shape}"
                )
            made = (self.proposed >= 0) & use
            hit = made & (self.proposed == partner_of)
            lost = use & wrong & (partner_of >= 0)
            out["n_proposed"] = int(made.sum())
            out["partner_accuracy"] = float(hit.sum() / made.sum()) if made.any() else None
            said = p * self.table["partner_p"].to_numpy()
            out["partner_stated"] = float(said[made].mean()) if made.any() else None
            out["partner_recall"] = float((hit & lost).sum() / lost.sum()) if lost.any() else None
        return out

    def _truth(self, truth: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        n = len(self.pairs)
        if isinstance(truth, Mapping):
            self._check_ids(truth)
            known = np.array([i in truth for i in self.pairs.ids])
            return np.array([bool(truth.get(i, False)) for i in self.pairs.ids]), known
        wrong = np.asarray(truth)
        if wrong.shape != (n,) or wrong.dtype.kind != "b":
            raise ValueError(
                f"truth must be bool, ({n},), True where wrong; got {wrong.dtype} of shape {wrong.shape}"
            )
        return wrong, np.ones(n, bool)

    def _check_ids(self, names: Iterable[str]) -> None:
        known = set(self.pairs.ids)
        strange = [name for name in names if name not in known]
        if strange:
            raise ValueError(f"{len(strange)} ids are of no pair here, the first: {strange[0]!r}")

    def ask(self, n: int = 100) -> pd.DataFrame:
        """Return n pairs whose label would teach most about the probabilities.

        Systematic sampling along P(wrong), with chances in proportion to its standard deviation
        :math:`\\sqrt{P(1-P)}` plus 0.05: most near one half, some at either end, none labelled before.
        Without probabilities, along the score.

        Returns
        -------
        DataFrame
            ``id``, ``image``, ``caption``, ``p_wrong`` and an empty column ``label`` to fill in with
            "wrong", "right" or "unsure".
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        open_rows = self.table[self.pairs.usable & ~self.table["id"].isin(list(self.labels))]
        open_rows = open_rows.sort_values("rank")
        p = open_rows["p_wrong"].fillna(0.5).to_numpy()
        total = np.cumsum(np.sqrt(p * (1 - p)) + 0.05)
        if len(total) > n:
            start = np.random.default_rng([self.seed, len(self.labels)]).random()
            # Every pair at most once: where chances exceed one, the next ones are taken.
            at = np.searchsorted(total, (start + np.arange(n)) * total[-1] / n)
            places = np.arange(n)
            at = np.minimum(np.maximum.accumulate(at - places) + places, len(total) - n + places)
            open_rows = open_rows.iloc[at]
        return open_rows[["id", "image", "caption", "p_wrong"]].assign(label="").reset_index(drop=True)

    def tell(self, labels: Any) -> Audit:
        """Return the audit recalibrated by labels of some pairs.

        Parameters
        ----------
        labels : DataFrame, path of a CSV, or mapping
            Columns ``id`` and ``label``, or id to label: "wrong", "right" or "unsure". Labels of earlier
            calls are kept; "unsure" and empty ones change nothing.

        Returns
        -------
        Audit
            Labelled pairs have probability 0 or 1. The probabilities of the others and the share follow
            :func:`nclib.audit.calibration.relabelled`. Partners and patterns are as before.
        """
        if isinstance(labels, (str, Path)):
            labels = pd.read_csv(labels, dtype=str, keep_default_na=False)
        if isinstance(labels, pd.DataFrame):
            if missing := {"id", "label"} - set(labels.columns):
                raise ValueError(f"labels need columns id and label; missing: {', '.join(sorted(missing))}")
            labels = dict(zip(labels["id"].astype(str), labels["label"].astype(str), strict=True))
        new = {str(k): str(v).strip().lower() for k, v in dict(labels).items()}
        new = {k: v for k, v in new.items() if v not in ("", "nan")}
        if bad := next(((k, v) for k, v in new.items() if v not in LABELS), None):
            raise ValueError(f"label of {bad[0]!r} is {bad[1]!r}; must be one of {', '.join(LABELS)}")
        self._check_ids(new)
        told = {**self.labels, **new}
        sure = {k: v == "wrong" for k, v in told.items() if v != "unsure"}
        row_of = {name: row for row, name in enumerate(self.pairs.ids)}
        rows = np.array([row_of[k] for k in sure], np.int64)
        wrong = np.array(list(sure.values()), bool)
        judged = self.pairs.usable[rows]
        score = self.table["score"].to_numpy()
        calibration = self.calibration
        if judged.any():
            calibration = relabelled(
                self.calibration, score[self.pairs.usable], score[rows[judged]], wrong[judged]
            )
        table = _with_probabilities(self.table, self.pairs, calibration)
        for name in ("p_wrong", "p_low", "p_high"):
            table.loc[rows, name] = wrong.astype(float)
        table["rank"] = _rank(table)
        curves = {**self.curves, "threshold": _threshold(table)}
        assumption = self.assumption
        if judged.any():
            assumption = f"{ASSUMPTION} They are corrected by {len(rows)} labels given by a person."
        settings = {**self.settings, "labels": len(rows)}
        return replace(
            self,
            table=table,
            share=calibration.share,
            curves=curves,
            assumption=assumption,
            settings=settings,
            labels=told,
        )

    def save(self, folder: str | Path) -> Path:
        """Write table, keep-lists and settings as files, each atomically, and return the folder.

        ``pairs.csv`` and, with pyarrow installed, ``pairs.parquet``: the table. ``ids.npy``: sorted ids of
        pairs to keep, P(wrong) < 1/2; ids of 32 hexadecimal digits as pairs of 64-bit numbers, DataComp's
        layout. ``keep.txt``: the same, one a line. ``cleanlab.csv`` and ``fiftyone.json``: columns for
        these tools. ``audit.json``: settings, share, patterns, checksums, versions.
        """
        return export.save(self, Path(folder))

    def report(self, folder: str | Path) -> Path:
        """Write the files of :meth:`save` and a page, and return the page's path."""
        from nclib.audit.report import write_report

        self.save(folder)
        return write_report(self, Path(folder))


def audit(
    source: Any = None,
    *,
    images: Any = None,
    captions: Any = None,
    image_of: Any = None,
    ids: Any = None,
    texts: Any = None,
    pictures: Any = None,
    score: str = "auto",
    neighbours: int = 32,
    seed: int = 0,
    labels: Any = None,
    one_to_one: bool = False,
    work: str | Path | None = None,
    progress: bool = True,
    **reader: Any,
) -> Audit:
    """Audit pairs of pictures and captions: which are wrong, how many, and what belongs together.

    Parameters
    ----------
    source : Pairs, path, DataFrame or data set, optional
        What :func:`nclib.audit.readers.read_pairs` reads; in place of arrays.
    images, captions : array, tensor or path of a ``.npy`` file, (N, D) and (M, D)
        Embeddings of one model; a path is memory-mapped.
    image_of : array of int, (M,), optional
        Row of the picture that each caption claims. Needed unless there are as many pictures as captions.
    ids, texts : sequence, (M,), optional
        Names and texts of the pairs.
    pictures : sequence, (N,), optional
        Paths or URLs of the pictures.
    score : str
        One of :data:`nclib.audit.SCORES`, or "auto": the score that tells given from exchanged pairs best,
        by the area under the ROC curve.
    neighbours : int
        Length of the neighbour lists.
    seed : int
        Of exchanges, bootstrap and, without embeddings, of training; at least 0.
    labels : DataFrame, path or mapping, optional
        As in :meth:`Audit.tell`.
    one_to_one : bool
        A picture takes no more captions than it has wrong ones (in the search for partners).
    work : path, optional
        Folder that keeps embeddings and finished neighbour blocks, so that a stopped audit continues.
    progress : bool
        Show bars on a terminal, and print what is trained.
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
    if seed < 0:
        raise ValueError(f"seed={seed}: must be at least 0")
    made = {"seed": seed, "work": work, "progress": progress}
    pairs = _read(source, images, captions, image_of, ids, texts, pictures, reader, made)
    near = find_neighbours(pairs, min(neighbours, 4096), work=work, progress=progress)
    usable = np.flatnonzero(pairs.usable)
    rng = np.random.default_rng(seed)
    # Queries: given pairs; captions exchanged at random, and with similar pictures; planted exchanges.
    some = rng.permutation(usable)[:MOST_EXCHANGED]
    repeats = int(np.clip(np.ceil(EXCHANGED / len(some)), 1, 10))
    exchanged_image = np.concatenate([exchange(pairs, some, rng) for _ in range(repeats)])
    lists = near.similar_images[pairs.image_of[some]]
    choice = lists[np.arange(len(some)), rng.integers(0, lists.shape[1], len(some))].astype(np.int64)
    fold = np.zeros(pairs.n_images, np.int64)
    fold[pairs.image_of] = fold_of(pairs.captions)
    alike = (choice >= 0) & (fold[choice] == fold[pairs.image_of[some]])
    planted = rng.permutation(usable)[
        : min(max(int(PLANTED * len(usable)), min(len(usable), 200)), MOST_PLANTED)
    ]
    planted_image = exchange(pairs, planted, rng)
    sets = [
        (usable, pairs.image_of[usable]),
        (np.tile(some, repeats), exchanged_image),
        (some[alike], choice[alike]),
        (planted, planted_image),
    ]
    name, scorer, values, measured, cosines = _scores(score, pairs, near, sets, seed)
    given, negative, similar, planted_score = values
    calibration = calibrate(given, negative, seed)
    share_of = name
    if cosines is not None:
        calibration, own = anchored(calibration, given, negative, cosines, seed), calibration
        share_of = name if calibration is own else "cosine"
    table = _table(pairs, usable, given, calibration)
    p_wrong = table["p_wrong"].to_numpy().copy()

    edges, reg = near.once("edges", lambda: candidate_edges(pairs, near)), temperature(near)
    search = partial(find_partners, pairs, edges=edges, reg=reg, one_to_one=one_to_one)
    probability, on_planted = _learnt_partners(
        pairs, search, scorer, calibration, p_wrong, usable, len(planted), rng
    )
    plan = search(pairs.image_of, p_wrong=p_wrong)
    suspects = np.flatnonzero((plan.image >= 0) & (p_wrong >= 0.5))
    partner_score = scorer(suspects, plan.image[suspects])
    partner_p = np.full(len(pairs), np.nan)
    partner_p[suspects] = probability(_partner_facts(plan, suspects, calibration(partner_score)[0]))
    proposed = np.where(partner_p >= PARTNER_LEAST, plan.image, -1)

    # A caption without a place scores lower with its best candidate than 95 % of the pairs that look right.
    good_scores = given[p_wrong[usable] < 0.5]
    floor = np.quantile(good_scores, 0.05) if len(good_scores) else -np.inf
    found_patterns = _patterns(pairs, near, p_wrong, proposed, suspects[partner_score >= floor])
    _fill(table, pairs, near, plan, suspects, partner_score, partner_p, proposed, found_patterns, calibration)
    settings = {
        **{"score": score, "neighbours": neighbours, "one_to_one": one_to_one, "seed": seed},
        "auroc_on_exchanged": measured,
        "share_of": share_of,
        "partner_least": PARTNER_LEAST,
        "partner_accuracy_on_planted": on_planted,
        "neighbour_recall": near.recall,
        "plan_violation": plan.plan.violation,
        "plan_gap": plan.plan.gap,
        "plan_iterations": plan.plan.iterations,
    }
    curves = _curves(given, negative, similar)
    curves["threshold"] = _threshold(table)
    curves["reliability"] = _reliability(
        given, negative, planted_score, np.searchsorted(usable, planted), seed
    )
    assumption = ASSUMPTION if share_of == name else f"{ASSUMPTION} {TOGETHER}"
    result = Audit(
        *(pairs, near, name, settings, seed, table, calibration.share, curves),
        f"No probabilities: {calibration.reason}." if calibration.reason else assumption,
        found_patterns,
        *(calibration, plan, proposed),
    )
    return result if labels is None else result.tell(labels)


def _read(
    source: Any,
    images: Any,
    captions: Any,
    image_of: Any,
    ids: Any,
    texts: Any,
    pictures: Any,
    reader: dict[str, Any],
    made: dict[str, Any],
) -> Pairs:
    if source is None and (images is None or captions is None):
        raise ValueError(
            "give images= and captions= (arrays or .npy files), or a table, folder or data set first"
        )
    if isinstance(source, Pairs):
        return source
    if source is None and not reader:
        return from_arrays(images, captions, image_of, ids, texts, pictures)
    from nclib.audit.readers import read_pairs

    return read_pairs(source, **made, **reader)


def _scores(
    name: str, pairs: Pairs, near: Neighbours, sets: list[tuple[Array, Array]], seed: int
) -> tuple[str, Any, list[Array], dict[str, float | None], tuple[Array, Array] | None]:
    """Return the name of the score in use, its function of rows, its values per set, AUROCs by name.

    Where the captions of a picture are wrong together, last the cosines of given and of exchanged pairs.
    """
    captions, images = (np.concatenate(x) for x in zip(*sets, strict=True))
    cuts = np.cumsum([len(s[0]) for s in sets])[:-1]
    if np.ptp(SCORES["cosine"](pairs, near, *(x[: cuts[1]] for x in (captions, images)))) < SAME:
        nothing = np.zeros(len(captions), np.float32)  # copies of one pair: rounding alone tells them apart
        return "cosine", lambda rows, of: nothing[: len(rows)], np.split(nothing, cuts), {"cosine": 0.5}, None
    names: tuple[str, ...] = PARTS if name in ("auto", "combined") else (name,)
    values = {n: SCORES[n](pairs, near, captions, images) for n in names}
    join, cosines = None, None
    if len(names) > 1:
        names = parts_of(values, slice(cuts[0]), slice(*cuts[:2]))
        values = {n: values[n] for n in names}
        if names != PARTS:
            cosines = values["cosine"][: cuts[0]], values["cosine"][slice(*cuts[:2])]
        parts = np.split(np.stack([values[n] for n in names], 1), cuts)
        join = combination(parts[0], parts[1], seed)
        values["combined"] = join(np.concatenate(parts))
    measured = {}
    for key, value in values.items():
        given, exchanged = np.split(value, cuts)[:2]
        target = np.arange(len(given) + len(exchanged)) < len(given)
        measured[key] = auc(np.concatenate([given, exchanged]), target)
    best = max(measured, key=lambda k: measured[k] or 0) if name == "auto" else name

    def scorer(rows: Array, of: Array) -> Array:
        if len(rows) == 0:
            return np.zeros(0, np.float32)
        if best == "combined":
            assert join is not None
            return join(np.stack([SCORES[n](pairs, near, rows, of) for n in names], 1))
        return SCORES[best](pairs, near, rows, of)

    return best, scorer, np.split(values[best], cuts), measured, cosines


def _partner_facts(plan: Partners, rows: Array, p_wrong: Array) -> Array:
    """Return what tells right candidates from others, (Q, 3): margin, part of the mass, P(wrong) there."""
    return np.stack([plan.margin[rows], plan.best_mass[rows], p_wrong], 1)


def _learnt_partners(
    pairs: Pairs,
    search: Callable[..., Partners],
    scorer: Callable[[Array, Array], Array],
    calibration: Calibration,
    p_wrong: Array,
    usable: Array,
    n: int,
    rng: np.random.Generator,
) -> tuple[Callable[[Array], Array], float | None]:
    """Search partners of n planted exchanges, whose right picture is known, a few times.

    Return the probability of a candidate by its facts, and the share right of those that would be proposed.
    """
    parts = []
    for _ in range(int(np.clip(np.ceil(TRIALS / n), 1, 5))):
        planted = rng.permutation(usable)[:n]
        claimed, p = pairs.image_of.copy(), p_wrong.copy()
        claimed[planted] = exchange(pairs, planted, rng)
        p[planted] = calibration(scorer(planted, claimed[planted]))[0]
        trial = search(claimed, p_wrong=p)
        rows = planted[(trial.image[planted] >= 0) & (p[planted] >= 0.5)]
        there = calibration(scorer(rows, trial.image[rows]))[0]
        right = trial.image[rows] == pairs.image_of[rows]
        parts.append((_partner_facts(trial, rows, there), right, 1 - p_wrong[rows]))
    # A given pair that may be wrong counts as little as it is likely to be right.
    facts, right, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    probability = partner_probability(facts, right, weight)
    made = probability(facts) >= PARTNER_LEAST
    return probability, float(np.average(right[made], weights=weight[made])) if made.any() else None


def _table(pairs: Pairs, usable: Array, given: Array, calibration: Calibration) -> pd.DataFrame:
    m = len(pairs)
    score = np.full(m, np.nan)
    score[usable] = given
    names = range(pairs.n_images) if pairs.pictures is None else pairs.pictures
    image = np.array([str(i) for i in names], dtype=object)[pairs.image_of]
    table = pd.DataFrame(
        {
            "id": pairs.ids,
            "image": image,
            "caption": pairs.texts if pairs.texts is not None else [""] * m,
            "score": score,
            **dict.fromkeys(COLUMNS[4:], ""),
        }
    )
    for name in ("partner_score", "partner_margin", "partner_mass", "partner_p"):
        table[name] = np.nan
    return _with_probabilities(table, pairs, calibration)


def _with_probabilities(table: pd.DataFrame, pairs: Pairs, calibration: Calibration) -> pd.DataFrame:
    ends = np.stack(calibration(table["score"].to_numpy()), 1)
    ends[~pairs.usable] = np.nan
    table = table.assign(**{n: ends[:, i] for i, n in enumerate(("p_wrong", "p_low", "p_high"))})
    return table.assign(rank=_rank(table))


def _rank(table: pd.DataFrame) -> Array:
    """Return ranks by falling P(wrong), then rising score; pairs that cannot be judged come last."""
    p, score = (table[name].to_numpy() for name in ("p_wrong", "score"))
    order = np.lexsort((score, np.where(np.isnan(p), 0.0, -p), np.isnan(score)))
    rank = np.empty(len(p), np.int64)
    rank[order] = np.arange(1, len(p) + 1)
    return rank


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


def _threshold(table: pd.DataFrame) -> dict[str, Array]:
    p = np.sort(table["p_wrong"].dropna().to_numpy())
    t = np.linspace(0, 1, 101)
    at = np.searchsorted(p, t)
    wrong_kept = np.concatenate([[0.0], np.cumsum(p)])[at]
    dropped = len(p) - at
    return {
        "t": t,
        "dropped": dropped,
        "wrong_kept": wrong_kept,
        "right_lost": dropped - (p.sum() - wrong_kept),
    }


def _reliability(
    given: Array, exchanged: Array, planted_score: Array, planted: Array, seed: int
) -> list[tuple[float, float, int]]:
    """Return (stated probability of being planted, share planted, pairs) in ten bins.

    The scores with planted exchanges are calibrated again; of the probability of being wrong, the part
    (planted share) / (estimated share) is that of being planted, as wrong pairs are alike.
    """
    trial = given.copy()
    trial[planted] = planted_score
    calibration = calibrate(trial, exchanged, seed)
    if calibration.reason or len(planted) == 0:
        return []
    is_planted = np.zeros(len(trial), bool)
    is_planted[planted] = True
    stated = calibration(trial)[0] * is_planted.mean() / max(calibration.share.value, is_planted.mean())
    found = compare(stated, is_planted)
    rows = zip(found["stated"], found["observed"], found["count"], strict=True)
    return [(s, o, n) for s, o, n in rows if n]


def _first_pair(pairs: Pairs) -> Array:
    """Return the row of the first pair of every picture, (N,); -1 for pictures that no caption claims."""
    first = np.full(pairs.n_images, -1)
    first[pairs.image_of[::-1]] = np.arange(len(pairs))[::-1]
    return first


def _patterns(
    pairs: Pairs, near: Neighbours, p_wrong: Array, proposed: Array, has_place: Array
) -> list[dict[str, Any]]:
    ids = np.array(pairs.ids, dtype=object)
    found: list[dict[str, Any]] = []
    cosine = SCORES["cosine"]
    fit = cosine(pairs, near)
    every = np.arange(len(pairs))
    other = cosine(pairs, near, every, exchange(pairs, every, np.random.default_rng(0)))
    good = pairs.usable & (p_wrong < 0.5)
    jump, spread = float(np.median(fit[good]) - other.mean()) if good.any() else 0.0, float(other.std())
    taken = np.zeros(len(pairs), bool)
    if jump > 0 and spread > 0:
        options = []
        for by, unit, images in patterns.shifted(pairs.n_images, pairs.image_of):
            rows = np.flatnonzero((images >= 0) & (images != pairs.image_of) & pairs.usable)
            gain, informative = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
            gain[rows], informative[rows] = cosine(pairs, near, rows, images[rows]) - fit[rows], True
            runs = patterns.runs(gain, informative, jump, spread * np.sqrt(2))
            options += [(odds, start, stop, by, unit) for start, stop, odds in runs]
        for _, start, stop, by, unit in sorted(options, reverse=True):
            if not taken[start:stop].any():
                taken[start:stop] = True
                found.append({"kind": "shift", "ids": ids[start:stop].tolist(), "by": by, "unit": unit})
    for a, b in patterns.swaps(pairs.image_of, proposed):
        if not taken[a] and not taken[b]:
            found.append({"kind": "swap", "ids": [ids[a], ids[b]], "by": None, "unit": None})
    lost = (p_wrong >= 0.5) & (proposed < 0) & ~taken
    lost[has_place] = False
    found += [{"kind": "orphan", "ids": [i], "by": None, "unit": None} for i in ids[lost]]
    return found


def _fill(
    table: pd.DataFrame,
    pairs: Pairs,
    near: Neighbours,
    plan: Partners,
    suspects: Array,
    partner_score: Array,
    partner_p: Array,
    proposed: Array,
    found: list[dict[str, Any]],
    calibration: Calibration,
) -> None:
    """Write partners, duplicates and reasons into the table."""
    names = np.array([*pairs.ids, ""], dtype=object)
    rows = np.flatnonzero(proposed >= 0)
    table.loc[rows, "partner_id"] = names[_first_pair(pairs)[proposed[rows]]]
    made = proposed[suspects] >= 0
    table.loc[rows, "partner_score"] = partner_score[made].astype(np.float64)
    table.loc[rows, "partner_margin"] = plan.margin[rows]
    table.loc[rows, "partner_mass"] = plan.best_mass[rows]
    table.loc[rows, "partner_p"] = partner_p[rows]
    same_image, same_caption = patterns.duplicates(pairs, near)
    table["image_duplicate_of"], table["caption_duplicate_of"] = names[same_image], names[same_caption]

    # Reasons, later ones over earlier ones.
    p = table["p_wrong"].to_numpy()
    suspect = p >= 0.5
    reason = np.where(suspect, "low score", "").astype(object)
    reason[suspect & (same_image >= 0)] = "duplicate picture with another caption"
    reason[proposed >= 0] = "better partner elsewhere"
    row_of = {name: row for row, name in enumerate(pairs.ids)}
    for one in found:
        for name in one["ids"]:
            row = row_of[name]
            if one["kind"] == "swap":
                reason[row] = f"swapped with {next(i for i in one['ids'] if i != name)}"
            elif one["kind"] == "shift":
                reason[row] = f"run of rows shifted by {one['by']:+d} {one['unit']}"
            else:
                reason[row] = "no picture fits the caption"
    if pairs.texts is not None:
        words = np.array([len(text.split()) for text in pairs.texts])
        reason[words < SHORT] = "very short caption"
        reason[words == 0] = "empty caption"
    reason[patterns.boilerplate(pairs) & (reason == "")] = "boilerplate caption"
    if calibration.reason:
        reason[pairs.usable] = calibration.reason
    for row, text in pairs.problems.items():
        reason[row] = text
    table["reason"] = reason
