"""Other pictures for the captions that are called wrong, as likely as planted exchanges show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nclib.auditing.belief import WRONG_FROM, Belief
from nclib.auditing.copies import first_pair
from nclib.auditing.pairs import Indices, Pairs, exchange
from nclib.auditing.partners import Partners, find_partners

Array = NDArray[Any]
#: Planted exchanges with a candidate that the probability of a partner is learnt from: fewest, and those
#: wanted, in at most five draws. Least probability of a partner that is proposed.
FEWEST, TRIALS, PROPOSED_FROM = 20, 1000, 0.2


class Proposals(NamedTuple):
    """Other pictures for the captions that are called wrong.

    Parameters
    ----------
    plan : Partners
    rows, scores : ndarray, (Q,)
        Captions that are called wrong and have a candidate, and their scores with it.
    p, image : ndarray, (M,)
        Probability of the candidate, NaN without one, and the row of the picture that is proposed, else -1.
    accuracy : float or None
        Share right of what would be proposed for planted exchanges; None where nothing would be.
    """

    plan: Partners
    rows: Indices
    scores: Array
    p: Array
    image: Indices
    accuracy: float | None

    def placed(self, belief: Belief) -> Indices:
        """Return the captions that another picture fits, proposed or not.

        A caption without a place scores lower with its best candidate than 95 % of the pairs that look right.
        """
        right = belief.score[belief.ends[0] < WRONG_FROM]
        return self.rows[self.scores >= (np.quantile(right, 0.05) if len(right) else -np.inf)]

    def columns(self, pairs: Pairs) -> dict[str, Array]:
        """Return the columns of the table that name the proposed partners, (M,) each."""
        made, score = self.image >= 0, np.full(len(pairs), np.nan)
        score[self.rows] = self.scores
        # The last name is that of a picture which no caption claims.
        names = np.array([*pairs.ids, ""], dtype=object)
        numbers = {
            "partner_score": score,
            "partner_margin": self.plan.margin,
            "partner_mass": self.plan.best_mass,
            "partner_p": self.p,
        }
        return {
            "partner_id": names[np.where(made, first_pair(pairs)[self.image], -1)],
            **{name: np.where(made, values, np.nan) for name, values in numbers.items()},
        }


def propose(belief: Belief, one_to_one: bool, rng: np.random.Generator) -> Proposals:
    """Search partners for captions that may be wrong, and propose those that are likely enough."""
    context, p_wrong = belief.context, belief.ends[0]
    search = partial(
        find_partners, context.pairs, edges=context.edges, reg=context.reg, one_to_one=one_to_one
    )
    probability, accuracy = _learnt(belief, search, rng)
    plan = search(context.pairs.image_of, p_wrong=p_wrong)
    rows = np.flatnonzero((plan.image >= 0) & (p_wrong >= WRONG_FROM))
    p = np.full(len(p_wrong), np.nan)
    p[rows] = probability(_facts(belief, plan, rows))
    image = np.where(p >= PROPOSED_FROM, plan.image, -1)
    return Proposals(plan, rows, belief.scored.fit(rows, plan.image[rows]), p, image, accuracy)


def _facts(belief: Belief, plan: Partners, rows: Indices) -> Array:
    """Return what tells right candidates from others, (Q, 3): margin, part of the mass, P(wrong) there."""
    return np.stack([plan.margin[rows], plan.best_mass[rows], belief.wrong_at(rows, plan.image[rows])], 1)


def _learnt(
    belief: Belief, search: Callable[..., Partners], rng: np.random.Generator
) -> tuple[Callable[[Array], NDArray[np.float64]], float | None]:
    """Search the partners of as many exchanges as were planted, whose right picture is known, a few times.

    Returns
    -------
    probability : callable
        Facts about candidates, (Q, 3), to P(the candidate is right), (Q,).
    accuracy : float or None
        Share right of the candidates that would be proposed; None where none would be.
    """
    pairs, p_wrong, n, parts = belief.pairs, belief.ends[0], len(belief.queries.planted), []
    usable = np.flatnonzero(pairs.usable)
    for _ in range(int(np.clip(np.ceil(TRIALS / n), 1, 5))):
        planted = rng.permutation(usable)[:n]
        claimed, p = pairs.image_of.copy(), p_wrong.copy()
        claimed[planted] = exchange(pairs, planted, rng)
        p[planted] = belief.wrong_at(planted, claimed[planted])
        trial = search(claimed, p_wrong=p)
        rows = planted[(trial.image[planted] >= 0) & (p[planted] >= WRONG_FROM)]
        facts = _facts(belief, trial, rows)
        parts.append((facts, trial.image[rows] == pairs.image_of[rows], 1 - p_wrong[rows]))
    # A given pair that may be wrong counts as little as it is likely to be right.
    facts, right, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    probability = _probability(facts, right, weight)
    made = probability(facts) >= PROPOSED_FROM
    return probability, float(np.average(right[made], weights=weight[made])) if made.any() else None


def _probability(
    facts: Array, right: NDArray[np.bool_], weight: Array
) -> Callable[[Array], NDArray[np.float64]]:
    """Return P(the candidate is right), (Q,), as a function of facts about candidates, (Q, F).

    Logistic regression on planted exchanges; of few, 0; where all or none are right, the shrunk share.
    """
    if weight.sum() < FEWEST:
        return lambda q: np.zeros(len(q))
    if right.all() or not right.any():
        return lambda q: np.full(len(q), (weight @ right + 1) / (weight.sum() + 2))
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(facts, right, logisticregression__sample_weight=weight)
    return lambda q: model.predict_proba(q)[:, 1] if len(q) else np.zeros(0)
