"""Sphinx extension: questions at the end of a page, from ``book/quiz.yml``; ``play.js`` counts answers."""

from __future__ import annotations

import html
import pathlib
import random
import re
from collections.abc import Sequence
from typing import Any

import yaml
from sphinx.application import Sphinx

SOURCE = "book/quiz.yml"


def words(text: str) -> str:
    """Return a line of text as HTML; code stands in backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def question(number: int, asked: dict[str, Any]) -> str:
    """Return a question with its answers in an order that does not change."""
    answers = [asked["right"], *asked["wrong"]]
    random.Random(asked["ask"]).shuffle(answers)
    choices = "".join(
        f'<label><input type="radio" name="nc-question-{number}"{" data-right" * (text == asked["right"])}>'
        f"<span>{words(text)}</span></label>"
        for text in answers
    )
    said = f"<p><strong>{words(asked['right'])}.</strong> {words(asked['why'])}</p>"
    return (
        f"<fieldset><legend>{number}. {words(asked['ask'])}</legend>{choices}"
        f"<details><summary>Answer</summary>{said}</details></fieldset>"
    )


def quiz(questions: Sequence[dict[str, Any]]) -> str:
    """Return the questions of a page as HTML."""
    each = "".join(question(number, asked) for number, asked in enumerate(questions, 1))
    return (
        f'<section class="nc-quiz" id="questions"><h2>Questions</h2>{each}<p><output></output></p></section>'
    )


def show(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Append the questions to a page; an event handler of ``html-page-context``."""
    asked = app.nclib_quiz.get(pagename.removeprefix("notebooks/"))  # type: ignore[attr-defined]
    if asked and "body" in context:
        context["body"] += quiz(asked)


def read(app: Sphinx) -> None:
    """Read the questions once per build."""
    text = pathlib.Path(app.srcdir, SOURCE).read_text("utf8")
    app.nclib_quiz = yaml.safe_load(text)  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", read)
    app.connect("html-page-context", show)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
