"""Parameters of a run as words of a command line, in both directions, and as plain text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nclib.common.options import Rule

WORDS = {"true": True, "yes": True, "false": False, "no": False}  # in any case


def value_of(text: str, rule: Rule | None = None) -> Any:
    """Parse one word of a command line; it is text where ``rule`` asks for text.

    Elsewhere true, yes, false, no (in any case), null, None, numbers and JSON are parsed, and every other
    word is text.
    """
    if rule is not None and rule.kind is str:
        return text
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if text == "None":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return float(text)  # JSON has no .5 and no 1.
        except ValueError:
            return text


def values_of(words: Sequence[str], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Parse options: ``--name value``, ``--name=value``, ``--mapping.key value``.

    Unknown names are returned too: the run refuses them and names the nearest one in ``rules``.

    Raises
    ------
    ValueError
        For a word that does not start with ``--``, or an option without a value.

    Examples
    --------
    >>> values_of(["--mrate", "0.4", "--data_options.root", "/data"], {})
    {'mrate': 0.4, 'data_options': {'root': '/data'}}
    """
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word!r} is not an option; options are written --name value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not rest:
                raise ValueError(f"{word} needs a value: {word} VALUE")
            text = rest.pop(0)
        name, _, key = name.replace("-", "_").partition(".")
        if key:
            mapping = options.setdefault(name, {})
            if not isinstance(mapping, dict):
                raise ValueError(f"--{name} is given whole and as --{name}.{key}; give one")
            mapping[key] = value_of(text)
        else:
            options[name] = value_of(text, rules.get(name))
    return options


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Return the words, quoted for a shell, that :func:`values_of` parses as ``values``.

    Examples
    --------
    >>> words_of({"mrate": 0.4, "data_options": {"n_train": 64}})
    ['--mrate', '0.4', '--data_options.n_train', '64']
    """
    return [shlex.quote(word) for word in _words(values, "")]


def _words(values: Mapping[str, Any], before: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{before}{name}.")
        else:
            yield f"--{before}{name}"
            plain = isinstance(value, str) and (not before or value_of(value) == value)
            yield value if plain else json.dumps(value)


def flatten(content: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values in nested mappings by their places, names with dots.

    An empty mapping is a value, and so is one with a dot in a name.

    Examples
    --------
    >>> flatten({"mrate": 0.4, "data_options": {"n_train": 64}})
    {'mrate': 0.4, 'data_options.n_train': 64}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        inner = isinstance(value, Mapping) and value and not any("." in key for key in value)
        flat |= flatten(value, f"{before}{name}.") if inner else {before + name: value}
    return flat


def value_text(value: object) -> str:
    """Return a value as text, floats as short as they are written."""
    return f"{value:g}" if isinstance(value, float) else str(value)
