"""The command that measures on a GPU: its parts in small on the CPU, resuming, refusals, hours, tables."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gpu_results
import grid
import grid_plan
import pytest
import torch

import nclib

BENCH = Path(__file__).resolve().parents[2] / "book" / "bench"


@pytest.fixture(scope="module")
def gpu() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("gpu")
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def common(gpu: ModuleType) -> ModuleType:
    return importlib.import_module("gpu_common")


@pytest.fixture(scope="module")
def measured(gpu: ModuleType, common: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One part of every kind in small, as the file holds them."""
    bench = common.Bench(torch.device("cpu"), True, "", tmp_path_factory.mktemp("gpu"))
    wanted = (
        *("device/bounds", "agree/losses", "step/sgr float32", "step/sgr loop", "method/ncr sgr"),
        *("transport/partial 8", "transport/small 1", "score/sgr", "run/scenes", "kernel/attention"),
        *("labels/uot_rcl", "transport/ott 8", "transport/fused 8"),
    )
    parts = {part.name: part for part in gpu.parts(True, "")}
    found = {name: common.measured(parts[name], bench) for name in wanted}
    extra = {"when": "2026-01-02T03:04:05+00:00", "commit": "0123456789ab"}
    whole = {"benchmark": "gpu", "small": True, "device": common.describe(bench.device)}
    return {**whole, "parts": {name: {**extra, **outcome} for name, outcome in found.items()}}


@pytest.mark.slow
def test_parts_of_every_kind_run_in_small(measured: dict[str, Any]) -> None:
    assert {name: p.get("error") for name, p in measured["parts"].items() if p["state"] != "done"} == {}
    json.dumps(measured, allow_nan=False)
    parts = {name: part["result"] for name, part in measured["parts"].items()}
    assert parts["agree/losses"]["agree"]
    assert all(case["difference"] == 0 for case in parts["agree/losses"]["cases"].values())
    assert parts["step/sgr float32"]["work"]["flops"] > parts["kernel/attention"]["bound"]["flops"]
    assert parts["step/sgr float32"]["batch"] == 8
    ncr = parts["method/ncr sgr"]
    assert ncr["divides"]
    assert ncr["warm-up"]["steps"] == 2 * ncr["pairs"] / ncr["batch"]  # two networks
    assert ncr["first"]["steps"] == ncr["last"]["steps"] == 2 * -(-ncr["trained_pairs"] // ncr["batch"])
    assert 0.3 < ncr["trained_pairs"] / ncr["pairs"] < 0.7
    solved = parts["transport/partial 8"]["rows"]
    assert all(row["plan_error"] < 1e-3 for row in solved if "nclib" in row["solver"])
    assert {row["solver"] for row in solved} >= {"published loop", "POT sinkhorn"}
    fused = parts["transport/fused 8"]
    assert {(row["what"], row["path"]) for row in fused["rows"]} == {
        ("forward", "plain"), ("forward+backward", "plain")
    }  # fmt: skip
    assert "need a GPU" in fused["left_out"]
    assert all(row["difference"] < 1e-3 and row["bytes"] > 0 for row in fused["rows"])
    assert parts["run/scenes"]["record"]["settings"]["method"] == "l2rm"
    assert parts["labels/uot_rcl"]["epoch_s"] > 0


@pytest.mark.slow
def test_the_page_shows_what_was_measured_and_what_failed(measured: dict[str, Any]) -> None:
    failed = {"state": "failed", "error": "RuntimeError: no `memory`", "when": "2026-01-03", "commit": "01"}
    found = {**measured, "parts": {**measured["parts"], "step/saf float32": failed}}
    text = "\n".join(gpu_results.lines_of(found))
    assert "2026-01-02 to 2026-01-03, commit `01`, `0123456789ab`" in text
    assert "- step/saf float32: `RuntimeError: no 'memory'`" in text
    for row in (
        "sgr | ",
        "ncr sgr | 2 | ",
        "published loop | 8 | ",
        "8, forward | plain | ",
        "planted | fp32 | ",
        "losses | ",
    ):
        assert f"| {row}" in text
    assert text.count("**Training steps, milliseconds**") == 1


def test_without_a_file_the_page_says_that_nothing_was_measured(tmp_path: Path) -> None:
    assert gpu_results.stored(tmp_path) is None
    assert gpu_results.lines_of(None) == [gpu_results.NOTHING]
    path = tmp_path / gpu_results.STORED
    path.parent.mkdir(parents=True)
    path.write_text('{"benchmark": "gpu", "small": true, "parts": {}}')
    with pytest.raises(ValueError, match="in the papers' sizes"):
        gpu_results.stored(tmp_path)


@pytest.mark.slow
def test_the_build_shows_the_stored_file(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# GPU\n\n```{gpu-results}\n```\n", "utf8")
    extension = str(Path(gpu_results.__file__).parent)
    settings = f"import sys\nsys.path.append({extension!r})\nextensions = ['myst_nb', 'gpu_results']\n"
    (tmp_path / "conf.py").write_text(settings, "utf8")
    found = made_results()
    for part in found["parts"].values():
        part |= {"when": "2026-01-02T03:04:05+00:00", "commit": "0123456789ab"}
    found["device"] |= {"driver": "1.2", "cuda": "13.0", "torch": "2.13"}
    (tmp_path / "made.json").write_text(json.dumps(found), "utf8")
    (tmp_path / gpu_results.STORED).parent.mkdir(parents=True)
    again = f"""if True:
        import shutil
        from sphinx.cmd.build import main
        words = ["-q", "-W", "-b", "html", ".", "html"]
        assert main(words) == 0
        assert "Nothing was measured on a GPU yet" in open("html/index.html", encoding="utf8").read()
        shutil.copy("made.json", {str(gpu_results.STORED)!r})
        assert main(words) == 0  # it notices the file
    """
    subprocess.run([sys.executable, "-c", again], cwd=tmp_path, check=True, timeout=120)
    shown = (tmp_path / "html" / "index.html").read_text("utf8")
    assert "Measured on made GPU, driver 1.2, CUDA 13.0, torch 2.13, 2026-01-02, commit" in shown
    assert "Nothing was measured" not in shown
    assert shown.count("<table") == 2


# ------------------------------------------------------------------------------------------ calls that resume


class Fake:
    """In place of the second process: parts answer at once, one of them with a failure."""

    device: Any = {"name": "made", "torch": "2"}  # noqa: RUF012
    begun: list[str] = []  # noqa: RUF012
    ended = 0

    def __init__(self, *_: Any) -> None:
        type(self).begun.append("process")

    def run(self, part: Any) -> dict[str, Any]:
        type(self).begun.append(part.name)
        if part.name == "b":
            return {"state": "failed", "error": "RuntimeError: broken", "seconds": 1.0}
        return {"state": "done", "result": {}, "seconds": 1.0}

    def end(self) -> None:
        type(self).ended += 1


@pytest.fixture
def call(common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(common, "Worker", Fake)
    monkeypatch.setattr(Fake, "begun", [])
    limits = {"a": 10.0, "b": 10.0, "long": 500.0, "c": 10.0}
    parts = [common.Part(name, lambda bench: {}, limit) for name, limit in limits.items()]

    def make(out: Path = tmp_path / "gpu.json", **given: Any) -> int:
        Fake.begun.clear()
        return int(common.call(lambda *_: parts, out, "cpu", **{"budget": 100.0, "commit": "abc"} | given))

    return make


def test_a_call_continues_the_last_one(
    call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call() == 1
    assert Fake.begun == ["process", "a", "b", "process", "c"]  # a fresh process after a failure
    said = capsys.readouterr().out
    for words in ("2 of 4 parts measured, 1 failed, 1 left", "continues with long", "too short for: long"):
        assert words in said
    stored = json.loads((tmp_path / "gpu.json").read_text())
    assert [stored["parts"][name]["state"] for name in "abc"] == ["done", "failed", "done"]
    assert {part["commit"] for part in stored["parts"].values()} == {"abc"}
    for given, begun in (
        ({"budget": 600.0}, ["process", "long"]), ({"budget": 600.0}, []), ({"retry": True}, ["process", "b"])
    ):  # fmt: skip
        assert call(**given) == 1
        assert Fake.begun == begun
    assert call(match=lambda name: name == "a") == 0
    assert not list(tmp_path.glob("*.part"))


def test_stored_results_of_another_kind_are_refused(
    call: Callable[..., int], common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call()
    with pytest.raises(common.DeviceError, match="results of the papers' sizes"):
        call(small=True)
    monkeypatch.setattr(Fake, "device", {"name": "other", "torch": "2"})
    with pytest.raises(common.DeviceError, match="measured with name made, here it is other"):
        call(retry=True)
    for text, message in (("{", "is not JSON"), ('{"benchmark": "map"}', "no results of this command")):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(common.DeviceError, match=message):
            call(tmp_path / "other.json")


def fine(bench: Any) -> dict[str, Any]:
    return {"process": os.getpid()}


def dies(bench: Any) -> dict[str, Any]:
    os._exit(7)


def hangs(bench: Any) -> dict[str, Any]:
    time.sleep(600)
    return {}


def made_parts(small: bool, root: str) -> list[Any]:
    part = importlib.import_module("gpu_common").Part
    return [part("fine", fine), part("again", fine), part("dies", dies), part("hangs", hangs, 1.0)]


@pytest.mark.slow
def test_a_part_that_dies_or_hangs_ends_alone(common: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert common.call(made_parts, out, "cpu", small=True) == 1
    parts = json.loads(out.read_text())["parts"]
    assert parts["dies"]["error"] == "its process ended with status 7"
    assert parts["hangs"]["error"] == "took longer than 1 s and was stopped"
    assert parts["fine"]["result"] == parts["again"]["result"] != {"process": os.getpid()}


def test_a_device_that_is_not_there_is_refused(
    common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:  # a process of its own takes seconds
        def __init__(self, target: Any, args: Any) -> None:
            self.start = partial(target, *args)

        def join(self, seconds: float) -> None: ...

        def is_alive(self) -> bool:
            return False

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Here)
    monkeypatch.setattr(common.multiprocessing, "get_context", lambda kind: context)
    with pytest.raises(common.DeviceError, match=r"device='cuda:99' cannot be used here"):
        common.call(made_parts, tmp_path / "x.json", "cuda:99", small=True)
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu"], "the papers' sizes are for a GPU"),
        (["--budget", "10"], "at least 30"),
        (["--budget", "soon"], "invalid int value"),
        (["--match", "("], "not a regular expression"),
        (["--match", "nothing like it"], "fits no part"),
        (["--root", "/nowhere"], "there is no such folder"),
        (["--out", "."], "is a folder"),
        (["--smal1"], "unrecognized arguments"),
    ],
)
def test_bad_options_are_refused(
    gpu: ModuleType, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        gpu.main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_parts_have_names_of_their_own_and_fit_a_call(gpu: ModuleType, tmp_path: Path) -> None:
    for small in (True, False):
        parts = gpu.parts(small, str(tmp_path))
        names = [part.name for part in parts]
        assert len(set(names)) == len(names)
        assert max(part.limit for part in parts) < 480 - 20
    assert {f"step/{name} bf16" for name in nclib.models.available()} <= set(names)


def test_the_measured_methods_are_those_of_the_declared_runs(gpu: ModuleType) -> None:
    pairs, labels = set(), set()
    for path in grid_plan.GRIDS.glob("paper_*.yml"):
        for block in grid_plan.read(path):
            for run in grid_plan.combinations(block):
                pictures = str(run.get("dataset")).endswith("_pictures")
                if pictures or {"pixels", "pieces"} & (run.get("data_options") or {}).keys():
                    continue  # pretrained networks are not measured
                if run["method"] in nclib.label_noise.available():
                    labels.add(run["method"])
                else:
                    pairs |= {(run["method"], model) for model in run["model"].split("+")}
    assert pairs == set(gpu.RUNS)
    assert labels == set(gpu.LABELS)


# ------------------------------------------------------------------------------------------- what is measured


def test_a_method_of_several_schedules_can_be_measured(gpu: ModuleType, tmp_path: Path) -> None:
    trainer = gpu.prepared("crcl", "vse", gpu.SMALL, torch.device("cpu"), tmp_path)
    assert trainer.n_planned >= 2  # a first epoch and a last one


def test_memory_that_does_not_suffice_halves_the_batch(common: ModuleType, tmp_path: Path) -> None:
    bench = common.Bench(torch.device("cpu"), True, "", tmp_path)

    def run(batch: int, most: int = 40) -> dict[str, Any]:
        if batch > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return {"ms": float(batch)}

    assert common.halving(run, 128, bench) == {"ms": 32.0, "batch": 32, "too_large": [128, 64]}
    with pytest.raises(RuntimeError, match="out of memory even with a batch of 2"):
        common.halving(partial(run, most=1), 8, bench)

    def wrong(batch: int) -> dict[str, Any]:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        common.halving(wrong, 8, bench)


def test_results_that_differ_are_told(gpu: ModuleType, common: ModuleType, tmp_path: Path) -> None:
    bench = common.Bench(torch.device("cpu"), True, "", tmp_path)
    values = iter([1.0, 1.0, 1.1, 1.0, float("nan"), 1.0])

    def next_value(device: torch.device) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([next(values)])}

    def raises(device: torch.device) -> dict[str, torch.Tensor]:
        raise RuntimeError("no kernel")

    cases = [(name, allowed, next_value) for name, allowed in (("same", 0.05), ("off", 0.05), ("nan", 9.0))]
    found = gpu.agreement(bench, [*cases, ("bad", 1.0, raises)])
    agrees = {name: case["agrees"] for name, case in found["cases"].items()}
    assert agrees == {"same": True, "off": False, "nan": False, "bad": False}
    assert not found["agree"]
    assert found["cases"]["bad"]["error"] == "RuntimeError: no kernel"
    assert common.failures({"state": "done", "result": found})
    json.dumps(found, allow_nan=False)


def test_work_is_counted_forward_and_backward(common: ModuleType) -> None:
    x, w = torch.randn(8, 4), torch.randn(4, 16, requires_grad=True)
    found = common.counted(lambda: (x @ w).sum().backward())
    assert found["flops"] == 2 * (2 * 8 * 4 * 16)  # of w alone: no gradient of x
    assert found["bytes"] >= 4 * (8 * 4 + 4 * 16 + 8 * 16)
    words, width, out = 5, 3, 7
    gru = torch.nn.GRU(width, out, bidirectional=True, batch_first=True)
    y = torch.randn(1, words, width, requires_grad=True)
    counted = common.counted(lambda: gru(y)[0].sum().backward())["flops"]
    first = 3 * 2 * 2 * 3 * out * out  # of the first state, which needs no gradient of its own
    assert counted == pytest.approx(common.gru_flops(words, width, out), abs=first)


def test_bounds_of_kernels_by_hand(common: ModuleType) -> None:
    assert common.partial_bound(128, 20) == {"bytes": 2 * 4 * 128**2, "flops": 82.0 * 128**2}
    there, back = (common.small_bound(10, 36, 32, 3, backward=back)["bytes"] for back in (False, True))
    assert there == 4 * 10 * (36 * 32 + 36 + 32 + 1)
    assert back == there + 4 * 10 * (2 * 36 * 32 + 1)
    least = {"bytes": 4.0 * (48 + 90 + 6), "flops": 4.0 * 2 * 3 * 4 * 5 * 6}
    assert common.attention_bound(2, 3, 4, 5, 6) == least
    assert common.least_bytes(10, 3) == 403
    there, back = (common.fused_bytes(10, 37, 13, 3, backward=back) for back in (False, True))
    assert there == common.small_bound(10, 37, 13, 3, backward=False)["bytes"]
    kept, sides = 2 * 3 * (37 + 13), 2 * (37 + 13)  # scalings there and back; weights again, their gradients
    assert back == there + 4 * 10 * (2 * 37 * 13 + 1 + kept + sides)


# ------------------------------------------------------------------------------------------------------ hours


def made_results(**rest: Any) -> dict[str, Any]:
    epoch = {"steps": 20, "step_ms": 50.0, "around_ms": 1000.0}
    method = {"networks": 2, "pairs": 2560, "trained_pairs": 1280.0, "divides": True, "batch": 128}
    method |= {"warm-up": {"steps": 40, "step_ms": 40.0, "around_ms": 0.0}, "first": epoch, "last": epoch}
    rows = [{"images": 100, "captions": 500, "precision": "float32", "seconds": 0.5, "share": 0.5}]
    results = {"method/ncr sgr": method, "score/sgr": {"rows": rows}, **rest}
    parts = {name: {"state": "done", "result": result} for name, result in results.items()}
    return {"benchmark": "gpu", "small": False, "device": {"name": "made GPU"}, "parts": parts}


def test_hours_of_a_run_by_hand() -> None:
    settings = nclib.resolve(
        "ncr", dataset="f30k", preset="paper", model="sgr", mrate=0.4, data_options={"root": "x"}
    ).flat()
    found, pairs = made_results(), 29000 * 5
    warm = 5 * 2 * 1133 * 0.04  # epochs, networks, batches of 128, seconds
    training = 40 * (20 / 1280 * 0.6 * pairs * 0.05 + pairs / 2560 * 1.0)
    scored = (45 + 1) * 2 * 1000 * 5000 * (1.0 / 50_000)
    assert gpu_results.seconds_of(settings, found) == pytest.approx(warm + training + scored)
    assert gpu_results.seconds_of({**settings, "model": "saf"}, found) is None
    assert gpu_results.seconds_of({**settings, "dataset": "emoji"}, found) is None
    half = gpu_results.seconds_of({**settings, "batch_size": 64}, found)
    assert half == pytest.approx(warm * 2266 / 2266 + training + scored, rel=1e-3)  # pairs cost the same
    labels = {"labels/mrl": {"epoch_s": 2.0, "pairs": 2173, "batch": 100, "closed_form": False}}
    of_labels = {"noise_rate": 0.2, "method": "mrl", "dataset": "wikipedia", "epochs": 100, "batch_size": 100}
    assert gpu_results.seconds_of(of_labels, made_results(**labels)) == pytest.approx(200.0)


@pytest.mark.slow
def test_the_plan_shows_hours_cells_and_their_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "stored", lambda root: made_results())
    words = ["paper_repair", "--list", "--out", str(tmp_path), "--match", "^(ncr|bicro)-sgr-f30k-m0.2.*s0"]
    assert grid.main(words) == 0
    said = capsys.readouterr().out
    assert "       ? h    7 cells  bicro-sgr-f30k-m0.2" in said  # six recalls and their sum
    lines = [line for line in said.splitlines() if " h " in line and "ncr-sgr-f30k" in line]
    assert len(lines) == 1
    hours = float(lines[0].split()[1])
    assert f"2 runs ({hours:,.1f} h, 1 of unknown hours), 14 printed cells" in said


def test_the_cells_of_the_runs_are_those_that_a_dry_run_fills() -> None:
    import dry_run

    assert sum(worth.cells for worth in dry_run.worths().values()) == 3380
