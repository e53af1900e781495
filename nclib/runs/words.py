"""Parameters as words of a command line, in both directions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nclib.common.options import Rule

WORDS = {"true": True, "yes": True, "false": False, "no": False}  # in any case


def value_of(text: str, rule: Rule | None = None) -> Any:
    """Return the value that a word stands for.

    Text where ``rule`` wants text; else true, yes, false, no (in any case), null, None, numbers and anything
    in JSON are what they look like, and every other word is text.
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


def options_of(words: Sequence[str], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the options among ``words``: ``--name value``, ``--name=value``, ``--mapping.key value``.

    Parameters
    ----------
    words : sequence of str
    rules : mapping
        What each option may be, by name. Unknown names are returned like others: the run refuses them, with
        the nearest known one.

    Raises
    ------
    ValueError
        For a word that is no option, or an option without a value.
    """
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word!r} is no option; they are written --name value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not rest:
                raise ValueError(f"{word} needs a value: {word} VALUE")
            text = rest.pop(0)
        name, _, key = name.replace("-", "_").partition(".")
        if key:
            mapping = found.setdefault(name, {})
            if not isinstance(mapping, dict):
                raise ValueError(f"--{name} is given whole and as --{name}.{key}; take one")
            mapping[key] = value_of(text)
        else:
            found[name] = value_of(text, rules.get(name))
    return found


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Return the words, quoted for a shell, that :func:`options_of` reads as ``values``."""
    return [shlex.quote(word) for word in _words(values, "")]


def _words(values: Mapping[str, Any], before: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{before}{name}.")
        else:
            yield f"--{before}{name}"
            plain = isinstance(value, str) and (not before or value_of(value) == value)
            yield value if plain else json.dumps(value)
