"""Terms explained on hover, and questions at the end of pages: what the extensions find and write."""

import re
from pathlib import Path

import pytest
import yaml
from executed import notebooks_of
from hover import EVERYDAY, glossary, pattern, pieces
from quiz import SOURCE, quiz

ROOT = Path(__file__).resolve().parents[2]
TERMS = glossary((ROOT / "book/symbols.md").read_text("utf8"))
QUESTIONS = yaml.safe_load((ROOT / SOURCE).read_text("utf8"))


def explained(text: str, seen: set[str]) -> list[tuple[str, str]]:
    return [(found, term) for found, term in pieces(text, pattern(TERMS), TERMS, seen) if term]


def test_explanations_are_plain_words_of_terms_that_the_glossary_has() -> None:
    assert set(TERMS) > EVERYDAY
    assert not [said for said in TERMS.values() if re.search(r"[{}`$]", said)]


def test_a_section_explains_a_term_once_where_it_is_used() -> None:
    seen: set[str] = set()
    found = explained("Soft labels and R@10, then a soft label, its plan and RSUM. Beta mixtures!", seen)
    assert found == [("Soft labels", "soft label"), ("R@10", "R@K"), ("Beta mixtures", "beta mixture")]
    assert explained("R@1 and rSum", seen) == [("rSum", "rSum")]
    text = "half-InfoNCE-like, presets"
    assert [part for part, _ in pieces(text, pattern(TERMS), TERMS, set())] == [text]


@pytest.mark.parametrize("page", QUESTIONS)
def test_questions_are_of_a_page_and_have_one_right_answer(page: str) -> None:
    assert page in notebooks_of(ROOT)
    assert all(len({asked["right"], *asked["wrong"]}) == 3 for asked in QUESTIONS[page])
    parts = quiz(QUESTIONS[page]).split("<fieldset>")[1:]
    places = [[" data-right" in answer for answer in re.findall("<input[^>]*>", part)] for part in parts]
    assert [sum(answers) for answers in places] == [1] * len(QUESTIONS[page])
    assert len({answers.index(True) for answers in places}) > 1  # not always at one place


def test_answers_of_strangers_stay_text() -> None:
    written = quiz([{"ask": "<b>?", "right": "`a<b`", "wrong": ["<script>"], "why": "x & y"}])
    assert "<script>" not in written
    assert "<code>a&lt;b</code>" in written
    assert "x &amp; y" in written
