"""Reports of a run's epochs: to a function, or to the ``log`` of an object such as a run of wandb."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def reporter(tracker: Any, before: int = 0) -> Callable[[Mapping[str, Any]], None]:
    """Return what tells a tracker a row of the curves: its finite numbers, and the epoch.

    Parameters
    ----------
    tracker : callable or object
        ``f(values, epoch)``, or an object or module with such a ``log``; ``values`` has float values.
    before : int
        Epochs that it was told before, from which those of this run count on.

    Raises
    ------
    TypeError
        For anything else.
    """
    report = getattr(tracker, "log", tracker)
    if not callable(report):
        raise TypeError(f"tracker={tracker!r}: must be a function of (values, epoch), or have such a log")

    def tell(row: Mapping[str, Any]) -> None:
        numbers = {k: v for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        report({k: float(v) for k, v in numbers.items() if math.isfinite(v)}, before + row["epoch"])

    return tell
