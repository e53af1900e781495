"""The two sizes of a run: ``quick`` fits a laptop's patience, ``paper`` follows the papers.

Values given by the user always win over a preset. ``paper`` holds the settings printed in L2RM (supplement,
Table 1), which follow NCR; on the bundled data it uses the Flickr30K settings.
"""

from __future__ import annotations

from typing import Any

from nclib import methods, models

PRESETS = ("quick", "paper")

QUICK: dict[str, Any] = {
    "batch_size": 32,
    "warmup_epochs": 2,
    "epochs": 3,
    "lr": 2e-3,
    "decay_every": 2,
    # Small products gain little from a second thread, and on a busy machine threads that wait for each other
    # cost a factor of ten.
    "threads": 1,
}
QUICK_MODEL: dict[str, Any] = {"embed_dim": 64, "sim_dim": 32, "word_dim": 64}
# 2,500 pictures make 12,500 training pairs; the test set is half of the usual one.
QUICK_DATA: dict[str, dict[str, Any]] = {
    "emoji": {"n_train": 2500, "n_val": 200, "n_test": 500},
    "planted": {},
}

# Schedules that the methods share; a method's own values are in its file (``settings``).
PAPER: dict[str, dict[str, Any]] = {
    "f30k": {"batch_size": 128, "warmup_epochs": 5, "epochs": 35, "lr": 2e-4, "decay_every": 15},
    "coco": {"batch_size": 128, "warmup_epochs": 10, "epochs": 20, "lr": 2e-4, "decay_every": 10},
    # Web pairs are wrong as they come: the published runs add no noise to them.
    "cc152k": {
        "batch_size": 128,
        "warmup_epochs": 10,
        "epochs": 40,
        "lr": 2e-4,
        "decay_every": 20,
        "mrate": 0.0,
    },
}
PAPER_MODEL: dict[str, Any] = {"embed_dim": 1024, "sim_dim": 256, "word_dim": 300}
PAPER_DATA: dict[str, dict[str, Any]] = {"emoji": {"size": "default", "regions": 36}}


def preset(
    name: str, dataset: str, method: str, model: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return (training and method values, model options, data options) of a preset.

    Later ones win: the general schedule, the model's own ``settings``, the method's own ``settings``.
    """
    small = name == "quick"
    paper = dataset if dataset in PAPER else "f30k"
    key = "quick" if small else paper
    own = {**models.settings(model, key), **methods.settings(method, key)}
    if small:
        return {**QUICK, **own}, dict(QUICK_MODEL), dict(QUICK_DATA.get(dataset, {}))
    return {**PAPER[paper], **own}, dict(PAPER_MODEL), dict(PAPER_DATA.get(dataset, {}))
