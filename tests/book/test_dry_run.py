"""The dry run of the papers' grids: made records that tell the run behind every printed cell."""

import re

import dry_run
import grid
import grid_plan as grids
import pytest
from ncbook.layouts import LAYOUTS
from ncbook.runs import load_runs

from nclib.runs.record import Record


def test_a_made_record_has_the_metrics_of_its_run(tmp_path):
    path, made = tmp_path / "g.yml", tmp_path / "made"
    path.write_text(
        "- {method: [plain, ncr], dataset: coco, preset: paper, model: [sgr, saf+sgr], mrate: 0.0}\n"
        "- {method: mrl, dataset: wikipedia, preset: paper, noise_rate: 0.2}\n"
    )
    for number, run in enumerate(grids.plan(path, root="."), 1):
        dry_run.made(run, number).save(made / f"{run.label}.json")
    records = [Record.load(p) for p in made.glob("*.json")]
    groups = {(r.settings["method"], r.settings.get("model")): set(r.metrics) for r in records}
    one = {"val", "test", "test_dsl", "folds"}
    assert groups["plain", "sgr"] == one
    assert groups["plain", "saf+sgr"] == groups["ncr", "sgr"] == one | {"single"}
    assert groups["mrl", None] == {"val", "test"}
    table = load_runs(made).retrieval.set_index(["method", "model"])
    assert table.loc[("plain", "sgr"), "folds.i2t_r1"] == pytest.approx(dry_run.APART["folds"] + 1e-3)
    assert set(table["variant"]) == {""}
    assert set(table["test_images"]) == {5000}


@pytest.mark.exhaustive
def test_every_declared_run_fills_what_its_paper_prints(capsys, monkeypatch):
    """Of one paper; ``make paper DRY=1`` tries all."""
    tables = {key: layout for key, layout in LAYOUTS.items() if key[0] == "REPAIR"}
    monkeypatch.setattr(dry_run, "LAYOUTS", tables)
    monkeypatch.setattr(dry_run, "GRIDS_OF", {"REPAIR": dry_run.GRIDS_OF["REPAIR"]})
    monkeypatch.setattr(dry_run, "NOTEBOOKS", ["results_repair"])
    assert dry_run.main() == 0
    said = capsys.readouterr().out
    assert "All that a declared run can fill is filled." in said
    assert "508 of   512 cells" in said


def test_the_plan_stands_in_an_order_of_worth(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grid, "stored", lambda: None)  # no step was measured
    monkeypatch.setattr(dry_run, "LAYOUTS", {("L2RM", n): LAYOUTS["L2RM", n] for n in "36"})
    own = "{method: l2rm, dataset: f30k, preset: paper, model: sgr, mrate: 0.6, protocol: images"
    own += ", seed: [1, 0]"
    (tmp_path / "paper_a.yml").write_text(f"- {own}, rho: 0.3}}\n- {own}, rematch: kl}}\n")
    (tmp_path / "paper_b.yml").write_text(f"- {own}}}\n- {own}, rho: 0.1}}\n")  # 0.1 is the usual value
    assert grid.main([*(str(tmp_path / f"paper_{name}.yml") for name in "ab"), "--list"]) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"^(\d)\.|^missing .* l2rm-sgr-f30k-m0.6-images-(s\d)-preset=paper(\S*)$", said, re.M)
    assert ["".join(words) for words in shown] == [
        *("1", "s0", "2", "s0-rematch=kl", "3", "s1-rematch=kl", "s1", "4", "s0-rho=0.3", "s1-rho=0.3")
    ]
    assert "1 runs (hours unknown), 13 printed cells" in said
    assert re.search(r"^missing +\? h +6 cells  l2rm.*-s0-preset=paper-rematch=kl$", said, re.M)
