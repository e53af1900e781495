"""Names and summaries of all that the package registers, read from its source.

A registry is filled when modules are imported, and these need torch, whose import takes seconds. Calls of
``register`` with plain texts can be read without it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from nclib.common.registry import Catalogue

FOLDERS = ("methods", "label_noise", "models", "data")
CALL = re.compile(r"^@register\((.*?)\)\n(?=@|class |def )", re.MULTILINE | re.DOTALL)


def catalogues() -> dict[str, Catalogue]:
    """Return what ``available()`` of methods, models and data returns, without importing them.

    Returns
    -------
    dict of str to Catalogue
        ``methods``, ``label_noise``, ``models``, ``data`` (pairs) and ``categories`` (data with categories).

    Examples
    --------
    >>> catalogues()["models"]["vse"]
    'pooled regions, pooled BiGRU, cosine; fast (VSE++, BMVC 2018)'
    """
    found: dict[str, dict[str, str]] = {name: {} for name in (*FOLDERS, "categories")}
    for folder in FOLDERS:
        for path in (Path(__file__).parent / folder).rglob("*.py"):
            source = path.read_text("utf8")
            for call in CALL.findall(source):
                name, given = _arguments(call, source)
                kind = "categories" if given.get("task") == "categories" else folder
                found[kind][name] = given["summary"] + (f" ({given['paper']})" if "paper" in given else "")
    return {kind: Catalogue(dict(sorted(names.items()))) for kind, names in found.items()}


def _arguments(call: str, source: str) -> tuple[str, dict[str, str]]:
    """Return the name and the keywords of a call of ``register``; constants stand in its own file."""
    parsed = ast.parse(f"register({call})", mode="eval").body
    assert isinstance(parsed, ast.Call)

    def value(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            constant = re.search(rf"^{node.id} = (.+)$", source, re.MULTILINE)
            return str(ast.literal_eval(constant[1])) if constant else node.id
        return str(ast.literal_eval(node))

    return value(parsed.args[0]), {str(k.arg): value(k.value) for k in parsed.keywords}
