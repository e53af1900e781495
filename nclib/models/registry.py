"""The registry of models."""

from __future__ import annotations

from nclib.common.registry import Registry
from nclib.models.base import Matcher

MODELS: Registry[type[Matcher]] = Registry("model", (Matcher,))
register = MODELS.register
