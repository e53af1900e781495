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
    assert len(QUESTIONS[page]) == 5
    written = quiz(QUESTIONS[page])
    assert written.count(" data-right") == 5
    for number, asked in enumerate(QUESTIONS[page], 1):
        answers = {asked["right"], *asked["wrong"]}
        assert len(answers) == 3
        assert written.count(f'name="nc-question-{number}"') == 3
    places = [re.findall("<input[^>]*>", part).index(found[0]) for part in written.split("<fieldset>")[1:]
              if (found := re.findall("<input[^>]*data-right>", part))]  # fmt: skip
    assert len(set(places)) > 1  # the right answer is not always at one place


def test_answers_of_strangers_stay_text() -> None:
    written = quiz([{"ask": "<b>?", "right": "`a<b`", "wrong": ["<script>"], "why": "x & y"}])
    assert "<script>" not in written
    assert "<code>a&lt;b</code>" in written
    assert "x &amp; y" in written
