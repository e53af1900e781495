"""What an audit believes: the score in use, P(wrong) of every pair, the share of wrong pairs, and doubts.

The decision in one place: 1. :func:`believe` takes the score that tells given pairs best from pairs that are
wrong by construction, and calibrates it; 2. the standardised cosine gives a second opinion about the share;
3. runs of shifted rows raise P(wrong); 4. :meth:`Belief.told` corrects it by labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.auditing.exchanges import Queries
from nclib.auditing.labels import Corrected, by_sample, relabelled
from nclib.auditing.pairs import Indices, Pairs, exchange
from nclib.auditing.scores import Context, Random, Scored, opinions_of, standardised_by, with_random
from nclib.auditing.share import Calibration, Sample, Share, calibrate, interval
from nclib.auditing.within import TOLD_APART, Groups, Within, within
from nclib.auditing.wording import Words
from nclib.noise import auc
from nclib.noise import calibration as compare

Array = NDArray[Any]
#: Pairs at least this likely to be wrong are called wrong, and are not kept.
WRONG_FROM = 0.5
#: Probability beforehand that a calibration does not hold where scores contradict each other.
DOUBT = 0.5
#: Least P(wrong) of a pair in a run of rows that is shifted, and the ends of its interval; share of wrong
#: pairs in such runs.
IN_A_RUN, SHARE_IN_RUNS = (0.95, 0.5, 0.99), (0.95, 0.9, 0.99)
#: Area under the ROC curve of the score on exchanged pairs, below which it is weak; part of the exchanges
#: with similar pictures that are found, below which such mistakes count as hidden.
WEAK, INVISIBLE = 0.8, 0.2
#: Most pairs that the first answer rests on.
FIRST = 20_000
#: Fewest labels of asked pairs that a share is estimated by; fewest pairs of another file, that theirs is.
FEWEST_ASKED, FEWEST_ADAPTED = 10, 200
ASSUMPTION = (
    "The share is that of {1}s that do not belong to their {0} at all, as {1}s exchanged at random do not. "
    "Wrong {1}s that are related to the {0}, such as those of a similar one, look right to any embedding: "
    "neither share nor probabilities show them. Marks of the pairs whose label teaches most show how many "
    "there are."
)


class BlindSpot(NamedTuple):
    """Part of planted exchanges that an audit calls wrong.

    Parameters
    ----------
    near, random : float
        Of captions with one of the eight pictures most similar to their own, and with random ones.
    most : float or None
        Upper end of the share of wrong pairs, those included that fit no better than the former exchanges.
    words : Words
        What pictures and captions are called.
    """

    near: float
    random: float
    most: float | None = None
    words: Words = Words()

    @property
    def hides(self) -> bool:
        """Whether mistakes among similar pictures are nearly invisible."""
        return self.near < INVISIBLE

    def __str__(self) -> str:
        hint, (picture, caption) = ": the share is a lower bound" if self.hides else "", self.words
        if self.hides and self.most is not None:
            hint += f", and with mistakes among similar {picture}s it is at most {self.most:.0%}"
        return (
            f"Of {caption}s planted on one of the eight most similar {picture}s this audit finds "
            f"{self.near:.0%}, of {caption}s planted at random {self.random:.0%}{hint}."
        )


@dataclass(frozen=True)
class Belief:
    """Score in use, its calibration, and what order of rows and labels add.

    Parameters
    ----------
    context : Context
        Pairs and their neighbours.
    queries : Queries
        Given and exchanged pairs.
    opinions : tuple of Scored
        The score that was asked for, and the standardised cosine.
    calibration : Calibration
        P(wrong) by score and kind of pair.
    second : Share or None
        Share of wrong pairs by the standardised cosine alone, which depends on no other pair.
    contradicted : (str, Share) or None
        A score whose share has no value in common with the second, and is not believed.
    shifted : ndarray of bool, (M,)
        Pairs in a run of rows that is shifted: nearly all of them are wrong.
    seed : int
    inside : Within or None
        Pairs that fit no better than exchanges within a value of the column that was named.
    before : Calibration or None
        That before labels of a person.
    marks : Corrected or None
        What labels changed.
    n_marks : int
    asked : Share or None
        Share by labels of a random sample, where it is believed rather than any score.
    """

    context: Context
    queries: Queries
    opinions: tuple[Scored, ...]
    calibration: Calibration
    second: Share | None
    contradicted: tuple[str, Share] | None
    shifted: NDArray[np.bool_]
    seed: int
    inside: Within | None = None
    before: Calibration | None = None
    marks: Corrected | None = None
    n_marks: int = 0
    asked: Share | None = None

    @property
    def pairs(self) -> Pairs:
        """The pairs that are judged."""
        return self.context.pairs

    @cached_property
    def kind(self) -> Indices:
        """Kinds of the given pairs, (M,)."""
        return self.context.copies.kind(np.arange(len(self.pairs)), self.pairs.image_of)

    @property
    def scored(self) -> Scored:
        """The score in use, with its values of the queries."""
        return self.opinions[-1 if self.contradicted else 0]

    @property
    def reason(self) -> str:
        """Why there are no probabilities; empty where there are."""
        return self.calibration.reason

    @cached_property
    def score(self) -> Array:
        """Scores of the given pairs, (M,); NaN where a pair cannot be judged."""
        score = np.full(len(self.pairs), np.nan)
        score[self.queries.usable] = self.scored.values[0]
        return score

    @cached_property
    def ends(self) -> Array:
        """P(wrong) of the given pairs, its lower and its upper end, (3, M); NaN for those not judged."""
        ends = self.calibration(self.score, self.kind)
        if not self.reason:
            if self.inside is not None:
                ends = 1 - (1 - ends) * (1 - self.inside.ends)
            ends[:, self.shifted] = np.maximum(ends[:, self.shifted], np.array(IN_A_RUN)[:, None])
        ends[:, ~self.pairs.usable] = np.nan
        return ends

    @property
    def scores_decide(self) -> NDArray[np.bool_]:
        """Pairs that can be judged and stand in no shifted run, (M,)."""
        return self.pairs.usable & ~self.shifted

    @property
    def columns(self) -> dict[str, Array]:
        """Columns ``p_wrong``, ``p_low`` and ``p_high`` of the table."""
        return dict(zip(("p_wrong", "p_low", "p_high"), self.ends, strict=True))

    @property
    def share(self) -> Share:
        """Share of wrong pairs with a 95 % interval: of the calibration, and what values and runs add.

        Of right pairs, too, some fit no better than exchanges within their value, and nothing tells how many:
        the lower end leaves them all out.
        """
        if self.asked is not None:
            return self.asked
        share = self._with_runs(self.calibration.share, self.pairs.usable)
        if self.reason or self.inside is None:
            return share
        value, high = (1 - (1 - share[k]) * (1 - self.inside.share[k]) for k in (0, 2))
        return Share(value, share.low, max(high, self.inside.most))

    def _with_runs(self, share: Share, rows: NDArray[np.bool_]) -> Share:
        """Return the share of some pairs whose part outside shifted runs has the given one."""
        part = float(self.shifted[rows].mean()) if rows.any() else 0.0
        return Share(*((1 - part) * end + part * run for end, run in zip(share, SHARE_IN_RUNS, strict=True)))

    @property
    def by_value_only(self) -> NDArray[np.bool_]:
        """Pairs that are called wrong by exchanges within their value, and not by those at random, (M,)."""
        alone = self.calibration(self.score, self.kind)[0]
        return (self.ends[0] >= WRONG_FROM) & (alone < WRONG_FROM) & ~self.shifted

    def wrong_at(self, rows: Indices, of: Indices) -> Array:
        """Return P(wrong) of captions ``rows`` with pictures ``of``, (Q,)."""
        return self.calibration(self.scored.fit(rows, of), self.context.copies.kind(rows, of))[0]

    @cached_property
    def blind_spot(self) -> BlindSpot | None:
        """How many planted exchanges are called wrong: with similar pictures, and with random ones."""
        if self.reason or not len(self.scored.values[2]):
            return None
        called = (self.calibration(self.scored.values[k], self.queries.kinds[k])[0] for k in (2, 1))
        near, random = (float((p >= WRONG_FROM).mean()) for p in called)
        return BlindSpot(near, random, self._most(), self.pairs.words)

    def _most(self) -> float | None:
        """Return the upper end of the share of wrong pairs, those among similar pictures included.

        Pairs are compared with exchanges with similar pictures; those that are wrong as exchanges at random
        are in the share already. Mistakes among less similar pictures fit worse than such exchanges, so that
        they count for more than they are. None where given and exchanged pairs are hardly told apart, after
        labels, and where a column was named: its own exchanges say more.
        """
        given, _, near, _ = self.opinions[0].values
        target = np.arange(len(given) + len(near)) < len(given)
        told_apart = (auc(np.concatenate([given, near]), target) or 0) >= TOLD_APART
        if self.n_marks or self.inside is not None or not told_apart:
            return None
        right, null = (1 - self.calibration(self.scored.values[k], self.queries.kinds[k])[0] for k in (0, 2))
        count = self.queries.count
        some = Sample.alike(given, count * right, self.queries.sets[0][1]).of(count > 0)
        found = calibrate(some, Sample.alike(near, null), self.seed)
        high = some.number.sum() / count.sum() * found.share.high
        return float(1 - (1 - self.share.high) * (1 - high))

    def by_value(self, names: list[str]) -> pd.DataFrame:
        """Return ``value``, ``pairs`` that can be judged, ``share``, ``low`` and ``high`` of each group."""
        rows = []
        for number, name in enumerate(names):
            every = (self.pairs.group == number) & self.pairs.usable
            mine, ends = every & self.scores_decide, Share(np.nan, 0.0, 1.0)
            if not self.reason and mine.any():
                rng = np.random.default_rng(number)
                found = (
                    self.calibration.curves[k].counted(self.score[mine & (self.kind == k)], rng)
                    for k in np.unique(self.kind[mine])
                )
                wrong, n = np.sum([*found], axis=0)
                ends = interval(wrong / np.maximum(n, 1), n[0])
            rows.append((name, int(every.sum()), *self._with_runs(ends, every)))
        return pd.DataFrame(rows, columns=["value", "pairs", "share", "low", "high"])

    @property
    def reliability(self) -> list[tuple[float, float, int]]:
        """Return (stated probability of being planted, share planted, pairs) in ten bins.

        The scores with planted exchanges in the places of given ones are calibrated again; of the probability
        of being wrong, the part (planted share) / (estimated share) is that of being planted, as wrong pairs
        are alike.
        """
        given, exchanged, _, planted_scores = self.scored.values
        planted = np.searchsorted(self.queries.usable, self.queries.planted)
        trial, kind = given.copy(), self.queries.kinds[0].copy()
        trial[planted], kind[planted] = planted_scores, self.queries.kinds[3]
        made = calibrate(*self.queries.samples(trial, exchanged, kind), self.seed)
        if made.reason:
            return []
        is_planted = np.zeros(len(trial), bool)
        is_planted[planted] = True
        stated = made(trial, kind)[0] * is_planted.mean() / max(made.share.value, is_planted.mean())
        found = compare(stated, is_planted)
        rows = zip(found["stated"], found["observed"], found["count"], strict=True)
        return [(s, o, n) for s, o, n in rows if n]

    def in_order(self, shifted: NDArray[np.bool_]) -> Belief:
        """Return the belief where some pairs, (M,), stand in a run of rows that is shifted.

        The others are calibrated again: the calibration may have counted those of the run, or not, as in a
        file in order its wrong pairs are not like exchanges at random.
        """
        if self.reason or not (shifted & self.pairs.usable).any():
            return self
        found = _decided(self.context, self.queries, self.opinions, shifted, self.seed)
        return replace(found, inside=self.inside)

    def among_alike(self, groups: Groups | None) -> Belief:
        """Return the belief with what exchanges within the values of a column show."""
        if self.reason or groups is None:
            return self
        right, of = 1 - np.nan_to_num(self.ends[0]), f"the same {groups.column or 'value'}"
        found = within(self.context, groups.values, of, right, self.scored.fit, self.seed)
        return replace(self, inside=found)

    @cached_property
    def carried(self) -> Calibration:
        """Calibration of the standardised cosine for pairs of other files, with the share believed here."""
        given, exchanged = self.queries.samples(*self.opinions[-1].values[:2])
        given, exchanged = (one._replace(kind=np.zeros_like(one.kind)) for one in (given, exchanged))
        found = calibrate(given, exchanged, self.seed)
        return found.with_share(self.asked or self.calibration.share)

    def judge(self, new: Pairs, adapt: bool) -> tuple[Array, Array, Share]:
        """Return scores, P(wrong) with its ends, (3, M), and the share of wrong ones of other pairs."""
        rows, calibration = np.flatnonzero(new.usable), self.carried
        score, ends = np.full(len(new), np.nan), np.full((3, len(new)), np.nan)
        score[rows] = standardised_by(new, with_random(new, self.pairs), rows, new.image_of[rows])
        if adapt and len(rows) >= FEWEST_ADAPTED:
            rng = np.random.default_rng(self.seed)
            found = calibration.curves[0].other_shares(score[rows], calibration.shares, rng)
            calibration = calibration.with_share(interval(found, len(rows)))
        ends[:, rows] = calibration(score[rows], np.zeros(len(rows), np.int64))
        return score, ends, calibration.share

    def told(self, rows: Indices, wrong: NDArray[np.bool_], chance: Array) -> Belief:
        """Return the belief after labels, which replace those of an earlier call.

        Parameters
        ----------
        rows : ndarray of int64, (L,)
        wrong : ndarray of bool, (L,)
        chance : ndarray, (L,)
            Chances, up to a factor, with which the pairs were asked about; NaN for labels of other pairs.
        """
        base, judged = self.before or self.calibration, self.scores_decide[rows]
        if not judged.any():
            return replace(self, n_marks=len(rows))
        at, said, asked = rows[judged], wrong[judged], np.isfinite(chance)
        marks = relabelled(base, self.scored.values[0], self.score[at], self.kind[at], said)
        told = replace(self, before=base, marks=marks, n_marks=len(rows), asked=None)
        by_model = replace(told, calibration=marks.calibration)
        if base.reason or asked.sum() < FEWEST_ASKED:
            return told if self.inside is not None else by_model
        # Labels of a random sample are believed rather than scores that contradict each other, or exchanges
        # within a value, whose share is an estimate. Elsewhere, where sample and model disagree, there are
        # mistakes that no score sees, or mistaken labels: the interval holds both.
        usable, old = self.queries.usable, replace(told, calibration=base)
        place, model = np.searchsorted(usable, rows[asked]), by_model.share
        rate = marks.rate if self.contradicted or self.inside is not None else 0.0
        share = by_sample(old.ends[0][usable], place, chance[asked], wrong[asked], rate)
        if self.inside is not None:
            return replace(told, asked=share)
        if not self.contradicted:
            if share.low <= model.value <= share.high:
                return by_model
            ends = min(share.low, model.low), max(share.high, model.high)
            return replace(by_model, asked=Share((share.value + model.value) / 2, *ends))
        part = float(self.shifted.mean())
        outside = Share(*((end - part) / (1 - part) for end in share))
        return replace(told, asked=share, calibration=base.with_share(outside))

    @property
    def assumption(self) -> str:
        """Which mismatches the probabilities are calibrated for, or why there are none."""
        if self.reason:
            return f"No probabilities: {self.reason}."
        by_person = f" They are corrected by {self.n_marks} labels given by a person." if self.n_marks else ""
        return ASSUMPTION.format(*self.pairs.words) + by_person

    @property
    def warnings(self) -> list[str]:
        """Why the share is not to be trusted."""
        found = []
        if self.contradicted is not None and self.second is not None:
            name, share = self.contradicted
            found.append(
                f"Two estimates of the share of wrong pairs contradict each other: {share} by the score "
                f"{name}, {self.second} by the standardised cosine. Share and probabilities are those of the "
                "standardised cosine, and the interval holds both. Mark the pairs whose label teaches most "
                "before you rely on a number."
            )
        if self.marks and self.marks.unseen >= 0.5 and self.before and not self.before.reason:
            found.append(
                f"Marks contradict the scores: {self.calibration.share} of the pairs are wrong by the marks, "
                f"{self.before.share} by the scores alone."
            )
        return found

    @property
    def weakness(self) -> str:
        """A warning where the score hardly tells given from exchanged pairs; empty where it does."""
        area = self.scored.auroc.get(self.scored.name)
        if area is None or area >= WEAK or not np.isfinite(self.calibration.share.value):
            return ""
        return (
            "The score hardly tells the given pairs from those exchanged at random: the area under its "
            f"ROC curve is {area:.2f}, where 1 is perfect and 0.5 is chance. Either most pairs are wrong, or "
            "the embeddings do not fit these data: check some pairs by eye, and try a pretrained model "
            "(--model)."
        )


def first_share(pairs: Pairs, random: Random, seed: int) -> Share:
    """Return the share of wrong pairs by the standardised cosine, before any neighbour is known."""
    rng, rows = np.random.default_rng(seed), np.flatnonzero(pairs.usable)
    some = rng.permutation(rows)[:FIRST]
    others = [exchange(pairs, some, rng) for _ in range(max(1, FIRST // len(some) // 2))]
    sets = (some, pairs.image_of[some]), (np.tile(some, len(others)), np.concatenate(others))
    given, exchanged = (Sample.alike(standardised_by(pairs, random, *one)) for one in sets)
    return calibrate(given, exchanged, seed).share


def believe(name: str, context: Context, queries: Queries, seed: int) -> Belief:
    """Choose the score in use, calibrate it, and ask the second opinion.

    The standardised cosine of a pair depends on no other pair, so that wrong pairs have the cosines of
    exchanged ones however they became wrong. Other scores ask neighbours and siblings, by which wrong pairs
    can fit better than exchanged ones. So the share by the score is drawn towards that by the standardised
    cosine (see :meth:`nclib.auditing.share.Share.beside`) where their intervals meet. Where they do not, the
    standardised cosine is in use with its own share and its own probabilities, and the interval holds both,
    and half of their distance beyond.

    Parameters
    ----------
    name : str
        One of :data:`nclib.auditing.SCORES`, or "auto".
    context : Context
    queries : Queries
    seed : int
    """
    none = np.zeros(len(context.pairs), bool)
    return _decided(context, queries, opinions_of(name, context, queries.sets, seed), none, seed)


def _decided(
    context: Context,
    queries: Queries,
    opinions: tuple[Scored, ...],
    shifted: NDArray[np.bool_],
    seed: int,
) -> Belief:
    """Return which of two opinions is believed, and how far, about the pairs outside shifted runs."""
    left = replace(queries, count=np.where(shifted[queries.usable], 0, queries.count))
    mine, other = (calibrate(*left.samples(*one.values[:2]), seed) for one in opinions)
    second, contradicted = None if mine.reason else other.share, None
    if not mine.reason and not other.reason:
        if mine.share.meets(other.share):
            mine = mine.with_share(mine.share.beside(other.share))
        else:
            contradicted = opinions[0].name, mine.share
            # What misleads the one score may mislead the other, in the same direction, half as far.
            far = abs(mine.share.value - other.share.value) / 2
            low, high = max(0.0, other.share.low - far), min(1.0, other.share.high + far)
            ends = min(mine.share.low, low), max(mine.share.high, high)
            mine = replace(other, share=Share(other.share.value, *ends), doubt=DOUBT)
    return Belief(context, queries, opinions, mine, second, contradicted, shifted, seed)
