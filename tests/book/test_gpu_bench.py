"""The command that measures a GPU, tried in small on the CPU, and the hours made from its results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grid_plan
import pytest
from bench import gpu, gpu_processes
from ncbook import gpu as cards
from ncbook import measurements
from ncbook.measurements import ROOT, measurement

import nclib


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_call_measures_what_the_last_one_left_and_the_page_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--small", "--out", str(out), "--match"]
    assert gpu.main([*words, "^(step/sgr|score/sgr|transport|method/l2rm)"]) == 0
    assert gpu.main([*words, "^(step/sgr|labels/mrl|agree/models|resume)"]) == 0
    assert capsys.readouterr().out.count("step/sgr fp32") == 1  # not measured again
    found = json.loads(out.read_text("utf8"))
    assert {part["state"] for part in found["parts"].values()} == {"done"}
    assert found["parts"]["agree/models"]["result"]["differ"] == []  # the same device
    (row,) = found["parts"]["resume"]["result"]["rows"]
    assert row["difference"] == 0.0
    assert row["killed after epoch"] < row["of"]
    shown = "\n".join(cards.lines_of(found))
    assert all(f"**{cards.TITLES[kind]}**" in shown for kind in ("step", "method", "score", "labels"))
    with pytest.raises(SystemExit, match="in these sizes"):
        gpu.stored(out, small=False)
    monkeypatch.setattr(measurements, "MEASURED", tmp_path)
    monkeypatch.setattr(cards, "MEASURED", tmp_path)
    assert cards.stored() is None
    measurements.keep(out, "bench_gpu")
    with pytest.raises(ValueError, match="papers' sizes"):
        cards.stored()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_parts_compile_ahead_in_processes_that_fit_the_memory() -> None:
    call = [sys.executable, gpu.__file__, "--device", "cpu", "--small"]

    def ahead(*parts: str, limit: float) -> dict[str, Any]:
        return gpu_processes.compile_ahead(list(parts), call, 20.0, 8, limit)

    report = ahead("transport/partial 8", "step/none", "step/vse_inf tf32", limit=60)
    assert isinstance(report.pop("transport/partial 8"), float)
    assert "KeyError: 'step/none'" in report.pop("step/none")
    assert not report  # VSE-infinity compiles nothing
    left = ("step/saf fp32", "step/saf bf16", "step/saf tf32")  # two fit the memory
    assert ahead(*left, limit=0.5) == dict.fromkeys(left[:2], "stopped at the limit")
    rows = gpu_processes.measured_alone("transport/partial 8", call, seconds=60)["rows"]
    assert {row["stop"] for row in rows if row["difference"] == 0} == {"published", "accurate"}


def test_a_part_that_fails_is_filed_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(bench: Any) -> dict[str, Any]:
        raise RuntimeError("a made fault")

    made = {"step/bad": fails, "step/good": lambda bench: {"rows": [{"ms": 1.0}]}}
    monkeypatch.setattr(gpu, "parts", lambda small, root: made)
    out = tmp_path / "gpu.json"
    assert gpu.main(["--device", "cpu", "--small", "--out", str(out)]) == 1
    found = json.loads(out.read_text("utf8"))
    assert [part["state"] for part in found["parts"].values()] == ["failed", "done"]
    assert "- step/bad failed: `RuntimeError: a made fault`" in cards.lines_of(found)


def test_the_measured_methods_are_those_of_the_declared_runs() -> None:
    blocks = [block for path in grid_plan.GRIDS.glob("paper_*.yml") for block in grid_plan.read(path)]
    pairs, labels = set(), set()
    for run in (run for block in blocks for run in grid_plan.combinations(block)):
        pictures = str(run.get("dataset")).endswith("_pictures")
        if pictures or {"pixels", "pieces"} & (run.get("data_options") or {}).keys():
            continue  # pretrained networks are not measured
        if run["method"] in nclib.label_noise.available():
            labels.add(run["method"])
        else:
            pairs |= {(run["method"], model) for model in run["model"].split("+")}
    assert (pairs, labels) == (set(gpu.RUNS), set(gpu.LABELS))


def made_results(**rest: Any) -> dict[str, Any]:
    epoch = {"steps": 20, "step_ms": 50.0, "around_ms": 1000.0}
    method = {"networks": 2, "pairs": 2560, "trained_pairs": 1280.0, "divides": True, "batch": 128}
    method |= {"warm-up": {"steps": 40, "step_ms": 40.0, "around_ms": 0.0}, "first": epoch, "last": epoch}
    rows = [{"images": 100, "captions": 500, "precision": "tf32", "seconds": 0.5, "share": 0.5}]
    results = {"method/ncr sgr": method, "score/sgr": {"rows": rows}, **rest}
    parts = {name: {"state": "done", "result": result} for name, result in results.items()}
    return {"benchmark": "gpu", "small": False, "device": {"name": "made GPU"}, "parts": parts}


def test_hours_of_a_run_by_hand() -> None:
    own = {"dataset": "f30k", "preset": "paper", "model": "sgr", "mrate": 0.4, "data_options": {"root": "x"}}
    settings = nclib.resolve("ncr", **own).flat()
    found, pairs = made_results(), 29000 * 5
    warm = 5 * 2 * 1133 * 0.04  # epochs, networks, batches of 128, seconds
    training = 40 * (20 / 1280 * 0.6 * pairs * 0.05 + pairs / 2560 * 1.0)
    scored = (45 + 1) * 2 * 1000 * 5000 * (1.0 / 50_000)
    assert cards.seconds_of(settings, found) == pytest.approx(warm + training + scored)
    (row,) = cards.hours(found)
    assert row["f30k h"] == pytest.approx((warm + training + scored) / 3600)
    for other in ({"model": "saf"}, {"dataset": "emoji"}):
        assert cards.seconds_of({**settings, **other}, found) is None
    half = cards.seconds_of({**settings, "batch_size": 64}, found)
    assert half == pytest.approx(warm * 2266 / 2266 + training + scored, rel=1e-3)  # pairs cost the same
    labels = {"labels/mrl": {"epoch_s": 2.0, "pairs": 2173, "batch": 100, "closed_form": False}}
    of_labels = {"noise_rate": 0.2, "method": "mrl", "dataset": "wikipedia", "epochs": 100, "batch_size": 100}
    assert cards.seconds_of(of_labels, made_results(**labels)) == pytest.approx(200.0)


def test_former_figures_stand_beside_those_of_the_same_parts() -> None:
    before = {row["what"]: row for row in measurement("bench_gpu_before")["rows"]}
    assert {row["part"] for row in before.values()} <= gpu.parts(small=False).keys()
    step = {"rows": [{"model": "saf", "precision": "tf32", "ms": 14.63}]}
    scored = {"rows": [{"model": "sgr", "seconds": 4.0, "share": 0.125, "reserved_mb": None}]}
    repair = {"rows": [{"epoch": "last", "step_ms": 1330.0, "compiles": 3}]}
    found = made_results(**{"step/saf tf32": step, "score/sgr, large": scored, "method/repair sgr": repair})
    for name in ("method/ncr sgr", "score/sgr"):
        del found["parts"][name]
    for name, part in found["parts"].items():
        part |= {"commit": "abcdef0123", "timed": cards.timed_code(name)}
    found["parts"]["step/saf tf32"]["timed"] = "other code"
    now = {what: (value, mark) for what, _, _, value, mark in cards.beside(found)}
    assert now.keys() == before.keys()
    # Time of the compiler, as in that of REPAIR, is no time of a step.
    assert {what: of for what, of in now.items() if of[0] != "–"} == {
        "step of SAF, tf32": ("14.6", "abcdef01 ‡"),
        "scores of 5,000 x 25,000, SGR, from a share; before in fp32": ("32", "abcdef01"),
    }


def test_a_part_knows_the_code_that_it_times(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "nclib", root / "nclib")
    names = ["step/scan tf32", "step/sgr fp32", "score/imram", "method/ncr sgr", "launches", "agree/models"]
    before = [cards.timed_code(name, root) for name in names]
    assert before == [cards.timed_code(name) for name in names]
    with (root / "nclib/models/scan.py").open("a") as file:
        file.write("MORE = 1\n")
    cards.timed_code.cache_clear()
    after = [cards.timed_code(name, root) for name in names]
    other = [a != b for a, b in zip(after, before, strict=True)]
    assert other == [True, False, False, False, False, False]
    assert before[-1] is None  # whether devices agree is no speed


@pytest.mark.slow
def test_a_checkout_of_some_folders_measures(tmp_path: Path) -> None:
    """The card was once lent a shallow checkout without the files that only the book reads."""
    for folder in ("nclib", "book/bench", "book/_ext", "book/ncbook"):
        ignore = shutil.ignore_patterns("*.yml", "__pycache__") if folder == "book/ncbook" else None
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    words = f"--device cpu --small --match partial.16|step/saf.tf --out {tmp_path}/out.json --commit 0123"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'book'}"}
    call = [sys.executable, str(tmp_path / "book/bench/gpu.py"), *words.split()]
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "out.json").read_text("utf8"))["parts"]
    states = {name: part["state"] for name, part in parts.items()}
    assert states == {"step/saf tf32": "done", "transport/partial 16": "done"}


def test_the_cells_of_the_runs_are_those_that_a_dry_run_fills() -> None:
    import dry_run

    assert sum(worth.cells for worth in dry_run.worths().values()) == 3380
