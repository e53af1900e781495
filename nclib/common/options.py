"""Checked options: frozen dataclasses whose fields declare their allowed values.

Methods and models declare theirs by :func:`option`; the options of a data set are the keywords of its loader,
which :func:`options_of` turns into the same kind of class.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import html
import inspect
import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

T = TypeVar("T")

WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
PATH = "a path as text, such as './2024' for a folder of that name"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Allowed values of an option: type, limits or choices, and help in one sentence.

    Parameters
    ----------
    kind : type
        Type of the values; ``os.PathLike`` for a path as text, ``object`` for every value. Whole numbers are
        accepted where it is float.
    low, high, above, below : float, optional
        Smallest and largest value; bounds that are not allowed themselves.
    choices : collection, optional
        All allowed values.
    help : str
    none : bool
        Whether None is allowed too.
    other : tuple of type
        Further types that are allowed.
    """

    kind: type
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: Collection[Any] | None = None
    help: str = ""
    below: float | None = None
    none: bool = False
    other: tuple[type, ...] = ()

    def describe(self) -> str:
        """Return the allowed values in words."""
        kinds = ["None"] * self.none + [WORDS.get(kind, PATH) for kind in (self.kind, *self.other)]
        if self.choices is not None:
            kinds = ["one of " + ", ".join(repr(c) for c in self.choices)]
        bounds = {"above": self.above, "at least": self.low, "at most": self.high, "below": self.below}
        limits = " and ".join(f"{word} {_limit_text(x)}" for word, x in bounds.items() if x is not None)
        return "must be " + " or ".join(kinds) + (", " + limits if limits else "")

    def about(self) -> str:
        """Return the help, and the allowed values where they say more than the type of a text."""
        plain = self.choices is None and self.kind not in (bool, int, float)
        allowed = "" if plain else self.describe().removeprefix("must be ")
        kind = "a path" if self.kind is os.PathLike else "text"
        return "; ".join(filter(None, (self.help, allowed))) or kind

    def accepts(self, value: object) -> bool:
        """Return whether ``value``, or the number in a NumPy scalar, has the right type and lies in range."""
        value = value.item() if isinstance(value, np.generic) else value
        if (value is None and self.none) or self.kind is object:
            return True
        fits = any(self._fits(value, kind) for kind in (self.kind, *self.other))
        return fits and (self.choices is None or value in self.choices)

    def _fits(self, value: Any, kind: type) -> bool:
        kinds = {float: (int, float), os.PathLike: (str,)}.get(kind, (kind,))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return isinstance(value, kinds) and isinstance(value, bool) == (kind is bool)
        return (
            isinstance(value, kinds)
            and math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def taken(self, value: Any) -> Any:
        """Return an accepted value in the option's type."""
        return self.kind(value) if self.kind in WORDS and value is not None and not self.other else value


def _limit_text(limit: float) -> str:
    """Return a limit as text, a whole number with all its digits."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def option(
    default: Any = dataclasses.MISSING,
    *,
    kind: type | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[Any] | None = None,
    help: str = "",
    file: bool = False,
) -> Any:
    """Declare an option together with its allowed values: a field of a frozen dataclass, or of a model.

    In the class of a model it is written like a field; the instance has an attribute of this name.

    Parameters
    ----------
    default : object, optional
        Without one the option must be given.
    kind : type, optional
        Type of the values; that of ``default`` if not given. Whole numbers are accepted where it is float.
        Needed when ``default`` is None, which is then allowed too.
    low, high, above, below : float, optional
        Smallest and largest value; bounds that are not allowed themselves.
    choices : iterable, optional
        All allowed values; of a mapping the names that it has when a value is checked.
    help : str
        Meaning in one sentence, as ``nclib run METHOD --help`` shows it.
    file : bool
        The value is the path of a file or a folder, whose content names a run, and not the path.

    Returns
    -------
    dataclasses.Field
        With the rule in its metadata.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Sharpness(Options):
    ...     tau: float = option(0.05, above=0, help="temperature")
    >>> make(Sharpness, {"tau": -1})
    Traceback (most recent call last):
    ValueError: bad parameters: tau=-1: must be a number, above 0
    >>> print(Sharpness.catalogue())
    tau  0.05  temperature; a number, above 0
    """
    chosen: Any = choices if choices is None or isinstance(choices, Mapping) else tuple(choices)
    kind = os.PathLike if file else kind or type(default)
    rule = Rule(kind, low, high, above, chosen, help, below, none=default is None)
    return dataclasses.field(default=default, metadata={"rule": rule})


class Catalogue(dict[str, str]):
    """Names and one-line summaries; prints as a table, with ``notes`` on some of them in a third column."""

    def __init__(
        self, entries: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(entries or {})
        self.notes = dict(notes or {})

    def __str__(self) -> str:
        width = max((len(name) for name in self), default=0)
        inner = max((len(text) for name, text in self.items() if name in self.notes), default=0)
        lines = (f"{n:<{width}}  {t:<{inner}}  {self.notes.get(n, '')}".rstrip() for n, t in self.items())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{n}</code></td><td>{t}</td>"
            + (f"<td>{html.escape(self.notes.get(n, ''))}</td>" if self.notes else "")
            + "</tr>"
            for n, t in self.items()
        )
        return f"<table>{rows}</table>"


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of the options of methods, models and data: a frozen dataclass of :func:`option` fields."""

    @classmethod
    def catalogue(cls) -> Catalogue:
        """Return the options by name with their defaults; prints with their meaning and allowed values."""
        usual, notes = defaults(cls), {name: rule.about() for name, rule in rules(cls).items()}
        return Catalogue({name: repr(usual[name]) if name in usual else "needed" for name in notes}, notes)


def rules(cls: type) -> dict[str, Rule]:
    """Return the rules of a dataclass made with :func:`option`, in order of declaration."""
    return {f.name: f.metadata["rule"] for f in dataclasses.fields(cls) if "rule" in f.metadata}


def defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of a dataclass by name, of the fields that have one."""
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


def needed_options(cls: type) -> list[str]:
    """Return the names of the fields without a default."""
    unset = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is unset and f.default_factory is unset]


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the nearest known name, or an empty text without a similar one.

    Examples
    --------
    >>> did_you_mean("mrat", ["mrate", "seed"])
    "; did you mean 'mrate'?"
    """
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def problems(values: Mapping[str, Any], allowed: Mapping[str, Rule]) -> list[str]:
    """List, one sentence each, unknown names, with the nearest known one, and values that are not allowed."""
    texts = []
    for name, value in values.items():
        if name not in allowed:
            hint = did_you_mean(name, allowed) or f"; there are {', '.join(allowed)}"
            texts.append(f"unknown parameter {name!r}{hint}")
        elif not allowed[name].accepts(value):
            texts.append(f"{name}={value!r}: {allowed[name].describe()}")
    return texts


def refuse(faults: Iterable[str], about: str = "bad parameters") -> None:
    """Raise a ValueError that lists what was found wrong, unless that is nothing."""
    if listed := "; ".join(faults):
        raise ValueError(f"{about}: {listed}")


def check(allowed: Mapping[str, Rule], /, **values: Any) -> None:
    """Raise a ValueError that names each argument whose value is not allowed, the value, and what is allowed.

    Examples
    --------
    >>> check({"rate": Rule(float, low=0, high=1)}, rate=1.5)
    Traceback (most recent call last):
    ValueError: bad parameters: rate=1.5: must be a number, at least 0 and at most 1
    """
    refuse(problems(values, allowed))


def missing_options(cls: type, values: Mapping[str, Any]) -> list[str]:
    """List, one sentence each, the options without a default that are not given."""
    return [
        f"{k} is needed: {rule.about()}"
        for k, rule in rules(cls).items()
        if k in needed_options(cls) and k not in values
    ]


def make(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a frozen dataclass of :func:`option` fields; those that are not given keep their defaults.

    Raises
    ------
    ValueError
        Naming each unknown parameter, each value out of range, with what is allowed, and each that lacks.
    """
    allowed = rules(cls)
    refuse([*problems(values, allowed), *missing_options(cls, values)])
    return cls(**{k: allowed[k].taken(v) for k, v in values.items()})


@functools.cache
def options_of(function: Callable[..., Any]) -> type[Options]:
    """Return the options of a function: its keywords, with the rules that their type hints give.

    Plain types, paths, literals, None and unions of them are checked; other hints, and those that cannot be
    evaluated, allow everything.

    Examples
    --------
    >>> def noisy(*, rate: float = 0.5, seed: int | None = None): ...
    >>> make(options_of(noisy), {"rate": "a"})
    Traceback (most recent call last):
    ValueError: bad parameters: rate='a': must be a number
    """
    try:
        taken = inspect.signature(function, eval_str=True).parameters
    except Exception:  # of a hint that is imported for type checkers only, whatever evaluating it raises
        taken = inspect.signature(function).parameters
    fields: list[tuple[str, type, Any]] = [(p.name, object, _field(p)) for p in taken.values()]
    return dataclasses.make_dataclass(
        f"{function.__name__}_options", fields, bases=(Options,), frozen=True, kw_only=True
    )


def _field(parameter: inspect.Parameter) -> Any:
    """Return the field of a keyword with its default, if any."""
    usual, rule = parameter.default, {"rule": _rule(parameter)}
    if usual is parameter.empty:
        return dataclasses.field(metadata=rule)
    if type(usual).__hash__ is None:  # a list, say, which dataclasses refuse as a default
        return dataclasses.field(default_factory=lambda: usual, metadata=rule)
    return dataclasses.field(default=usual, metadata=rule)


def _rule(parameter: inspect.Parameter) -> Rule:
    """Return the rule that the type hint of a parameter gives."""
    hint = parameter.annotation
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    none = parameter.default is None or types.NoneType in parts
    kinds = [_kind(part) for part in parts if part is not types.NoneType]
    if get_origin(hint) is Literal:
        return Rule(type(get_args(hint)[0]), choices=get_args(hint), none=none)
    if os.PathLike in kinds:
        return Rule(os.PathLike, none=none)
    if object in kinds:
        return Rule(object)
    return Rule(kinds[0], none=none, other=tuple(kinds[1:]))


def _kind(hint: Any) -> type:
    """Return the type that a rule checks for a type hint; object where every value may fit."""
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, os.PathLike):
        return os.PathLike
    return hint if hint in WORDS else object
