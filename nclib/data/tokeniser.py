"""Penn Treebank tokenisation of English captions, without any download.

The official codes lower-case a caption, split it into sentences and cut these by Treebank rules. The rules
here give the same words for captions; rule 4 replaces the guesses of a sentence splitter.

1. White space separates words.
2. ``, ; @ # $ % & ? ! *``, brackets ``( ) [ ] { } < >``, ``--`` and runs of two or more dots are words of
   their own. A comma or colon directly before a digit (``1,000``, ``10:30``) stays where it is; so do
   single hyphens, slashes and underscores.
3. A straight double quote becomes two backquotes when it opens (at the start, after a space or an opening
   bracket) and two apostrophes when it closes. Curly quotes are words of their own, unchanged.
4. A full stop becomes a word of its own at the end of the text, also before closing quotes and brackets. In
   the middle it does so before white space, unless the word before is a known abbreviation, a single
   letter, or holds another full stop (``dr.``, ``j.``, ``u.s.``). Elsewhere (``3.5``) it is left alone.
5. ``'s 'm 'd 'll 're 've n't`` are cut from the word before them, a closing apostrophe likewise
   (``boys'``). ``cannot gimme gonna gotta lemme wanna d'ye more'n 'tis 'twas`` are cut in two.
"""

from __future__ import annotations

import re

#: Version of the rules; raise it when a word changes, so that cached captions are cut again.
RULES = 1
_ABBREVIATION = re.compile(
    "mr|mrs|ms|dr|prof|st|jr|sr|vs|etc|inc|co|corp|ltd|vol|gen|col|sgt|capt|lt|rev|hon|gov|sen|rep|ft|mt|ave"
    "|blvd|rd|dept|fig|approx|lb|oz|jan|feb|apr|aug|sept|oct|nov|dec"
    r"|\w|.*\..*"  # a single letter; anything that holds another full stop
)
_CLOSING = r"\])}>\"'»”’"
_PLAIN = re.compile(r"[a-z0-9\-\s]*\.?\s*")
_STOP = re.compile(rf"(?<![.\s])\.(?=[{re.escape(_CLOSING)}]*(\s|$))")
_OPENING_QUOTE = re.compile(r"(^|(?<=[\s(\[{<]))(\"|'')")
_ALONE = re.compile(r"\.{2,}|--|``|''|[;@#$%&?!*()\[\]{}<>«»“”‘’„]|[,:](?!\d)")
_CLOSING_QUOTE = re.compile(r"\"")
_QUOTED_LETTER = re.compile(r"'(?![tsmdn])(?=\w\b)")
_CLITIC = re.compile(r"(?<=[^'\s])('s|'m|'d|'ll|'re|'ve|n't|')(?=\s)")
_CUT = {
    "cannot": ("can", "not"),
    "gimme": ("gim", "me"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "lemme": ("lem", "me"),
    "wanna": ("wan", "na"),
    "d'ye": ("d", "'ye"),
    "more'n": ("more", "'n"),
    "'tis": ("'t", "is"),
    "'twas": ("'t", "was"),
}


def tokenise(text: str) -> list[str]:
    """Cut a caption into lower-case words and punctuation marks.

    Examples
    --------
    >>> tokenise("A man, in the U.S., isn't running.")
    ['a', 'man', ',', 'in', 'the', 'u.s.', ',', 'is', "n't", 'running', '.']
    """
    text = text.strip().lower()
    if not _PLAIN.fullmatch(text):  # most captions are plain and need no rule but the last
        text = _OPENING_QUOTE.sub(" `` ", text)
        text = _STOP.sub(_stop, text)
        text = _QUOTED_LETTER.sub("' ", text)
        text = _CLOSING_QUOTE.sub(" '' ", text)
        text = _ALONE.sub(r" \g<0> ", text)
        text = _CLITIC.sub(r" \1", text + " ")
    elif text.endswith("."):
        text = _STOP.sub(_stop, text)
    words = text.split()
    if _CUT.keys() & set(words):
        words = [part for word in words for part in _CUT.get(word, (word,))]
    return words


def _stop(match: re.Match[str]) -> str:
    """Decide whether a full stop ends a sentence."""
    text, at = match.string, match.start()
    if text[at + 1 :].strip(_CLOSING + " "):  # something follows
        before = "".join(text[:at].split()[-1:]).lstrip("([{<\"'`“‘«")
        if _ABBREVIATION.fullmatch(before):
            return "."
    return " . "
