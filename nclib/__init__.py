"""Image-text retrieval with wrong pairs or wrong labels: methods, models, solvers, data and runs.

``nclib.run(method="l2rm", mrate=0.6)`` trains one method on the bundled data and returns its record.
``nclib.audit(images=I, captions=T)`` says which of one's own pairs are wrong, from their embeddings.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from nclib.common.version import VERSION as __version__

if TYPE_CHECKING:
    from nclib.auditing import audit
    from nclib.common.options import Rule
    from nclib.runs import Record, combine, load, open_run, resolve, run, table

__all__ = [
    "Record",
    "Rule",
    "__version__",
    "audit",
    "combine",
    "load",
    "open_run",
    "resolve",
    "run",
    "table",
]

_NAMES = {
    **dict.fromkeys(("Record", "combine", "load", "open_run", "resolve", "run", "table"), "runs"),
    "Rule": "common.options",
    "audit": "auditing",
}


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that `import nclib` costs next to nothing.
    from nclib.common.extras import needed_by

    with needed_by(f"nclib.{name}"):
        if name in _NAMES:
            return getattr(import_module(f"nclib.{_NAMES[name]}"), name)
        if not name.startswith("_") and find_spec(f"nclib.{name}"):
            return import_module(f"nclib.{name}")
    raise AttributeError(f"module 'nclib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *(module.name for module in iter_modules(__path__))})
