"""The catalogue of noise estimators: what tells matched from mismatched by one number per pair."""

from __future__ import annotations

from typing import Any

from nclib.common.registry import Catalogue, Registry

ESTIMATORS: Registry[Any] = Registry("noise estimator")


def available() -> Catalogue:
    """Return the noise estimators as ``{name: summary}``; prints as a table."""
    return ESTIMATORS.catalogue()


def build(name: str, **options: Any) -> Any:
    """Return a new noise estimator.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    **options
        Passed to the estimator.

    Returns
    -------
    estimator
        Has ``fit(x)`` and ``predict_proba(x)``, (n, 2) with the clean probability in column 0.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    return ESTIMATORS.build(name, **options)
