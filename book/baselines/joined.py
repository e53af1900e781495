"""Runs of several models that a paper tests as one: ``saf+sgr`` in grids and printed tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nclib.runs.identity import JOINED


def parts_of(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of each run of a combination; of one run where nothing is joined.

    Parameters
    ----------
    arguments : mapping
        Of :func:`nclib.run`. ``model``, or values in ``model_options``, may join several with a plus sign. A
        model that is joined with itself is trained from seeds of its own: n parts have the seeds n * seed to
        n * seed + n - 1.

    Raises
    ------
    ValueError
        When two of them join different numbers of values.

    Examples
    --------
    >>> parts_of({"method": "l2rm", "model": "saf+sgr"})
    [{'method': 'l2rm', 'model': 'saf'}, {'method': 'l2rm', 'model': 'sgr'}]
    >>> parts_of({"model": "vsrn+vsrn", "seed": 2})
    [{'model': 'vsrn', 'seed': 4}, {'model': 'vsrn', 'seed': 5}]
    """
    options = arguments.get("model_options") or {}
    joined = {k: v.split(JOINED) for k, v in options.items() if isinstance(v, str) and JOINED in v}
    models = str(arguments.get("model", "")).split(JOINED)
    sizes = {len(values) for values in [models, *joined.values()]} - {1}
    if len(sizes) > 1:
        raise ValueError(f"model and model_options join {' and '.join(map(str, sorted(sizes)))} values")
    if sizes and (n := arguments.get("networks", 1)) != 1:
        raise ValueError(f"networks={n}: models that are joined have one network each; leave it out")
    parts = []
    for i in range(max(sizes, default=1)):
        own = {k: values[i] for k, values in joined.items()}
        part = {**arguments, **({"model_options": {**options, **own}} if own else {})}
        parts.append(part | ({"model": models[i]} if len(models) > 1 else {}))
    if len(parts) > 1 and all(part == parts[0] for part in parts):
        first = len(parts) * int(arguments.get("seed") or 0)
        parts = [part | {"seed": first + i} for i, part in enumerate(parts)]
    return parts
