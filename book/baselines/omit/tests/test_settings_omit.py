"""The settings that the models' papers and codes publish, in the preset ``paper``."""

from typing import Any

import pytest

from nclib.runs import resolve

SETS = ("f30k", "coco")

# Of models with settings of their own as baselines, on f30k and coco, None where the model's default stands;
# ``shares`` of the rate by epoch.
BASELINES: dict[str, dict[str, Any]] = {
    # A tenth of the official 2 and 0.05, as its scores are a tenth of the official ones.
    "chan": {"grad_clip": 0.2, "margin": 0.005},
    "hrem": {
        "loss": "own", "batch_size": [128, 256], "relation_weight": [None, 1.5], "farthest": [None, 1.9],
        "shares": {14: 1, 15: 0.1, 24: 0.1, 25: 0.01, 29: 0.01},
    },
    "sbe": {
        "loss": "own", "batch_size": 200, "epochs": 80, "grad_clip": 1.0, "words_rate": 10.0,
        "shares": {0: 1, 40: 0.5, 79: 3.9e-4},
    },
    "teran": {
        "batch_size": [30, 40], "warmup_epochs": 0, "epochs": 30, "decay_every": 20, "lr": 1e-5,
        "grad_clip": 2.0, "margin": 0.2, "tail": 2,
    },
    "vsrn": {"loss": "own", "decay_every": [10, 15], "embed_dim": 2048, "norm": [None, "unit"]},
}  # fmt: skip


@pytest.mark.parametrize("model", BASELINES)
def test_published_settings_of_models_as_baselines(model: str) -> None:
    for number, dataset in enumerate(SETS):
        given = {"dataset": dataset, "model": model, "preset": "paper", "data_options": {"root": "x"}}
        settings = resolve("plain", **given)
        flat = settings.flat()
        found = {**flat, **flat["method_options"], **flat["model_options"]}
        expected = {k: v[number] if isinstance(v, list) else v for k, v in BASELINES[model].items()}
        shares = expected.pop("shares", {})
        assert {k: found.get(k) for k in expected} == expected
        assert [settings.schedule.share(e) for e in shares] == pytest.approx([*shares.values()], rel=0.02)


def test_a_methods_backbone_has_the_methods_settings() -> None:
    given = {"preset": "paper", "dataset": "coco", "data_options": {"root": "x"}}
    assert resolve("l2rm", model="vsrn", **given).model_options["embed_dim"] == 1024
    assert resolve("rcl", model="teran", **given).schedule.lr == 5e-4
