"""What an audit says in plain English: names of both sides, verdicts, reasons, numbers and marks."""

from __future__ import annotations

from typing import NamedTuple

from nclib.common.row_writer import some

#: Lowest probability of each verdict.
VERDICTS = (
    (0.99, "Almost certainly wrong"),
    (0.8, "Very likely wrong"),
    (0.5, "More likely wrong than right"),
    (0.2, "More likely right than wrong"),
    (0.0, "Probably right"),
)


class Words(NamedTuple):
    """What the two sides of a pair are called."""

    picture: str = "picture"
    caption: str = "caption"


#: Of pairs of two texts.
OF_TEXTS = Words("left-hand text", "right-hand text")


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


def kind_of(reason: str) -> str:
    """Return a reason without what it says of one pair, for the filter of the page.

    Examples
    --------
    >>> kind_of("stands on many pictures (12)"), kind_of("fits its picture badly")
    ('stands on many pictures', 'fits its picture badly')
    """
    return reason.partition(" (")[0] or "nothing suspicious"


def percent(value: float) -> str:
    """Return a share as a percentage, with a digit after the point where whole numbers would mislead."""
    number = 100 * float(value)
    if 0 < number < 0.1 or 99.9 < number < 100:
        return "less than 0.1 %" if number < 50 else "more than 99.9 %"
    return f"{number:.{1 if 0 < number < 10 or 99 < number < 100 else 0}f} %"


def about_marks(double: list[str], apart: list[str], doubted: list[str]) -> list[str]:
    """Return sentences that name labels which contradict each other, or the scores.

    Parameters
    ----------
    double : list of str
        Pairs that are both wrong and right by the labels.
    apart : list of str
        Pairs with another label than a copy of them.
    doubted : list of str
        Pairs whose label is more likely mistaken than not.
    """
    facts = (
        (double, "that call one pair both wrong and right, and do not count"),
        (apart, "that differ between copies of a pair"),
        (doubted, "that are probably mistaken, as these pairs score"),
    )
    return [f"Marks {what}: {some(map(quoted, names))}." for names, what in facts if names]
