"""The page of frequent questions: short answers, each with a link that leads somewhere."""

import re
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
TEXT = (BOOK / "questions.md").read_text("utf8")
ANSWERS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_is_short_and_leads_on(question: str) -> None:
    answer = ANSWERS[question]
    assert question.endswith("?")
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)]+)\)", answer)]
    assert targets
    assert all((BOOK / target).is_file() for target in targets), targets
    prose = re.sub(r"```.*?```", "A stored answer. ", answer, flags=re.DOTALL)
    sentences = re.findall(r"[.?!](?=\s|$)", re.sub(r"`[^`]*`", "x", prose))
    assert 3 <= len(sentences) <= 8, len(sentences)


def test_the_seven_questions_of_readers_are_there() -> None:
    asked = " ".join(ANSWERS).lower()
    words = ("20 % noise", "40 % noise", "repair", "table 3", "add a method", "cost", "infonce")
    assert [word for word in words if word not in asked] == []
