"""The registry that method files file themselves under."""

from __future__ import annotations

from nclib.common.registry import Registry
from nclib.methods.base import Method

METHODS: Registry[type[Method]] = Registry("method")
