"""The verdicts and headline numbers that the book prints are the stored ones."""

import copy
import json

import verdicts
from ncbook import printed


def test_the_book_concludes_what_it_concluded():
    stored = json.loads(verdicts.FILE.read_text("utf8"))
    assert set(stored["claims"]) == set(printed("claims")["id"])
    now = json.loads(json.dumps(verdicts.content()))
    lines = list(verdicts.moved(stored, now))
    assert not lines, "\n".join([*lines, "if that is meant: python tests/ncbook/verdicts.py --write"])


def test_what_moved_is_named_by_its_place():
    stored = {"claims": {"L01": {"verdict": "holds", "lines": {"f8k": ["for", 3, 1.5, None]}}}}
    now = copy.deepcopy(stored)
    assert list(verdicts.moved(stored, now)) == []
    now["claims"]["L01"]["lines"]["f8k"][2] = 1.6
    now["claims"]["L02"] = {"verdict": "holds"}
    assert list(verdicts.moved(stored, now)) == [
        "/claims/L01/lines/f8k[2]: 1.5 -> 1.6",
        "/claims/L02: None -> {'verdict': 'holds'}",
    ]
