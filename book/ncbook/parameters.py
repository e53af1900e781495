"""Parameters of a notebook, checked in its first code cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nclib.common.options import Rule, check
from nclib.runs import experiment_of

JUPYTER = {"In", "Out", "exit", "quit", "open", "get_ipython"}  # names that it sets in a notebook
PLAIN = (bool, int, float, str, list, dict, tuple, set, type(None))


def check_parameters(namespace: Mapping[str, Any], method: str | None, **extra: Rule) -> dict[str, Any]:
    """Check a notebook's parameters in its first code cell and return those that were given.

    Parameters
    ----------
    namespace : mapping
        ``globals()`` of the notebook: at that moment every plain value in it is a parameter, unless its name
        begins with an underscore. None means "as the preset says".
    method : str or None
        Method that the notebook runs; None when it runs none and all its parameters are ``extra``.
    **extra : Rule
        Further parameters that belong to the notebook itself, or stricter rules for those of the run.

    Returns
    -------
    dict
        Name and value of the parameters of :func:`nclib.run`.

    Raises
    ------
    ValueError
        Naming each unknown parameter, with the nearest known one, and each value out of range.

    Examples
    --------
    >>> check_parameters({"mrate": 0.4, "epochs": None}, "l2rm")
    {'mrate': 0.4}
    """
    plain = {k: v for k, v in namespace.items() if isinstance(v, PLAIN) and k not in JUPYTER}
    values = {k: v for k, v in plain.items() if v is not None and not k.startswith("_")}
    try:
        if method is None:
            check(extra, **values)
            return {}
        experiment = experiment_of(method)
        own = set(extra) - set(experiment.parameters())
        return {name: value for name, value in experiment.check(values, extra).items() if name not in own}
    except ValueError as error:  # IPython shows it as its message alone: where it was found helps no reader
        lines = [f"{type(error).__name__}: {error}"]
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        raise
