"""What the presets set for each method, and options out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from ncbook.variant import published_warmup

from nclib.runs import resolve

SETS = ("f30k", "coco", "cc152k")
# Schedule and options of the papers: one value, or one for each of SETS.
PUBLISHED: dict[str, dict[str, Any]] = {
    "cream": {
        "warmup_epochs": 5, "epochs": [40, 20, 40], "decay_every": 10, "lr": 2e-4, "tau": 0.07,
        "threshold": 0.5, "hard_from": [0.25, 0.5, 0.25], "noisy_from": [0.375, 0.75, 0.375],
        "mined_gradient": True,
    },
    "crcl": {
        "warmup_epochs": 0, "epochs": [53, 51, 51], "decay_every": 15, "lr": 5e-4, "weight_decay": 1e-2,
        "schedules": 4, "schedule_epochs": [7, 8, 8], "freeze": 2, "alpha": 0.8, "floor": 0.1, "tau": 0.05,
        "weight": 5.0,
    },
    "decl": {
        "warmup_epochs": [5, 2, 5], "epochs": [40, 20, 40], "decay_every": [20, 10, 20],
        "lr": [2e-4, 5e-4, 2e-4], "lam1": 0.8, "lam2": 0.1, "eta": 0.025, "mu": 5, "tau": 0.1, "margin": 0.2,
    },
    "gsc": {
        "warmup_epochs": 0, "epochs": 60, "decay_every": [15, 20, 15], "decay_factor": 0.2, "lr": 2e-4,
        "gamma": [0.01, 0.05, 0.01], "tau": 0.07, "beta": 0.7,
    },
    "gsc_plus": {
        "warmup_epochs": 0, "epochs": [60, 30, 60], "decay_every": [15, 15, 20], "decay_factor": 0.2,
        "lr": 2e-4, "gamma": [0.01, 0.05, 0.02], "tau": 0.07, "beta": 0.7,
    },
    "in2r": {
        "warmup_epochs": 5, "epochs": 40, "decay_every": 15, "lr": 5e-4, "weight_decay": 1e-4,
        "queue": [65_536, 448_000, 65_536], "K": 5, "heads": 4, "intra": 0.5, "gamma": 1.0, "margin": 0.2,
        "intra_margin": 0.3, "tau": 0.05, "threshold": 0.5,
    },
    "l2rm": {
        "lam": [0.01, 0.07, 0.07], "mask": [True, True, False], "rho": 0.1, "tau": 0.05, "margin": 0.2,
        "threshold": 0.5, "cost_lr": 2e-6,
    },
    "ncr": {"warmup_epochs": [5, 10, 10], "epochs": [40, 20, 40], "decay_every": [30, 10, 30], "lr": 2e-4},
    "pcsr": {
        "warmup_epochs": 5, "epochs": 50, "decay_every": 30, "lr": 2e-4, "margin": 0.2, "classes": 256,
        "entropy_weight": 10, "refinable_from": 0.5, "ambiguous_from": 0.8,
    },
    "rcl": {
        "warmup_epochs": 0, "epochs": [30, 20, 40], "decay_every": [15, 10, 20], "lr": [2e-4, 5e-4, 2e-4],
        "loss": "log", "tau": 0.05,
    },
    "repair": {
        "warmup_epochs": [5, 10, 10], "epochs": [40, 40, 20], "decay_every": [30, 30, 10],
        "bank_size": 4096, "eta": 0.25, "K": 32, "tau": 0.15, "threshold": 0.5,
    },
    "sps": {
        "warmup_epochs": 5, "epochs": [40, 20, 40], "decay_every": 10, "lr": 2e-4, "tau": 0.07,
        "symmetry": 25, "geometry": 25, "clean_from": 0.25, "noisy_from": [0.375, 0.5, 0.375],
    },
}  # fmt: skip


@pytest.mark.parametrize("method", PUBLISHED)
def test_published_settings(method: str) -> None:
    for number, dataset in enumerate(SETS):
        s = resolve(method, dataset=dataset, preset="paper", data_options={"root": "x"}).flat()
        expected = {"batch_size": 128, "grad_clip": 2.0, **PUBLISHED[method]}
        expected = {k: v[number] if isinstance(v, list) else v for k, v in expected.items()}
        assert {k: {**s, **s["method_options"]}[k] for k in expected} == expected


def test_a_short_run_of_bicro_warms_up_on_half_of_a_batch() -> None:
    """That many count by default in the official code, with five epochs in all as in other methods."""
    s = resolve("bicro", preset="quick").flat()
    assert (s["warmup_epochs"], s["epochs"], s["method_options"]["keep_ratio"]) == (3, 2, 0.5)


def test_published_warm_up_of_decl() -> None:
    for dataset, usual, high in (("f30k", 5, 2), ("coco", 2, 1), ("cc152k", 5, 5)):
        rates = (0, 0.2, 0.4, 0.6, 0.8)
        assert [published_warmup(dataset, rate) for rate in rates] == [usual] * 3 + [high] * 2


@pytest.mark.parametrize("preset", ["quick", "standard"])
@pytest.mark.parametrize("method", ["crcl", "gsc", "rcl"])
def test_without_warm_up_a_run_is_as_long_as_those_of_the_others(method: str, preset: str) -> None:
    given = {"dataset": "emoji", "model": "vse", "preset": preset}
    own, other = (resolve(name, **given).schedule for name in (method, "plain"))
    assert own.warmup_epochs == 0
    assert own.epochs == other.warmup_epochs + other.epochs
    if method != "crcl":  # its rate falls within each of its schedules
        assert own.decay_every == other.warmup_epochs + other.decay_every


# What each method cannot train with, and what its refusal names: the parameter, and what is allowed or helps.
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("bicro", {"keep_ratio": 0}, ["keep_ratio=0", "above 0"]),
    ("crank", {"warmup_epochs": 0}, ["warmup_epochs"]),
    ("crcl", {"epochs": 2, "schedules": 2, "schedule_epochs": 2}, ["schedules=2", "epochs=2", "3 epochs"]),
    ("cream", {"hard_from": 10}, ["hard_from=10", "at least 0 and at most 1"]),
    ("gsc", {"beta": 0}, ["beta=0", "above 0"]),
    ("gsc_plus", {"gamma": -1}, ["gamma=-1", "at least 0"]),
    ("in2r", {"heads": 5}, ["heads=5", "16"]),
    ("mscn", {"lookahead_every": 0}, ["lookahead_every=0", "at least 1"]),
    ("pcsr", {"classes": 1}, ["classes=1", "at least 2"]),
    ("sps", {"sure": 0.4}, ["sure=0.4", "threshold=0.5"]),
]


@pytest.mark.parametrize(("method", "given", "named"), REFUSED)
def test_what_a_method_cannot_train_with_is_refused(
    method: str, given: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as error:
        tiny.run(method, tmp_path, **given)
    assert [word for word in named if word not in str(error.value)] == []
    assert not list(tmp_path.iterdir())
