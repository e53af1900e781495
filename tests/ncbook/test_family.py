"""Pages of families: who is ahead of whom, and what they show where the store lacks a run."""

import pandas as pd
import pytest
from ncbook.chapters import family


def runs(values: dict[str, tuple[float, ...]], rate: float = 0.6) -> pd.DataFrame:
    rows = [
        {"label": label, "mrate": rate, "seed": seed, "rsum": value}
        for label, each in values.items()
        for seed, value in enumerate(each)
    ]
    return pd.DataFrame(rows)


def test_ahead_names_only_decided_differences_and_the_best_plain_loss() -> None:
    table = pd.concat(
        [
            runs({"ncr": (130, 132, 131), "bicro": (148, 149, 147), "mscn": (131, 130, 135)}),
            runs({"plain (gce)": (140, 141, 139), "plain (triplet)": (70, 71, 72)}),
            runs({"ncr": (250, 270, 260), "bicro": (261, 249, 266)}, 0.0),
        ]
    )
    lines = family.ahead(table, ("ncr", "bicro", "mscn")).data.splitlines()[2:]
    assert lines == [
        "- rate 0: none",
        "- rate 0.6: `bicro` (148) ahead of `plain (gce)`, `mscn`, `ncr`; `plain (gce)` (140) ahead of `ncr`",
    ]


def test_the_others_train_as_long_in_all_where_a_method_has_no_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(family.training, "beside", lambda *_, **own: asked.append(own))
    given = {"epochs": 6, "decay_every": 1}
    for method in ("rcl", "decl"):
        family.beside(family.stored(method).record, given, "none")
    assert asked == [{"epochs": 4, "decay_every": 1}, {}]


def test_a_missing_stored_run_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(family, "stored", lambda method: None)
    assert family.inside("mscn", lambda run: run.last) is None
    assert capsys.readouterr().out == "no stored run of mscn: make demo makes it\n"
    assert family.said("mscn", "AUC {auc:.2f}").data == ""
