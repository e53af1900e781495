"""How the parameters of a run are checked, whatever kind of run it is."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from nclib.common.options import Rule, misfits, problems, signature
from nclib.common.registry import Registry

OF_THE_DATA = ("feature_dim", "vocab_size", "n_regions")  # sizes of a model that the data decide


def as_plain(value: Any) -> Any:
    """Turn NumPy scalars, paths and devices into plain values, as JSON and the rules know them."""
    if isinstance(value, Mapping):
        return {str(k): as_plain(v) for k, v in value.items()}
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return str(value) if isinstance(value, (os.PathLike, torch.device)) else value


def checked(
    values: Mapping[str, Any],
    allowed: Mapping[str, Rule],
    *,
    mappings: Collection[str],
    names: Mapping[str, Collection[str]],
) -> dict[str, Any]:
    """Return the values that are given (not None), or say everything that is wrong with them.

    Parameters
    ----------
    values : mapping
        Name and value of every parameter.
    allowed : mapping
        Rule of every parameter that is a plain value.
    mappings : collection of str
        Parameters that must be mappings of option names to values.
    names : mapping
        Parameters that name an entry of a catalogue, with the catalogue.

    Raises
    ------
    ValueError
        Naming each unknown parameter, with the nearest known one, and each value out of range.
    """
    given = {k: v for k, v in values.items() if v is not None}
    found = problems({k: v for k, v in given.items() if k not in mappings}, allowed)
    for name in mappings:
        if name in given and not isinstance(given[name], Mapping):
            found.append(f"{name}={given[name]!r}: must be a mapping of option names to values")
    for name, catalogue in names.items():
        if name in given and given[name] not in catalogue:
            found.append(
                f"{name}={given[name]!r}: must be one of {', '.join(catalogue)}; import the file that registers "
                "another one first"
            )
    if found:
        raise ValueError("bad parameters: " + "; ".join(found))
    return given


def check_model_options(model: str, given: Mapping[str, Any]) -> None:
    """Raise a ValueError when a model has no such option, or one of another type."""
    from nclib import models
    from nclib.models.registry import MODELS, SIZES, parameters_of

    known = [*models.options(model), *(n for n in SIZES if n not in OF_THE_DATA)]
    for name in (n for n in given if n not in known):
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"model_options: {model!r} has no option {name!r}; {hint}it has {', '.join(known)}")
    if wrong := misfits(given, parameters_of(MODELS[model].factory)):
        raise ValueError("model_options: " + "; ".join(wrong))


def check_data_options(datasets: Registry[Any], dataset: str, given: Mapping[str, Any]) -> None:
    """Raise a ValueError when a data set has no such option, it is of another type, or one is missing."""
    allowed = signature(datasets[dataset].factory)
    unknown = [name for name in given if name not in allowed]
    missing = [n for n, p in allowed.items() if p.default is p.empty and n not in given]
    if unknown:
        raise ValueError(
            f"data_options: {dataset!r} has no option {unknown[0]!r}; it has {', '.join(allowed)}"
        )
    if wrong := misfits(given, allowed):
        raise ValueError("data_options: " + "; ".join(wrong))
    if missing:
        raise ValueError(
            f"data_options: {dataset!r} needs {', '.join(missing)}, for example "
            f"data_options={{{missing[0]!r}: ...}}; its files are not bundled"
        )


def noise_digest(noise_file: str) -> str:
    """Return a digest of a noise file's content, or say that there is no such file."""
    path = Path(noise_file)
    if not path.is_file():
        raise ValueError(f"noise_file={noise_file!r}: there is no such file")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
