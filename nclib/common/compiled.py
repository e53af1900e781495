"""The code of functions as Python holds it in memory, as text and as the names that it mentions.

A source file may have been edited since a function was defined, and a function that was typed into a console
has none; the code object is always there and is what runs. Comments, docstrings, type hints of parameters and
line numbers are not part of the text. Another minor version of Python compiles to another text, and Python
3.12 does so for some line breaks within a comprehension.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

STARTS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
STARTS |= {"LOAD_FROM_DICT_OR_DEREF"}
SILENT = {"NOP", "CACHE", "EXTENDED_ARG"}  # they depend on lines and on the number of constants
WORDS = {"__doc__", "__firstlineno__"}  # what a class within a function stores about its source
PAIR = re.compile(r"(?:LOAD|STORE)_FAST")  # Python 3.13 joins two of these where they share a line
KINDS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


@dataclass
class Compiled:
    """What a code object says.

    Attributes
    ----------
    parts : list of str
        Its instructions, with constants and inner functions in their places.
    names : set of str
        Names and dotted names (``losses.triplet``) that start at a global variable or one of a function
        around it.
    imports : set of (int, str, tuple of str)
        Level, module and names of the imports within it.
    """

    parts: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    imports: set[tuple[int, str, tuple[str, ...]]] = field(default_factory=set)

    @property
    def text(self) -> str:
        return " ".join(self.parts)

    def add(self, code: CodeType) -> Compiled:
        """Read a code object and those of the functions within it."""
        n = code.co_argcount + code.co_kwonlyargcount
        n += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        head = (code.co_argcount, code.co_posonlyargcount, code.co_varnames[:n], code.co_flags & KINDS)
        self.parts.append(f"({head!r}")
        kept, place = _instructions(code)
        for i, (name, value, jumps) in enumerate(kept):
            self.parts.append(name)
            if isinstance(value, CodeType):
                self.add(value)
            elif name == "IMPORT_NAME":
                level, names = kept[i - 2][1], kept[i - 1][1]
                self.imports.add((level or 0, value, names or ()))
                self.parts.append(value)
            else:
                self.parts.append(str(place[value]) if jumps else constant(value))
            if name in STARTS:
                self.names.add(_dotted(kept, i))
        self.parts += [repr(entry) for entry in _protected(code, place)]
        self.parts.append(")")
        return self


def constant(value: Any) -> str:
    """Return a constant as text that is the same in every process: sets have no order of their own."""
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(constant, value))})"
    return repr(value)


Instruction = tuple[str, Any, bool]  # name, value of the argument, whether that is a jump


def _instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """Return the instructions that count, and the number of the one that an offset leads to."""
    kept: list[Instruction] = []
    place: dict[int, int] = {}
    for found in dis.get_instructions(code):
        place[found.offset] = len(kept)
        if found.opname in SILENT:
            continue
        if found.opname == "STORE_NAME" and found.argval in WORDS:
            kept.pop()  # the docstring
            continue
        both = PAIR.findall(found.opname)
        if len(both) == 2:
            kept += [(name, value, False) for name, value in zip(both, found.argval, strict=True)]
        else:
            kept.append(
                (found.opname, found.argval, found.opcode in dis.hasjrel or found.opcode in dis.hasjabs)
            )
    place[len(code.co_code)] = len(kept)
    return kept, place


def _dotted(kept: list[Instruction], i: int) -> str:
    """Return the name that an instruction loads, with the attributes that the next ones take from it."""
    found = [kept[i][1]]
    for name, value, _ in kept[i + 1 :]:
        if name not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        found.append(value)
    return ".".join(found)


def _protected(code: CodeType, place: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield start, end, handler and depth of the parts under ``try`` or ``with``: the exception table."""
    table = iter(code.co_exceptiontable)

    def number(first: int) -> int:
        value, more = first & 63, first & 64
        while more:
            byte = next(table)
            value, more = value << 6 | byte & 63, byte & 64
        return value

    for first in table:
        start = 2 * number(first)
        length, handler, depth = 2 * number(next(table)), 2 * number(next(table)), number(next(table))
        end = start + length
        yield place[start], place.get(end, len(place)), place[handler], depth
