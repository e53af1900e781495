"""Patterns of mistakes: duplicates, swapped pairs, shifted runs of rows, orphans."""

from __future__ import annotations
