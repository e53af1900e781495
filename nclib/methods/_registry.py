"""The registry that method files file themselves under."""

from __future__ import annotations

from nclib._registry import Registry
from nclib.methods._base import Method

METHODS: Registry[type[Method]] = Registry("method")
