"""What the report says in plain English: verdicts, reasons, numbers and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nclib.common.row_writer import some

#: Lowest probability of each verdict.
VERDICTS = (
    (0.99, "Almost certainly wrong"),
    (0.8, "Very likely wrong"),
    (0.5, "More likely wrong than right"),
    (0.2, "More likely right than wrong"),
    (0.0, "Probably right"),
)
#: Reasons of the table as patterns, each with its name in the filter and its sentence.
REASONS = (
    ("low score", "fits its picture badly", "The caption fits its picture badly."),
    (
        "no better than another caption of (.*)",
        "no better than others alike",
        r"It fits no better than another caption of \1.",
    ),
    ("better partner elsewhere", "fits another picture better", "The caption fits another picture better."),
    (
        "duplicate picture with another caption",
        "copied picture",
        "An earlier pair has the same picture with another caption.",
    ),
    (r"swapped with (.*)", "exchanged captions", r"Its caption seems to be exchanged with that of \1."),
    (
        r"run of rows shifted by [+-]?(\d+) (\w+)",
        "shifted rows",
        r"It lies in a run of rows whose captions are moved by \1 \2.",
    ),
    ("no picture fits the caption", "fits no picture", "The caption fits none of the pictures."),
    (r"caption stands on (.*)", "repeated caption", r"The same caption stands on \1."),
    (r"picture has (.*)", "repeated picture", r"The same picture has \1."),
    ("very short caption", "very short caption", "The caption has one word only."),
    ("empty caption", "empty caption", "The caption is empty."),
)
SETTINGS = {
    "score": "score that was asked for",
    "neighbours": "neighbours of each caption and picture",
    "one_to_one": "one caption a picture at most",
    "auroc_on_exchanged": "how well each score finds captions exchanged on purpose (1: perfect, 0.5: chance)",
    "partner_least": "least probability of a proposed picture",
    "partner_accuracy_on_planted": "share right of pictures proposed for captions exchanged on purpose",
    "neighbour_recall": "share of the true neighbours that were found",
    "repeated_from": "pictures of a repeated caption, and captions of a repeated picture, at least",
    "labels": "pairs marked by a person",
    "mistaken_labels": "estimated share of mistaken marks",
    "labels_contradict": "probability that the numbers before the marks did not hold",
}


def beginning(text: object, most: int = 60) -> str:
    """Return the beginning of a strange text without what a terminal would obey."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def quoted(name: str) -> str:
    """Return the beginning of a name in quotation marks."""
    return f'"{beginning(name)}"'


def verdict(p: float) -> str:
    """Return a probability of being wrong in words.

    Examples
    --------
    >>> verdict(0.93), verdict(0.4)
    ('Very likely wrong', 'More likely right than wrong')
    """
    return next(words for least, words in VERDICTS if p >= least)


def explained(reason: str) -> tuple[str, str]:
    """Return the name of a reason in the filter, and a sentence.

    Examples
    --------
    >>> explained("run of rows shifted by +1 row")
    ('shifted rows', 'It lies in a run of rows whose captions are moved by 1 row.')
    """
    for pattern, name, sentence in REASONS:
        if found := re.fullmatch(pattern, reason, re.DOTALL):
            return name, found.expand(sentence)
    return ("other", f"{reason[:1].upper()}{reason[1:]}.") if reason else ("nothing suspicious", "")


def percent(value: float) -> str:
    """Return a share as a percentage, with a digit after the point where whole numbers would mislead."""
    number = 100 * float(value)
    if 0 < number < 0.1 or 99.9 < number < 100:
        return "less than 0.1 %" if number < 50 else "more than 99.9 %"
    return f"{number:.{1 if 0 < number < 10 or 99 < number < 100 else 0}f} %"


def settings(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings and measured numbers by what they mean; ``audit.json`` has those of the search too."""
    shown = {name: value for name, value in values.items() if not name.startswith("plan_")}
    return [(SETTINGS.get(name, name.replace("_", " ")), _setting(value)) for name, value in shown.items()]


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_setting(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def about_marks(double: list[str], apart: list[str], doubted: list[str]) -> list[str]:
    """Return sentences that name labels which contradict each other, or the scores.

    Parameters
    ----------
    double : list of str
        Pairs that are both wrong and right by the labels.
    apart : list of str
        Pairs with another label than a pair with the same picture and caption.
    doubted : list of str
        Pairs whose label is more likely mistaken than not.
    """
    facts = (
        (double, "that call one pair both wrong and right, and do not count"),
        (apart, "that differ between pairs with the same picture and caption"),
        (doubted, "that are probably mistaken, as these pairs score"),
    )
    return [f"Marks {what}: {some(map(quoted, names))}." for names, what in facts if names]
