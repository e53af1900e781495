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
    """What a code object says."""

    parts: list[str] = field(default_factory=list)  # instructions, constants and inner functions
    names: set[str] = field(default_factory=set)  # with dots; they start at a variable from outside
    imports: set[tuple[int, str, tuple[str, ...]]] = field(default_factory=set)  # level, module and names

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
                self.parts.append(str(place[value]) if jumps else _constant(value))
            if name in STARTS:
                self.names.add(_dotted(kept, i))
        self.parts += [repr(entry) for entry in _protected(code, place)]
        self.parts.append(")")
        return self


def _constant(value: Any) -> str:
    """Return a constant as text that is the same in every process: sets have no order of their own."""
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
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
            jumps = found.opcode in dis.hasjrel or found.opcode in dis.hasjabs
            kept.append((found.opname, found.argval, jumps))
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
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        depth = entry.depth << 1 | entry.lasti  # as the table has it
        yield place[entry.start], place.get(entry.end, len(place)), place[entry.target], depth
