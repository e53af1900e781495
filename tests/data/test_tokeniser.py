"""The tokeniser against hand-cut captions, and on any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nclib.data.tokeniser import tokenise

CASES = {
    "A man in a blue shirt.": "a man in a blue shirt .",
    "A man, in the U.S., isn't running.": "a man , in the u.s. , is n't running .",
    "Two boys' dogs - they're playing.": "two boys ' dogs - they 're playing .",
    'He said "hello there."': "he said `` hello there . ''",
    '"Stop!" signs & #1 fans; 50% off': "`` stop ! '' signs & # 1 fans ; 50 % off",
    "Dr. Smith (the one from St. Louis) runs. A dog sits.": (
        "dr. smith ( the one from st. louis ) runs . a dog sits ."
    ),
    "a 3.5-inch, 1,000 lb. t-shirt at 10:30 a.m.": "a 3.5-inch , 1,000 lb. t-shirt at 10:30 a.m .",
    "it's a dog's life...": "it 's a dog 's life ...",
    "cannot 'tis gonna": "can not 't is gon na",
    "rock 'n' roll": "rock 'n ' roll",
    "she's at mcdonald's.": "she 's at mcdonald 's .",
    "well-known -- and/or so": "well-known -- and/or so",
    "already cut , like this .": "already cut , like this .",
    "a man 's dog": "a man 's dog",
    "J. Smith waits": "j. smith waits",
    "end etc.": "end etc .",
    "wait ... what?!": "wait ... what ? !",
    "can't, don't; won't": "ca n't , do n't ; wo n't",
    "café “menu” [sic]": "café “ menu ” [ sic ]",
    "word,word and 5,word": "word , word and 5 , word",
    "\tspaces   and\ttabs ": "spaces and tabs",
    "": "",
    ".": ".",
    ". a stop at the start": ". a stop at the start",
    ".' a": ". ' a",
}


@pytest.mark.parametrize("text", CASES, ids=repr)
def test_captions_are_cut_as_by_hand(text):
    assert tokenise(text) == CASES[text].split()


@given(st.lists(st.from_regex(r"[a-z]{3,8}", fullmatch=True), max_size=12))
def test_plain_words_pass_unchanged_apart_from_the_final_stop(words):
    plain = [w for w in words if w not in ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")]
    assert tokenise(" ".join(plain) + ".") == [*plain, "."]
