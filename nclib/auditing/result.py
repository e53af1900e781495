"""What an audit found: the table, the share of wrong pairs, proposed partners; labels, and files."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.copies import copies_of, first_pair
from nclib.auditing.findings import MARKS, about_marks, marks_warning
from nclib.auditing.groups import shares
from nclib.auditing.labels import by_sample, relabelled
from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Pairs
from nclib.auditing.partners import Partners
from nclib.auditing.settle import WEAK
from nclib.auditing.share import Calibration, Share
from nclib.auditing.spreadsheet import read_marks, to_csv, unguarded
from nclib.common.checks import check_array, check_count
from nclib.common.files import digest, replacing, write_atomically
from nclib.common.version import VERSION
from nclib.noise import calibration as compare
from nclib.noise import detection
from nclib.readers.captions_table import one_line

Array = NDArray[Any]
COLUMNS = (
    *("id", "image", "caption", "score", "p_wrong", "p_low", "p_high", "rank", "reason"),
    *("partner_id", "partner_score", "partner_margin", "partner_mass", "partner_p"),
    *("image_duplicate_of", "caption_duplicate_of"),
)
ASSUMPTION = (
    "The share is that of captions that do not belong to their picture at all, as captions exchanged at "
    "random do not. Wrong captions that are related to the picture, such as those of a similar one, look "
    "right to any embedding: neither share nor probabilities show them. Marks of the pairs whose label "
    "teaches most show how many there are."
)
#: Pairs at least this likely to be wrong are called wrong, and are not kept.
WRONG_FROM = 0.5
#: Least P(wrong) of a pair in a run of rows that is shifted, and the ends of its interval.
IN_A_RUN = (0.95, 0.5, 0.99)
#: Part of the exchanges with similar pictures that are found, below which such mistakes count as hidden.
INVISIBLE = 0.2
#: Pairs that the page asks about; fewest labels of asked pairs that a share is estimated by.
ASKED, FEWEST_ASKED = 60, 10
LABELS = ("wrong", "right", "unsure")


class BlindSpot(NamedTuple):
    """Part of planted exchanges that an audit calls wrong.

    Parameters
    ----------
    near, random : float
        Of captions with one of the eight pictures most similar to their own, and with random ones.
    """

    near: float
    random: float

    @property
    def hides(self) -> bool:
        """Whether mistakes among similar pictures are nearly invisible."""
        return self.near < INVISIBLE

    def __str__(self) -> str:
        hint = ": the share is a lower bound" if self.hides else ""
        return (
            "Of captions planted on one of the eight most similar pictures this audit finds "
            f"{self.near:.0%}, of captions planted at random {self.random:.0%}{hint}."
        )


@dataclass
class Findings:
    """Table, share of wrong pairs, and what the probabilities assume: an audit, less its page.

    Attributes
    ----------
    pairs : Pairs
    neighbours : Neighbours
    score : str
        Name of the score in use.
    settings : dict
        Settings of the call, and what was measured on planted exchanges.
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
    asked : dict of str to float
        Pairs that :meth:`ask` has named, with their chances of being named, up to a factor.
    warnings, findings : list of str
        Sentences that come first: why the share is not to be trusted; and what else was found, such as
        captions that stand on many pictures.
    second_share : Share or None
        Share of wrong pairs by the standardised cosine alone, which depends on no other pair.
    contradicted : bool
        Whether the score and the standardised cosine contradict each other about the share.
    blind_spot : BlindSpot or None
        Which part of planted exchanges with similar pictures, and with random ones, the audit finds.
    repeats : DataFrame
        Captions that stand on many pictures, and pictures with many captions: ``kind`` ("caption" or
        "picture"), ``name``, ``times``, and ``wrong``, the expected share of its pairs that are wrong.
    groups : list of str
        Names of the groups of pairs that have probabilities of their own.
    inside : DataFrame
        Share of pairs in each group that fit no better than pairs exchanged within it, an estimate of
        the mistakes inside the group; the last row is of all groups but that of the rarer values.
    by : DataFrame
        Share of wrong pairs in each group: ``value``, ``pairs``, ``share``, ``low`` and ``high``.
    """

    pairs: Pairs
    neighbours: Neighbours
    score: str
    settings: dict[str, Any]
    table: pd.DataFrame
    share: Share
    curves: dict[str, Any]
    assumption: str
    patterns: list[dict[str, Any]]
    calibration: Calibration = field(repr=False)
    plan: Partners = field(repr=False)
    proposed: Array = field(repr=False)
    labels: dict[str, str] = field(default_factory=dict, repr=False)
    edits: dict[str, str] = field(default_factory=dict, repr=False)
    asked: dict[str, float] = field(default_factory=dict, repr=False)
    warnings: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    second_share: Share | None = None
    contradicted: bool = False
    blind_spot: BlindSpot | None = None
    repeats: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    kind: Array = field(kw_only=True, repr=False)
    groups: list[str] = field(default_factory=list, repr=False)
    inside: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    by: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    @property
    def shifted(self) -> NDArray[np.bool_]:
        """Pairs in a run that is shifted, (M,)."""
        return in_runs(self.pairs, self.patterns)

    @property
    def ask_first(self) -> bool:
        """Whether labels of :meth:`ask` come before the answer: parts of it disagree, or mistakes hide."""
        hidden = self.blind_spot is not None and self.blind_spot.hides and not self.labels
        return bool(self.warnings) or hidden

    def shares(self, calibration: Calibration) -> pd.DataFrame:
        """Return the share of wrong pairs in each group by a calibration; an empty table without groups."""
        group = np.zeros(len(self.pairs), np.int64) if self.pairs.group is None else self.pairs.group
        return shares(calibration, self.table["score"].to_numpy(), self.kind, group, self.groups)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Pairs that can be judged and are not judged wrong, (M,); without probabilities all that can."""
        return self.pairs.usable & ~(self.table["p_wrong"].to_numpy() >= WRONG_FROM)

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
        check_count("k", k)
        names = np.array([*self.pairs.ids, ""], dtype=object)
        first = first_pair(self.pairs)
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
        wrong, known = self._truth(truth)
        p = self.table["p_wrong"].to_numpy()
        use = known & self.pairs.usable
        # Equal probabilities are ordered as the table's rank is.
        fit = self.table["rank"].to_numpy()[use].astype(float)
        y = wrong[use]
        out: dict[str, float | None] = {"n": int(use.sum()), "n_wrong": int(y.sum())}
        found = detection(fit, ~y) if len(y) else {}
        out |= {"auroc": found.get("auc"), "average_precision": found.get("ap")}
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

    def _truth(self, truth: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        n = len(self.pairs)
        if isinstance(truth, Mapping):
            self._check_ids(truth)
            known = np.array([i in truth for i in self.pairs.ids])
            return np.array([bool(truth.get(i, False)) for i in self.pairs.ids]), known
        wrong = np.asarray(truth)
        check_array("truth, True where wrong,", wrong, "booleans", n)
        return wrong, np.ones(n, bool)

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
        open_rows = self.table[self.pairs.usable & ~self.table["id"].isin(list(self.labels))]
        open_rows = open_rows.sort_values("rank")
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
            :func:`nclib.auditing.labels.relabelled`. Partners and patterns are as before. Labels that
            contradict each other or the scores are named in :attr:`findings`.
        """
        if isinstance(labels, (str, Path)):
            labels = read_marks(Path(labels))
        new, double = self._labels(labels)
        told = {**self.labels, **new}
        sure = {k: v == "wrong" for k, v in told.items() if v != "unsure"}
        rows = np.array([self.pairs.row_of[k] for k in sure], np.int64)
        wrong = np.array(list(sure.values()), bool)
        judged = self.pairs.usable[rows]
        score = self.table["score"].to_numpy()
        calibration, assumption, doubted = self.calibration, self.assumption, list[str]()
        settings: dict[str, float] = {"labels": len(rows)}
        if judged.any():
            given, of = score[self.pairs.usable], rows[judged]
            made = relabelled(calibration, given, score[of], self.kind[of], wrong[judged])
            calibration = made.calibration
            settings |= {"mistaken_labels": made.rate, "labels_contradict": made.unseen}
            doubted = [self.pairs.ids[row] for row in of[made.doubted]]
            if self.contradicted:
                calibration = self._by_sample(calibration, sure)
            assumption = f"{ASSUMPTION} They are corrected by {len(rows)} labels given by a person."
        table = with_probabilities(self.table, self.pairs, calibration, self.kind, self.shifted)
        for name in ("p_wrong", "p_low", "p_high"):
            table.loc[rows, name] = wrong.astype(float)
        table["rank"] = _rank(table)
        edits = self.edits | self._edits(labels)
        if edits:
            table["new_caption"] = table["id"].map(edits).fillna("")
        return replace(
            self,
            table=table,
            share=calibration.share,
            curves={**self.curves, "threshold": threshold_costs(table)},
            assumption=assumption,
            settings=self.settings | settings,
            labels=told,
            warnings=[w for w in self.warnings if not w.startswith(MARKS)]
            + marks_warning(self.calibration.share, calibration.share, settings.get("labels_contradict", 0)),
            findings=[f for f in self.findings if not f.startswith(MARKS)]
            + about_marks(double, self._apart(sure), doubted),
            edits=edits,
            by=self.shares(calibration),
        )

    def _by_sample(self, calibration: Calibration, sure: dict[str, bool]) -> Calibration:
        """Return the calibration before labels with the share that labels of asked pairs give.

        Where scores contradict each other, labels of a random sample are believed rather than any score.
        """
        if not self.asked:  # by the page of an audit that is made again
            self.ask(ASKED)
        names = [name for name in sure if name in self.asked]
        if len(names) < FEWEST_ASKED:
            return calibration
        score = self.table["score"].to_numpy()
        p = np.zeros(len(score))
        p[self.pairs.usable] = self.calibration(score[self.pairs.usable], self.kind[self.pairs.usable])[0]
        at = np.array([self.pairs.row_of[name] for name in names])
        place = np.cumsum(self.pairs.usable) - 1
        chance = np.array([self.asked[name] for name in names])
        share = by_sample(p[self.pairs.usable], place[at], chance, np.array([sure[name] for name in names]))
        return self.calibration.with_share(share)

    def _apart(self, sure: dict[str, bool]) -> list[str]:
        """Return the labelled pairs that have another label than a pair with the same picture and caption."""
        rows = np.array([self.pairs.row_of[k] for k in sure], np.int64)
        pair = pd.Series(copies_of(self.pairs, self.neighbours).pair(rows, self.pairs.image_of[rows]))
        mixed = pd.Series(list(sure.values()), dtype=bool).groupby(pair).transform("nunique") > 1
        return [name for name, both in zip(sure, mixed, strict=True) if both]

    def _labels(self, labels: Any) -> tuple[dict[str, str], list[str]]:
        """Return labels by id, checked, and the pairs with several labels, which count as "unsure"."""
        double: list[str] = []
        if isinstance(labels, pd.DataFrame):
            if missing := {"id", "label"} - set(labels.columns):
                raise ValueError(f"labels need columns id and label; missing: {', '.join(sorted(missing))}")
            labels = labels[["id", "label"]].astype(str)
            labels["label"] = labels["label"].str.strip().str.lower()
            labels = labels[~labels["label"].isin(["", "nan"])].drop_duplicates()
            sure = labels["id"][labels["label"] != "unsure"]
            double = sure[sure.duplicated()].unique().tolist()
            labels = dict(zip(labels["id"], labels["label"], strict=True)) | dict.fromkeys(double, "unsure")
        new = {str(k): str(v).strip().lower() for k, v in dict(labels).items()}
        new = {k if k in self.pairs.row_of else unguarded(k): v for k, v in new.items()}
        new = {k: v for k, v in new.items() if v not in ("", "nan")}
        if bad := next(((k, v) for k, v in new.items() if v not in LABELS), None):
            raise ValueError(f"label of {bad[0]!r} is {bad[1]!r}; must be one of {', '.join(LABELS)}")
        self._check_ids(new)
        return new, double

    def _edits(self, labels: Any) -> dict[str, str]:
        """Return edited captions by id."""
        if not isinstance(labels, pd.DataFrame) or "new_caption" not in labels:
            return {}
        said = labels[["id", "new_caption"]].fillna("").astype(str).to_numpy().tolist()
        found = {k if k in self.pairs.row_of else unguarded(k): one_line(unguarded(text)) for k, text in said}
        found = {k: text for k, text in found.items() if text}
        self._check_ids(found)
        return found

    def weakness(self) -> str:
        """Return a warning where the score hardly tells given from exchanged pairs; empty where it does."""
        area = self.settings["auroc_on_exchanged"].get(self.score)
        if area is None or area >= WEAK or not np.isfinite(self.share.value):
            return ""
        return (
            "The score hardly tells the given pairs from captions exchanged at random: the area under its "
            f"ROC curve is {area:.2f}, where 1 is perfect and 0.5 is chance. Either most pairs are wrong, or "
            "the embeddings do not fit these data: check some pairs by eye, and try a pretrained model "
            "(--model)."
        )

    def save(self, folder: str | Path) -> Path:
        """Write table, keep-lists and settings as files, each atomically, and return the folder.

        ``pairs.csv`` and, with pyarrow installed, ``pairs.parquet``: the table; in CSV files, text that a
        spreadsheet would run as a formula begins with ``'``. ``ids.npy``: sorted ids of
        pairs to keep, P(wrong) < 1/2; ids of 32 hexadecimal digits as pairs of 64-bit numbers, DataComp's
        layout. ``keep.txt``: the same, one a line. ``cleanlab.csv`` and ``fiftyone.json``: columns for
        these tools. ``audit.json``: settings, share, patterns, checksums, versions.
        """
        folder, table = Path(folder), self.table
        p = table["p_wrong"].to_numpy()
        keep = table["id"][self.kept].tolist()
        copies = (table["image_duplicate_of"] != "") | (table["caption_duplicate_of"] != "")
        issues = table[["id"]].assign(
            is_image_caption_issue=p >= WRONG_FROM,
            image_caption_score=1 - p,
            is_near_duplicate_issue=copies,
        )
        samples = table[["id", "image", "caption", "p_wrong", "rank", "reason", "partner_id"]]
        samples = samples.rename(columns={"image": "filepath"})
        facts = json.dumps(_plain(self._facts()), indent=1, ensure_ascii=False, allow_nan=False)
        texts = {
            "pairs.csv": to_csv(table),
            "keep.txt": "".join(f"{i}\n" for i in keep),
            "cleanlab.csv": to_csv(issues),
            "fiftyone.json": samples.to_json(orient="records", force_ascii=False) + "\n",
            "audit.json": facts + "\n",
        }
        for name, text in texts.items():
            write_atomically(folder / name, text)
        with replacing(folder / "ids.npy") as file:
            np.save(file, _sorted_ids(keep), allow_pickle=False)
        if importlib.util.find_spec("pyarrow"):
            with replacing(folder / "pairs.parquet") as file:
                table.to_parquet(file, index=False)
        return folder

    def _facts(self) -> dict[str, Any]:
        pairs, kinds = self.pairs, [one["kind"] for one in self.patterns]
        shifts = [one for one in self.patterns if one["kind"] == "shift"]
        versions = {"python": platform.python_version(), "numpy": np.__version__, "pandas": pd.__version__}
        return {
            "nclib": VERSION,
            "versions": versions,
            "settings": self.settings,
            "seed": self.settings["seed"],
            "score": self.score,
            "pairs": len(pairs),
            "pictures": pairs.n_images,
            "not_judged": len(pairs.problems),
            "share": self.share._asdict(),
            "second_share": self.second_share and self.second_share._asdict(),
            "blind_spot": self.blind_spot and self.blind_spot._asdict(),
            "by": self.by.to_dict("records"),
            "inside": self.inside.to_dict("records"),
            "warnings": self.warnings,
            "findings": self.findings,
            "assumption": self.assumption,
            "threshold": self.curves["threshold"],
            "reliability": self.curves["reliability"],
            "patterns": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "shifts": [{**one, "ids": [one["ids"][0], one["ids"][-1]]} for one in shifts],
            "sha256": {k: digest(getattr(pairs, k)) for k in ("images", "captions", "image_of", "ids")},
        }


def with_probabilities(
    table: pd.DataFrame, pairs: Pairs, calibration: Calibration, kind: Array, shifted: Array
) -> pd.DataFrame:
    """Return the table with P(wrong), its interval and ranks that follow from scores, kinds and order.

    ``shifted``, (M,) of bool, are pairs in a run that is shifted: nearly all of them are wrong.
    """
    ends = calibration(table["score"].to_numpy(), kind).T
    if not calibration.reason:
        ends[shifted] = np.maximum(ends[shifted], IN_A_RUN)
    ends[~pairs.usable] = np.nan
    table = table.assign(**{n: ends[:, i] for i, n in enumerate(("p_wrong", "p_low", "p_high"))})
    return table.assign(rank=_rank(table))


def in_runs(pairs: Pairs, patterns: list[dict[str, Any]]) -> NDArray[np.bool_]:
    """Return which pairs, (M,), stand in a run that is shifted."""
    inside = np.zeros(len(pairs), bool)
    inside[[pairs.row_of[name] for one in patterns if one["kind"] == "shift" for name in one["ids"]]] = True
    return inside & pairs.usable


def with_order(share: Share, before: Array, after: Array) -> Share:
    """Return the share of wrong pairs with what the order of rows adds to their probabilities."""
    added = float(np.nansum(after - before) / max(1, np.isfinite(before).sum()))
    return Share(*(min(1.0, end + added) for end in share)) if added > 0 else share


def asking_chance(p: Array) -> Array:
    """Return the chances, up to a factor, with which :meth:`Findings.ask` takes pairs of P(wrong) ``p``."""
    p = np.where(np.isnan(p), 0.5, p)
    return np.asarray(np.sqrt(p * (1 - p)) + 0.05)


def threshold_costs(table: pd.DataFrame) -> dict[str, Array]:
    """Return the expected counts of :attr:`Findings.curves` at thresholds ``t``, (101,) each."""
    p = np.sort(table["p_wrong"].dropna().to_numpy())
    t = np.linspace(0, 1, 101)
    at = np.searchsorted(p, t)
    wrong_kept, dropped = np.concatenate([[0.0], np.cumsum(p)])[at], len(p) - at
    right_lost = dropped - (p.sum() - wrong_kept)
    return {"t": t, "dropped": dropped, "wrong_kept": wrong_kept, "right_lost": right_lost}


def _rank(table: pd.DataFrame) -> Array:
    """Return ranks by falling P(wrong), then rising score; pairs that cannot be judged come last."""
    p, score = (table[name].to_numpy() for name in ("p_wrong", "score"))
    order = np.lexsort((score, np.where(np.isnan(p), 0.0, -p), np.isnan(score)))
    rank = np.empty(len(p), np.int64)
    rank[order] = np.arange(1, len(p) + 1)
    return rank


def _sorted_ids(ids: list[str]) -> Array:
    if ids and all(re.fullmatch("[0-9a-f]{32}", i) for i in ids):
        halves = [(int(i[:16], 16), int(i[16:], 16)) for i in ids]
        return np.sort(np.array(halves, np.dtype("u8,u8")))
    return np.sort(np.array(ids, dtype=np.str_))


def _plain(value: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
