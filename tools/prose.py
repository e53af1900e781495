"""Find phrases that make this project's prose hard to read: ``python tools/prose.py [PATH ...]``.

Checks docstrings, comments and messages of Python files, Markdown pages, and all cells of notebooks. Prints
``file:line: phrase -> suggestion`` for each hit; the exit status is 1 when there is one.
"""

import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ("README.md", "nclib", "book", "notebooks")
LEFT_OUT = {"live", "results", "_build"}  # made by programs
PHRASES = {  # a space matches any white space
    r"\bso many\b(?! that\b)": "name the number: 'n runs', 'fewer than n'",
    r"\bwhat \w+(?: \w+)? (?:is|are) made of\b": "'contents of', 'parts of'",
    r"\bthat there (?:are|is)\b(?! no\b)": "'the available ...', 'the existing ...'",
    r"\bif need be\b": "'if necessary'",
    r"\banew\b": "'again', 'from the start'",
    r"\b(?:stands?|standing|stood) for\b": "'means', 'represents', 'replaces'",
    r"\bas (?:it comes|they come)\b": "'unchanged', 'in order of arrival'",
    r"(?<!there\x20)(?<!where\x20)\b(?:is|are) no "
    r"(?!longer|more|less|fewer|better|worse|such|larger|smaller|\d)[a-z]+(?= |[.,;:])": "'is not a ...'",
    r"\ba line on\b": "'one line about'",
    r"\bbelongs? into\b": "'belongs in', 'belongs to'",
    r"\bthe word of\b": "name the thing: 'the name', 'the statement'",
    r"\bwhose reader went away\b": "'after the reader closed the pipe'",
    r"\bin the (?:same )?words\b": "'with the same names'",
    r"\bsays? so\b(?! that\b)": "say what is said",
    r"\b(?:no|any)body\b": "'no caller', 'nothing', 'any process': name who",
    r"\bthe ones? of\b": "repeat the noun",
    r"\btakes? no notice of\b": "'ignores'",
    r"\b(?:published|released) (?:code|implementation|repository|program)\b": "'official code'",
    # Without an article it is the name of a benchmark's candidate, which stored results contain.
    r"\b(?:an?|the|this|that|its|\w+'s) (?:published|released) loop\b": "'loop of the official code'",
    r"\bp_matched\b(?!` \| `p_clean`)": "'p_clean'",  # but the changelog's table of names has both
}
PATTERN = {re.compile(k.replace(" ", r"\s+"), re.IGNORECASE): v for k, v in PHRASES.items()}


def prose_of(code: str) -> str:
    """Return Python code of the same shape in which only strings and comments are left."""
    blank = [re.sub(r"[^\s]", "|", line) for line in code.splitlines(keepends=True)]
    lines = code.splitlines(keepends=True)
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in kinds:
            (first, start), (last, end) = token.start, token.end
            for row in range(first - 1, last):
                cut = slice(start if row == first - 1 else 0, end if row == last - 1 else len(lines[row]))
                blank[row] = blank[row][: cut.start] + lines[row][cut] + blank[row][cut.stop :]
    return re.sub(r"[\"'#]", " ", "".join(blank))


def texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and prose of each part of a file: the file itself, or the cells of a notebook."""
    text = path.read_text("utf8")
    if path.suffix != ".ipynb":
        yield str(path), prose_of(text) if path.suffix == ".py" else text
        return
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        is_python = cell["cell_type"] == "code" and not re.match(r"\s*[%!]", source)
        yield f"{path}[{cell.get('id', '')}]", prose_of(source) if is_python else source


def main(words: list[str]) -> int:
    """Print every hit below the given paths and return the exit status."""
    tops = [Path(word) for word in words] or [ROOT / name for name in DEFAULT]
    missing = [str(top) for top in tops if not top.exists()]
    if missing:
        sys.exit(f"no such file or folder: {', '.join(missing)}")
    files = [f for top in tops for f in ([top] if top.is_file() else sorted(top.rglob("*.*")))]
    hits = 0
    for path in files:
        if path.suffix not in (".py", ".md", ".ipynb") or LEFT_OUT & {*path.parts}:
            continue
        for name, text in texts(path):
            for pattern, better in PATTERN.items():
                for found in pattern.finditer(text):
                    hits += 1
                    line = text.count("\n", 0, found.start()) + 1
                    print(f"{name}:{line}: {' '.join(found[0].split())} -> {better}")
    return int(hits > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
