"""The experiment of a method: on mismatched pairs, or on wrong labels."""

from __future__ import annotations

from nclib import label_noise, methods
from nclib.common.options import did_you_mean
from nclib.runs.labels import LabelExperiment
from nclib.runs.pairs import PairExperiment


def experiment_of(method: str) -> PairExperiment | LabelExperiment:
    """Return the experiment of a method: its parameters, and its runs.

    Parameters
    ----------
    method : str
        One of ``nclib.methods.available()`` or ``nclib.label_noise.available()``.

    Returns
    -------
    PairExperiment or LabelExperiment

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.

    Examples
    --------
    >>> experiment_of("l2rm").parameters()["rho"].describe()
    'must be a number, above 0 and at most 1'
    """
    pairs, labels = list(methods.available()), list(label_noise.available())
    if method in pairs:
        return PairExperiment(method)
    if method in labels:
        return LabelExperiment(method)
    every = pairs + labels
    hint = (
        did_you_mean(method, every) or "; import the file that registers it first (nclib run --import FILE)"
    )
    raise ValueError(f"method={method!r}: must be one of {', '.join(every)}{hint}")
