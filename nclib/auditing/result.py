"""What an audit found: the table, the share of wrong pairs, proposed partners; and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.belief import WRONG_FROM, Belief, BlindSpot
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Indices, Pairs, fold_of, from_arrays
from nclib.auditing.share import Share
from nclib.auditing.spreadsheet import read_marks, unguarded
from nclib.auditing.within import Within
from nclib.auditing.wording import about_marks
from nclib.common.checks import check_array, check_count
from nclib.noise import calibration as compare
from nclib.noise import detection
from nclib.readers.captions_table import one_line

Array = NDArray[Any]
#: Pairs that the page asks about.
ASKED = 60
LABELS = ("wrong", "right", "unsure")


class Judged(NamedTuple):
    """Pairs of another file, judged by an audit.

    Parameters
    ----------
    table : DataFrame
        ``id``, ``score`` (standardised cosine), ``p_wrong`` and its 95 % interval ``p_low`` to ``p_high``;
        NaN for pairs that cannot be judged.
    share : Share
        Share of wrong pairs that the probabilities rest on.
    """

    table: pd.DataFrame
    share: Share


@dataclass(repr=False)
class Findings:
    """Result of :func:`nclib.audit`: a table, a share of wrong pairs, and what the probabilities assume.

    Attributes
    ----------
    belief : Belief
        The score in use, and how much is believed of it.
    pairs : Pairs
    neighbours : Neighbours
    settings : dict
        Settings of the call, and what was measured on planted exchanges.
    table : DataFrame
        One row per pair. ``rank`` 1 is the most suspicious; ``partner_id`` names the pair whose picture
        the caption fits better, ``partner_p`` the probability that this picture is the caption's own if the
        pair is wrong and its own picture is here; none is proposed below 0.2. ``p_wrong`` is NaN for pairs
        that cannot be judged (``reason`` says why).
    curves : dict
        ``edges``, and the densities ``given``, ``exchanged`` (at random), ``near`` (with similar pictures) of
        the score; ``reliability``, a list of (stated probability, share planted, pairs) on planted
        exchanges; ``threshold``, expected counts ``dropped``, ``wrong_kept``, ``right_lost`` when pairs of
        P(wrong) >= ``t`` are dropped.
    patterns : list of dict
        ``kind`` ("swap", "shift" or "orphan"), ``ids``, ``by`` (rows or pictures of a shift, else None)
        and ``unit`` of ``by``.
    proposed : ndarray, (M,)
        Row of the picture that is proposed for the caption, -1 for none.
    labels, edits, asked : dict
        Labels and new captions by id, and the pairs that :meth:`ask` has named, with their chances of being
        named, up to a factor.
    found : list of str
        Sentences about what repeats.
    repeats : DataFrame
        Captions that stand on many pictures, and pictures with many captions: ``kind`` ("caption" or
        "picture"), ``name``, ``times``, and ``wrong``, the expected share of its pairs that are wrong.
    groups : list of str
        Names of the groups of pairs that have probabilities of their own.
    """

    belief: Belief
    settings: dict[str, Any]
    table: pd.DataFrame
    curves: dict[str, Any]
    patterns: list[dict[str, Any]]
    proposed: Array
    found: list[str]
    repeats: pd.DataFrame
    groups: list[str]
    labels: dict[str, str] = field(default_factory=dict)
    edits: dict[str, str] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    marked: list[str] = field(default_factory=list)

    # -- what is believed ------------------------------------------------------------------------------------

    @property
    def pairs(self) -> Pairs:
        """The pairs that were audited."""
        return self.belief.pairs

    @property
    def neighbours(self) -> Neighbours:
        """Nearest neighbours of all pictures and captions."""
        return self.belief.context.neighbours

    @property
    def score(self) -> str:
        """Name of the score in use."""
        return self.belief.scored.name

    @property
    def share(self) -> Share:
        """Share of wrong pairs with a 95 % interval."""
        return self.belief.share

    @property
    def second_share(self) -> Share | None:
        """Share of wrong pairs by the standardised cosine alone, which depends on no other pair."""
        return self.belief.second

    @property
    def blind_spot(self) -> BlindSpot | None:
        """Which part of planted exchanges with similar pictures, and with random ones, the audit finds."""
        return self.belief.blind_spot

    @property
    def assumption(self) -> str:
        """Which mismatches the probabilities are calibrated for."""
        return self.belief.assumption

    @property
    def warnings(self) -> list[str]:
        """Sentences that come first: why the share is not to be trusted."""
        return self.belief.warnings

    @property
    def findings(self) -> list[str]:
        """Sentences about what else was found, such as captions that stand on many pictures."""
        return [*self.found, *self.marked]

    @cached_property
    def by(self) -> pd.DataFrame:
        """Share of wrong pairs in each group: ``value``, ``pairs``, ``share``, ``low`` and ``high``."""
        return self.belief.by_value(self.groups)

    @property
    def inside(self) -> Within | None:
        """Pairs that fit no better than exchanges within their value of the column that was named."""
        return self.belief.inside

    @property
    def ask_first(self) -> bool:
        """Whether labels of :meth:`ask` come before the answer: parts of it disagree, or mistakes hide."""
        hidden = self.blind_spot is not None and self.blind_spot.hides
        beyond = self.inside is not None and self.inside.beyond
        return bool(self.warnings) or ((hidden or beyond) and not self.labels)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Pairs that can be judged and are not judged wrong, (M,); without probabilities all that can."""
        return self.pairs.usable & ~(self.table["p_wrong"].to_numpy() >= WRONG_FROM)

    @property
    def unlabelled(self) -> pd.DataFrame:
        """Rows of the table that can be judged and have no label, the most suspicious first."""
        return self.table[self.pairs.usable & ~self.table["id"].isin(list(self.labels))].sort_values("rank")

    def __repr__(self) -> str:
        """Return one line: pairs, share and score."""
        said = "unknown" if self.belief.reason else f"{self.share} wrong"
        return f"Audit({len(self.pairs):,} pairs, {said}, score={self.score!r})"

    # -- other pairs, and known mistakes ---------------------------------------------------------------------

    def judge(
        self,
        images: Any,
        captions: Any,
        *,
        image_of: Any = None,
        ids: Any = None,
        adapt: bool = True,
    ) -> Judged:
        """Judge the pairs of another file, such as the next shard, by the calibration of this audit.

        The score is the standardised cosine with random pictures and captions of the audited pairs, so that
        a pair is judged without its neighbours, and a million in a minute. What an audit finds about order,
        copies, groups and partners is not looked for.

        Parameters
        ----------
        images, captions, image_of, ids
            As for :func:`nclib.audit`, by the model whose embeddings were audited.
        adapt : bool
            Estimate the share of wrong pairs again where there are 200 or more, and take the probabilities
            along. Otherwise it is that of the audited pairs.

        Raises
        ------
        ValueError
            When the audit has no probabilities, or its embeddings are of a model that was fitted to its own
            pairs; when the embeddings have another width.

        Examples
        --------
        >>> import numpy as np, nclib
        >>> rng = np.random.default_rng(0)
        >>> images = rng.normal(size=(900, 16))
        >>> captions = images + 0.3 * rng.normal(size=(900, 16))
        >>> captions[[3, 704]] = captions[[704, 3]]
        >>> audit = nclib.audit(images[:600], captions[:600], progress=False)
        >>> judged = audit.judge(images[600:], captions[600:])
        >>> judged.table.query("p_wrong >= 0.5")["id"].tolist()
        ['104']
        """
        if self.belief.reason:
            raise ValueError(self.assumption)
        if fold_of(self.pairs.captions).any():
            raise ValueError(
                "judge needs an audit of embeddings of one model; this one fitted a model to its own pairs, "
                "and halves of them have another one each"
            )
        new = from_arrays(images, captions, image_of, ids)
        check_array("images", new.images, "floating numbers", "rows", self.pairs.images.shape[1])
        score, ends, share = self.belief.judge(new, adapt)
        table = pd.DataFrame({"id": new.ids, "score": score})
        return Judged(table.assign(**dict(zip(("p_wrong", "p_low", "p_high"), ends, strict=True))), share)

    def check(self, truth: Any, partner_of: Any = None) -> dict[str, float | None]:
        """Compare the audit with known mistakes.

        Parameters
        ----------
        truth : array of bool, (M,), or mapping of id to bool
            True where the pair is wrong. A mapping may name some of the pairs; the others do not count.
        partner_of : array of int, (M,), optional
            Row of the picture that each caption belongs to; -1 where it belongs to none.

        Returns
        -------
        dict
            ``auroc``, ``average_precision``, ``calibration_error``, ``share_error`` (estimate minus truth),
            ``partner_accuracy`` of the proposed partners, ``partner_stated``, their mean P(wrong) times
            ``partner_p``, ``partner_recall`` among wrong pairs that have a partner, and the counts ``n``,
            ``n_wrong``, ``n_proposed``. None where undefined.
        """
        p, use = self.table["p_wrong"].to_numpy(), self.pairs.usable
        if isinstance(truth, Mapping):
            self._check_ids(truth)
            use = use & self.table["id"].isin(list(truth)).to_numpy()
            truth = [bool(truth.get(name)) for name in self.pairs.ids]
        wrong = np.asarray(truth)
        check_array("truth, True where wrong,", wrong, "booleans", len(p))
        # Equal probabilities are ordered as the table's rank is.
        fit = self.table["rank"].to_numpy()[use].astype(float)
        y = wrong[use]
        out: dict[str, float | None] = {"n": int(use.sum()), "n_wrong": int(y.sum())}
        by_rank = detection(fit, ~y) if len(y) else {}
        out |= {"auroc": by_rank.get("auc"), "average_precision": by_rank.get("ap")}
        stated = np.isfinite(p) & use
        out["calibration_error"] = compare(1 - p[stated], ~wrong[stated])["ece"] if stated.any() else None
        out["share_error"] = self.share.value - float(y.mean()) if len(y) and self.share.value >= 0 else None
        if partner_of is not None:
            partner_of = np.asarray(partner_of)
            check_array("partner_of, rows of pictures,", partner_of, "whole numbers", len(self.pairs))
            made = (self.proposed >= 0) & use
            hit = made & (self.proposed == partner_of)
            lost = use & wrong & (partner_of >= 0)
            out["n_proposed"] = int(made.sum())
            out["partner_accuracy"] = float(hit.sum() / made.sum()) if made.any() else None
            said = p * self.table["partner_p"].to_numpy()
            out["partner_stated"] = float(said[made].mean()) if made.any() else None
            out["partner_recall"] = float((hit & lost).sum() / lost.sum()) if lost.any() else None
        return out

    def _check_ids(self, names: Iterable[str]) -> None:
        strange = [name for name in names if name not in self.pairs.row_of]
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
        check_count("n", n)
        open_rows = self.unlabelled
        chance = asking_chance(open_rows["p_wrong"].to_numpy())
        total = np.cumsum(chance)
        if len(total) > n:
            rng = np.random.default_rng([self.settings["seed"], len(self.labels)])
            start = rng.random()
            # Every pair at most once: where chances exceed one, the next ones are taken.
            at = np.searchsorted(total, (start + np.arange(n)) * total[-1] / n)
            places = np.arange(n)
            at = np.minimum(np.maximum.accumulate(at - places) + places, len(total) - n + places)
            # In random order, so that the first ten are such a sample as well.
            open_rows = open_rows.iloc[rng.permutation(at)]
        self.asked.update(zip(open_rows["id"], asking_chance(open_rows["p_wrong"].to_numpy()), strict=True))
        return open_rows[["id", "image", "caption", "p_wrong"]].assign(label="").reset_index(drop=True)

    def tell(self, labels: Any) -> Self:
        """Return the audit recalibrated by labels of some pairs.

        Parameters
        ----------
        labels : DataFrame, path of a CSV, or mapping
            Columns ``id`` and ``label``, or id to label: "wrong", "right" or "unsure". Labels of earlier
            calls are kept; "unsure" and empty ones change nothing. A column ``new_caption`` holds edited
            captions, which become a column of the table.

        Returns
        -------
        Audit
            Labelled pairs have probability 0 or 1. The probabilities of the others and the share follow
            :func:`nclib.auditing.labels.relabelled`. Where scores contradict each other, the share is that
            of the pairs that :meth:`ask` named, a random sample
            (:func:`nclib.auditing.labels.by_sample`); where sample and scores disagree, its interval holds
            both. Partners and patterns are as before. Labels that contradict each other or the scores are
            named in :attr:`findings`.
        """
        marks = self._marks(labels)
        said = marks[marks["label"] != ""].drop_duplicates(["id", "label"])
        certain = said["id"][said["label"] != "unsure"]
        double = certain[certain.duplicated()].unique().tolist()
        told = (
            self.labels | dict(zip(said["id"], said["label"], strict=True)) | dict.fromkeys(double, "unsure")
        )
        sure = {k: v == "wrong" for k, v in told.items() if v != "unsure"}
        rows, wrong = self._rows(sure), np.array(list(sure.values()), bool)
        if not self.asked:  # by the page of an audit that is made again
            self.ask(ASKED)
        chance = np.array([self.asked.get(name, np.nan) for name in sure])
        belief = self.belief.told(rows, wrong, chance)
        settings: dict[str, float] = {"labels": len(rows)}
        doubted = list[str]()
        if (found := belief.marks) is not None:
            settings |= {"mistaken_labels": found.rate, "labels_contradict": found.unseen}
            doubted = [self.pairs.ids[row] for row in rows[belief.scores_decide[rows]][found.doubted]]
        table = self.table.assign(**belief.columns)
        for name in belief.columns:
            table.loc[rows, name] = wrong.astype(float)
        table["rank"] = ranked(table["p_wrong"].to_numpy(), table["score"].to_numpy())
        new = marks[marks["new_caption"] != ""]
        if edits := self.edits | dict(zip(new["id"], new["new_caption"], strict=True)):
            table["new_caption"] = table["id"].map(edits).fillna("")
        return replace(
            self,
            belief=belief,
            table=table,
            curves={**self.curves, "threshold": threshold_costs(table["p_wrong"])},
            settings=self.settings | settings,
            labels=told,
            edits=edits,
            marked=about_marks(double, self._apart(sure), doubted),
        )

    def _rows(self, names: Iterable[str]) -> Indices:
        return np.array([self.pairs.row_of[name] for name in names], np.int64)

    def _apart(self, sure: dict[str, bool]) -> list[str]:
        """Return the labelled pairs that have another label than a pair with the same picture and caption."""
        rows = self._rows(sure)
        pair = pd.Series(self.belief.context.copies.pair(rows, self.pairs.image_of[rows]))
        mixed = pd.Series(list(sure.values()), dtype=bool).groupby(pair).transform("nunique") > 1
        return [name for name, both in zip(sure, mixed, strict=True) if both]

    def _marks(self, given: Any) -> pd.DataFrame:
        """Return marks as lines of ``id``, ``label`` and ``new_caption``, of which one may be empty."""
        if isinstance(given, (str, Path)):
            given = read_marks(Path(given))
        if not isinstance(given, (pd.DataFrame, Mapping, pd.Series)):
            kind = type(given).__name__
            raise TypeError(f"labels must be a DataFrame, the path of a CSV or a mapping, got a {kind}")
        if not isinstance(given, pd.DataFrame):
            given = pd.DataFrame(list(dict(given).items()), columns=["id", "label"])
        if missing := {"id", "label"} - set(given.columns):
            raise ValueError(f"labels need columns id and label; missing: {', '.join(sorted(missing))}")
        marks = given.reindex(columns=["id", "label", "new_caption"]).astype(object).fillna("").astype(str)
        marks["id"] = [name if name in self.pairs.row_of else unguarded(name) for name in marks["id"]]
        marks["label"] = [text.strip().lower().removeprefix("nan") for text in marks["label"]]
        marks["new_caption"] = [one_line(unguarded(text)) for text in marks["new_caption"]]
        marks = marks[(marks[["label", "new_caption"]] != "").any(axis=1)]
        for bad in marks[~marks["label"].isin(["", *LABELS])].itertuples():
            raise ValueError(f"label of {bad.id!r} is {bad.label!r}; must be one of {', '.join(LABELS)}")
        self._check_ids(marks["id"])
        return marks


def asking_chance(p: Array) -> Array:
    """Return the chances, up to a factor, with which :meth:`Findings.ask` takes pairs of P(wrong) ``p``."""
    p = np.where(np.isnan(p), 0.5, p)
    return np.asarray(np.sqrt(p * (1 - p)) + 0.05)


def threshold_costs(p_wrong: pd.Series) -> dict[str, Array]:
    """Return the expected counts of :attr:`Findings.curves` at thresholds ``t``, (101,) each."""
    p = np.sort(p_wrong.dropna().to_numpy())
    t = np.linspace(0, 1, 101)
    at = np.searchsorted(p, t)
    wrong_kept, dropped = np.concatenate([[0.0], np.cumsum(p)])[at], len(p) - at
    right_lost = dropped - (p.sum() - wrong_kept)
    return {"t": t, "dropped": dropped, "wrong_kept": wrong_kept, "right_lost": right_lost}


def ranked(p: Array, score: Array) -> Array:
    """Return ranks by falling P(wrong), then rising score; pairs that cannot be judged come last."""
    order = np.lexsort((score, np.where(np.isnan(p), 0.0, -p), np.isnan(score)))
    return order.argsort() + 1
