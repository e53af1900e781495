"""``ncbook view``: the output of papermill as one page, or as a notebook that Jupyter shows well."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from ncbook import cli, view, viewing

ROOT = Path(__file__).resolve().parents[2]
PROSE = """# A run {cite:p}`han2024l2rm`

(start)=
See {py:class}`~nclib.methods.l2rm.L2RM`, [the start](start) and [a page](nowhere.ipynb).

```{literalinclude} /nclib/methods/l2rm.py
:language: python
:dedent:
:pyobject: L2RM.warmup_step
:caption: "nclib/methods/l2rm.py, L2RM.warmup_step"
```

:::{dropdown} More
Words.
:::
"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A notebook with prose of the book, one figure with a caption, and a training log."""
    figure = nbformat.v4.new_code_cell("draw()", execution_count=1, id="figure")
    figure.metadata["mystnb"] = {"figure": {"caption": "A curve."}}
    head = "<figcaption><strong>L2RM, Table 6: R@1</strong></figcaption>"
    tables = ['<table id="T_a" class="dataframe">\n<caption>rSum</caption></table>']
    tables += [f'<figure class="nc-sheet nc-{k}" id="{k}">{head}</figure>' for k in ("printed", "measured")]
    shown = [{"image/svg+xml": SVG}, *({"text/html": table} for table in tables)]
    figure.outputs = [nbformat.v4.new_output("display_data", data) for data in shown]
    run = nbformat.v4.new_code_cell("train()", execution_count=2, id="run")
    run.outputs = [nbformat.v4.new_output("stream", text="epoch 1/1 loss 1.0\n")]
    cells = [nbformat.v4.new_markdown_cell(PROSE, id="prose"), figure, run]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "out.ipynb")
    return tmp_path / "out.ipynb"


def test_a_notebook_is_readable_in_jupyter(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", str(out), "--out", str(out), "--no-open"]) == 0
    assert capsys.readouterr().out == f"written: {out}\n"
    prose, figure, _ = nbformat.read(out, 4).cells
    for shown in (
        *("# A run (Han et al., 2024)", "See `L2RM`, [the start](#start) and a page.", '<a id="start"></a>'),
        "```python\ndef warmup_step(self, loop: Loop",
        "<details><summary>More</summary>\n\nWords.\n\n</details>",
    ):
        assert shown in prose.source
    assert not re.search(r"\{[\w:]+\}|:::", prose.source)
    assert [o.data for o in figure.outputs[4:]] == [{"text/markdown": "*Figure.* A curve."}]
    written = out.read_bytes()
    view(out, out)
    assert out.read_bytes() == written  # a second time changes nothing


def test_links_lead_to_the_pages_that_were_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "_build/html/notebooks/l2rm.html"
    page.parent.mkdir(parents=True)
    page.touch()
    monkeypatch.setattr(viewing, "ROOT", tmp_path)
    text = viewing.plain("See [the *chapter*](l2rm.ipynb#run) and [another](ncr.ipynb).")
    shown = f'See <a href="{page.as_uri()}#run">the <em>chapter</em></a> and another.'
    assert MarkdownIt().render(text) == f"<p>{shown}</p>\n"


@pytest.mark.slow
def test_a_page_holds_all_it_needs(out: Path) -> None:
    command = [sys.executable, "-m", "ncbook", "view", str(out), "--no-open"]
    done = subprocess.run(command, cwd=ROOT / "book", capture_output=True, text=True, timeout=300)
    page = out.with_suffix(".html").read_text("utf8")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"written: {out.with_suffix('.html')}\n", "")
    assert re.findall(r'(?:src|href)="((?!data:|#|https?:)[^"]*)"', page) == []
    assert "url(../" not in page
    for words in (
        "Fig. 1 ",
        "A curve.",
        "Han et al., 2024",
        "warmup_step",
        "Training log: ",
        "<summary>More",
    ):
        assert words in page
    number = r'<span class="caption-number">Table {} </span>{}(?:</strong>)?<a class="headerlink" href="#{}"'
    assert re.search(number.format(1, "rSum", "T_a"), page)
    assert re.search(number.format(2, "L2RM, Table 6: R@1", "measured"), page)
    assert "<strong>L2RM, Table 6: R@1</strong></figcaption>" in page  # a printed table keeps its number


SECRET = "the contents of a file of this machine"
SCRIPT = '<script>document.title = "ran"</script>'
FENCES = {  # what stands behind the name of a directive, and in its lines
    "include": "{file}",
    "literalinclude": "../../../../../../..{file}",
    "raw": "html\n:file: {file}",
    "raw ": "html\n:url: file://{file}",
    "csv-table": "\n:file: {file}",
    "image": "{up}",
    "eval-rst": "\n.. include:: {file}\n\n.. image:: {picture}\n\n.. meta::\n   :http-equiv=refresh: 0; url=https://a.org",
}
DIRECTIVES = f"# A heading {SCRIPT}\n\n{{{{{{{{ 'templates' ~ 'run' }}}}}}}} ![picture]({{picture}})"
DIRECTIVES += " {{download}}`a file <{file}>`\n\n"
DIRECTIVES += "\n\n".join(f"```{{{{{name.strip()}}}}} {rest}\n```" for name, rest in FENCES.items())


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A notebook that tries to read files beside it and to run code, in each way that pages know."""
    folder, run = tmp_path / "theirs", tmp_path / "ran"
    folder.mkdir()
    (file := tmp_path / "secret.txt").write_text(SECRET, "utf8")
    (picture := tmp_path / "secret.svg").write_text(SVG.replace("/>", f"><!-- {SECRET} --></svg>"), "utf8")
    up = "/" + "../" * 12 + str(picture).lstrip("/")
    nb = nbformat.v4.new_notebook(metadata={"mystnb": {"execution_mode": "force"}})
    nb.metadata["myst"] = {"enable_extensions": ["substitution"], "substitutions": {"a": "b"}}
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    front = "---\nmyst:\n  enable_extensions: [substitution]\n---\n"
    text = DIRECTIVES.format(file=file, picture=picture, up=up)
    code = nbformat.v4.new_code_cell(f"open({str(run)!r}, 'w')", execution_count=1)
    code.metadata["mystnb"] = {"execution_mode": "force", "figure": {"caption": f"![a]({up})"}}
    outputs = [
        {"text/html": f'<img src="{picture}"><img src="../{picture.name}"><a href="{file}">a</a>{SCRIPT}'},
        {"text/html": f'<link rel="stylesheet" href="{file}"><img src="no" onerror="document.title=1">'},
        {"text/html": '<iframe srcdoc="<script>parent.document.title = 1</script>"></iframe>'},
        {"text/markdown": text},
        {"image/svg+xml": SVG.replace("/>", f"{SCRIPT}<image href='{picture}'/></svg>")},
        {"application/javascript": "document.title = 'ran'"},
    ]
    code.outputs = [nbformat.v4.new_output("display_data", data) for data in outputs]
    nb.cells = [nbformat.v4.new_markdown_cell(front + text), nbformat.v4.new_markdown_cell(text), code]
    nbformat.write(nb, folder / "out.ipynb")
    return folder / "out.ipynb"


class Page(HTMLParser):
    """Scripts, embedded files and the policy of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.embedded, self.policy, self.inside = text, "", False
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inside = tag == "script"
        if tag == "script":
            self.scripts.append({**given, "text": ""})
        if given.get("http-equiv") == "Content-Security-Policy":
            assert not self.scripts  # the policy comes first
            self.policy = given["content"] or ""
        for value in (given.get("src"), given.get("href")):
            if value and value.startswith("data:") and ";base64," in value:
                self.embedded += base64.b64decode(value.partition(";base64,")[2]).decode("utf8", "replace")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1]["text"] = data
            self.inside = False


@pytest.mark.slow
@pytest.mark.parametrize("trust", [False, True])
def test_a_strangers_notebook_reads_no_file_and_runs_nothing(hostile: Path, trust: bool) -> None:
    out = hostile.with_suffix(".html")
    words = ["view", str(hostile), "--no-open", *(["--trust"] if trust else [])]
    done = subprocess.run([sys.executable, "-m", "ncbook", *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = Page(out.read_text("utf8"))
    assert SECRET not in page.embedded
    assert "templatesrun" not in page.embedded
    assert not (hostile.parent.parent / "ran").exists()
    assert 'http-equiv="refresh"' not in page.embedded
    rules = {name: said for name, *said in (rule.split() for rule in page.policy.split(";"))}
    assert rules["default-src"] == rules["base-uri"] == ["'none'"]
    assert rules["img-src"] == ["data:"]
    theirs = [script for script in page.scripts if "title = " in str(script["text"])]
    assert theirs
    if trust:
        assert rules["script-src"] == ["'unsafe-inline'", "data:"]
        return
    (nonce,) = (word.strip("'").removeprefix("nonce-") for word in rules["script-src"] if "nonce" in word)
    assert "'unsafe-inline'" not in rules["script-src"]
    assert [script.get("nonce") for script in theirs] == [None] * len(theirs)
    assert {script.get("nonce") for script in page.scripts if script not in theirs} == {nonce}


THEME = '<!DOCTYPE html><html><head><script>theme()</script></head><body><a onclick="menu(&quot;a&quot;)">'
THEIRS = st.sampled_from(
    [
        *("<head>", "</head>", "<html>", "</body>", "<!--", "-->", "<p>words</p>", "<script", ">", '"', " "),
        *(SCRIPT, '<script nonce="{other}">document.title = 1</script>', '<SCRIPT src="{inside}"></SCRIPT>'),
        *("<!--end of notebook {other}-->", "<!--notebook {other}-->", '<i onload="document.title = 1">'),
        *('<meta http-equiv="Content-Security-Policy" content="script-src *">', '<base href="{outside}">'),
        *('<img src="{outside}">', '<img src="{up}">', '<a href="{link}">', '<link href="{sheet}">'),
        *('<img src="{inside}?{up}#{up}">', "<style>p {{ background: url({up}) }}</style>", "{theme}"),
    ]
)


@given(st.lists(THEIRS, max_size=12), st.text("0123456789abcdef", min_size=32, max_size=32))
def test_no_page_of_a_stranger_runs_a_script_or_holds_a_file_from_elsewhere(theirs, other):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        page, outside = root / "page", root / "secret.css"
        page.mkdir()
        outside.write_text(SECRET)
        (page / "inside.js").write_text("inside()")
        (page / "sheet.css").write_text("p { background: url(../secret.css), url('inside.js') }")
        (page / "link.css").symlink_to(outside)
        names = {"outside": outside, "up": "../secret.css", "link": "link.css", "sheet": "sheet.css"}
        body = "".join(theirs).format(inside="inside.js", other=other, theme=THEME, **names)
        secret = secrets.token_hex(16)
        begin, end = f"<!--notebook {secret}-->", f"<!--end of notebook {secret}-->"
        guarded = viewing.guarded(f"{THEME}{begin}{body}{end}<script>foot()</script>", secret)
        text = viewing.whole(guarded, page)
    assert text.index("Content-Security-Policy") < text.index("<script")
    before, after = text.partition('&quot;)">')[0], text.rpartition("<script")[2]
    assert [part.count(f'nonce="{secret}"') for part in (before, text, after)] == [1, 2, 1]
    actions = re.findall(r"'sha256-([^']*)'", before)
    assert actions == [base64.b64encode(hashlib.sha256(b'menu("a")').digest()).decode()]
    assert "unsafe-inline" not in before.partition("script-src")[2].partition('"')[0]
    assert SECRET not in decoded(text)


def decoded(text: str) -> str:
    """Return a text with what stands in its addresses of data, and in those that they hold."""
    held = [base64.b64decode(part).decode() for part in re.findall(r"data:[^;]*;base64,([\w+/=]*)", text)]
    return text + "".join(map(decoded, held))


@given(
    st.sampled_from(["", "./", "nclib/../", "book/static/../../", "/"]),
    st.integers(0, 12),
    st.sampled_from(["etc/hostname", "nclib/methods/l2rm.py", "README.md", "proc/self/environ", "nclib"]),
)
def test_a_listing_shows_a_file_of_the_book_or_nothing(start, up, file):
    given = f"{start}{'../' * up}{file}"
    path = (ROOT / given).resolve()
    try:
        text = viewing.plain(f"```{{literalinclude}} /{given}\n```")
    except (ValueError, OSError):
        assert not (path.is_relative_to(ROOT) and path.is_file())
        return
    assert path.is_relative_to(ROOT)
    assert text.startswith(f"```python\n{path.read_text('utf8').rstrip()}\n```")


@pytest.mark.parametrize(
    ("content", "out", "said"),
    [
        (None, "page.html", "a.ipynb: there is no such file"),
        ("{}", "page.html", "a.ipynb is not a notebook"),
        ("[", "page.html", "a.ipynb is not a notebook"),
        (nbformat.writes(nbformat.v4.new_notebook()), "page.html", "a.ipynb was not executed; papermill"),
        ("{}", "page.pdf", "page.pdf: must end in .html, for a page, or in .ipynb"),
    ],
)
def test_other_files_are_refused(content, out, said, tmp_path, capsys) -> None:
    if content is not None:
        (tmp_path / "a.ipynb").write_text(content, "utf8")
    assert cli.main(["view", str(tmp_path / "a.ipynb"), "--out", str(tmp_path / out), "--no-open"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / out).exists()
