"""How the models are loaded: by a command, by a grid, and what is said where they are not."""

import json
import subprocess
import sys
from pathlib import Path

import grid_plan
import pytest
from baselines import omit

from nclib import cli, models
from nclib.common.importing import import_own
from nclib.models.registry import MODELS
from nclib.testing import check_model

ROOT = Path(omit.__file__).parents[3]


def test_a_command_loads_them(capsys):
    code = "import sys, nclib.cli; sys.exit(nclib.cli.main(sys.argv[1:]))"
    found = {}
    for words in ([], ["--import", omit.PLACE]):
        command = [sys.executable, "-c", code, "list", "--json", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found[bool(words)] = set(json.loads(done.stdout)["models"])
    assert len(found[False]) <= 10
    assert found[True] - found[False] == {*omit.MODELS}
    import_own(omit.PLACE, ROOT)  # again: nothing is registered twice
    assert {*models.available()} >= found[True]


@pytest.mark.parametrize("code", ["book/baselines/none", "book/grids", "no.such.module", "a b"])
def test_code_that_is_not_there_is_refused_before_a_run(code, tmp_path, capsys):
    assert cli.main(["run", "--import", code, "plain"]) == 2
    assert f"import {code}: must be" in capsys.readouterr().err
    grid = tmp_path / "one.yml"
    grid.write_text(f"- {{import: {code}, method: plain, dataset: emoji}}\n")
    with pytest.raises(grid_plan.GridError, match=rf"one\.yml, block 1: import {code}: must be"):
        grid_plan.plan(grid)
    grid.write_text("- {import: [a, b], method: plain}\n")
    with pytest.raises(grid_plan.GridError, match="block 1: import must be text"):
        grid_plan.plan(grid)


def test_a_grid_hands_its_runs_what_they_import():
    runs = grid_plan.plan(grid_plan.GRIDS / "models.yml")
    assert {run.code for run in runs} == {omit.PLACE}
    assert {run.arguments["model"] for run in runs} >= {*omit.MODELS}
    assert not any("import" in {**run.arguments, **run.settings} or "import" in run.label for run in runs)


def test_pictures_need_a_network_that_is_loaded(monkeypatch):
    from nclib.models.region_words import PICTURE_NETWORKS

    monkeypatch.delitem(PICTURE_NETWORKS, "resnet")
    given = {"feature_dim": 24, "vocab_size": 9, "image": "resnet", "image_folder": "there"}
    with pytest.raises(ValueError, match=f"image='resnet' .*{omit.PLACE}"):
        models.build("vse", **given)


@pytest.mark.parametrize("name", omit.MODELS)
def test_each_model_keeps_what_the_loops_rely_on(name):
    check_model(MODELS[name].factory)
