"""The two sizes of a run of category retrieval; values given by the user always win.

``paper`` holds the settings that UOT-RCL and MRL share; ``quick`` is for the bundled data on a laptop.
"""

from __future__ import annotations

from typing import Any

from nclib.label_noise.base import METHODS

QUICK: dict[str, Any] = {
    "batch_size": 100,
    "epochs": 24,
    # Adam moves a network by rate times width, and these are 16 times narrower than the papers'.
    "lr": 3e-3,
    "hidden": 256,
    "dim": 64,
    # Small products gain little from a second thread.
    "threads": 1,
}
PAPER: dict[str, dict[str, Any]] = {
    "wikipedia": {"batch_size": 100},
    "nuswide": {"batch_size": 500},
    "xmedianet": {"batch_size": 100},
}
SIZE: dict[str, Any] = {"epochs": 100, "lr": 1e-4, "hidden": 4096, "dim": 512}


def preset(name: str, dataset: str, method: str) -> dict[str, Any]:
    """Return the values of a preset; the method's own ``settings`` win over the general ones."""
    settings = METHODS[method].factory.settings
    if name == "quick":
        return {**QUICK, **settings.get("quick", {})}
    where = dataset if dataset in PAPER else "wikipedia"
    return {**SIZE, **PAPER[where], **settings.get(where, {})}
