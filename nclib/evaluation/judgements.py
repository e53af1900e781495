"""Agreement of scores with people who judged whether a caption fits a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nclib.common.checks import check_array


@dataclass(frozen=True)
class Judgements:
    """Pairs of a picture and a caption that people rated.

    Parameters
    ----------
    image, caption : ndarray, int64, (n,)
        Rows in a split.
    rating : ndarray, float64, (n,)
        Mean rating of a pair; larger fits better.
    fits_from : float
        Least rating of a pair that fits.

    Raises
    ------
    ValueError
        When a rating is not finite.
    """

    image: NDArray[np.int64]
    caption: NDArray[np.int64]
    rating: NDArray[np.float64]
    fits_from: float

    def __post_init__(self) -> None:
        if not (good := np.isfinite(self.rating)).all():
            row = int(good.argmin())
            raise ValueError(f"rating {row} is {self.rating[row]}; ratings are finite numbers")

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether each pair fits, (n,)."""
        return self.rating >= self.fits_from

    def agreement(self, score: Any) -> dict[str, float]:
        """Compare the scores of the judged pairs with their ratings.

        Parameters
        ----------
        score : ndarray or Tensor, (n,)
            Larger means a better fit.

        Returns
        -------
        dict
            ``tau``, Kendall's tau-c of score and rating, in [-1, 1]; ``auc``, the probability that a pair
            that fits outscores one that does not; ``ap``, the average precision of the pairs that do not fit.

        Raises
        ------
        ValueError
            When the number of scores is another, or all pairs fit, or none.
        """
        from scipy.stats import kendalltau
        from sklearn.metrics import average_precision_score, roc_auc_score

        values = np.asarray(score, np.float64)
        check_array("score, one per judged pair,", values, "float64", len(self.rating))
        if self.fits.all() or not self.fits.any():
            raise ValueError(
                f"{int(self.fits.sum())} of {len(values)} judged pairs fit; both kinds are needed"
            )
        return {
            "tau": float(kendalltau(values, self.rating, variant="c").statistic),
            "auc": float(roc_auc_score(self.fits, values)),
            "ap": float(average_precision_score(~self.fits, -values)),
        }
