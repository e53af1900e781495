"""Options of models: declared in a class with the values that are allowed, and checked when it is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nclib.common.options import Rule


@dataclass(frozen=True)
class Option:
    """An option of a model as its class declares it; see :func:`option`."""

    default: Any
    rule: Rule
    below: float | None = None

    def checked(self, name: str, value: Any) -> Any:
        """Return ``value`` in the option's type, or raise a ValueError that says what is allowed."""
        if value is None and self.default is None:
            return None
        if not self.rule.accepts(value):
            raise ValueError(f"{name}={value!r}: {self.rule.describe()}")
        if self.below is not None and not value < self.below:
            raise ValueError(f"{name}={value!r}: {self.rule.describe()} and below {self.below:g}")
        return value if self.rule.kind is object else self.rule.kind(value)


def option(
    default: Any,
    *,
    kind: type | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[Any] | None = None,
    help: str = "",
) -> Any:
    """Declare an option of a model: a class attribute that :func:`nclib.models.build` takes as a keyword.

    The instance has the attribute of the same name, checked before anything else of the model is built.

    Parameters
    ----------
    default : object
    kind : type, optional
        Type of the values; that of ``default`` if not given. Whole numbers are accepted where it is float.
        Needed when ``default`` is None, which is then allowed too.
    low, high, above, below : float, optional
        Smallest and largest value; bounds that are not allowed themselves.
    choices : iterable, optional
        The allowed values.
    help : str
        A few words for readers.

    Returns
    -------
    Option
        Replaced by ``default`` when the class is complete.

    Examples
    --------
    >>> from nclib.models import Matcher, option
    >>> class Sharp(Matcher):
    ...     softness: float = option(0.05, above=0)
    >>> Sharp.softness
    0.05
    """
    chosen = None if choices is None else tuple(choices)
    return Option(default, Rule(kind or type(default), low, high, above, chosen, help), below)


def declared_options(classes: Sequence[type]) -> dict[str, Option]:
    """Return the options that classes declare, by name.

    Parameters
    ----------
    classes : sequence of type
        In the order in which names are looked up.
    """
    found: dict[str, Option] = {}
    for cls in reversed(classes):
        found |= vars(cls).get("declared", {})
    return found


def used_with(
    name: str, value: Any, option: str, chosen: str, *users: str, usual: Any = "", needed: bool = False
) -> None:
    """Forbid a value other than the usual one unless ``option`` has one of the values ``users``.

    Parameters
    ----------
    name, value : str, object
        Option that may be without effect, and its value.
    option, chosen, *users : str
        Option that decides, its value, and the values with which ``name`` has an effect.
    usual, needed : object, bool
        Default of ``name``; whether it is a path that ``users`` need.

    Raises
    ------
    ValueError
        If the option would have no effect, or the path is missing.
    """
    if needed and chosen in users and not value:
        raise ValueError(f"{option}={chosen!r} needs {name}, a local path; nothing is downloaded")
    if chosen not in users and value != usual:
        known = " or ".join(map(repr, users))
        raise ValueError(f"{name}={value!r} is used with {option}={known} only, got {option}={chosen!r}")
