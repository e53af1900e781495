"""The registry that methods of category retrieval file themselves under."""

from __future__ import annotations

from nclib.common.registry import Registry
from nclib.label_noise.base import DeepMethod, Projector

METHODS: Registry[type[DeepMethod] | type[Projector]] = Registry("category method")
