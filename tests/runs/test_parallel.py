"""Several processes that share a run: one process's gradients and results, resume, failures, refusals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from parallel_worker import TINY

import nclib
from nclib import data, models
from nclib.runs import checkpoint, experiment_of, resolve
from nclib.runs import distributed as _parallel
from nclib.runs.distributed import Processes

WORKER = Path(__file__).with_name("parallel_worker.py")


def start(out, cases, *tasks):
    """Start two processes as torchrun does, but do not stop one when the other ends."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Many methods warn when there are few pairs to train on.
    strict = [sys.executable, "-u", "-W", "error", "-W", "ignore::UserWarning"]
    command = [*strict, str(WORKER), str(out), json.dumps(cases), *tasks]
    return [
        subprocess.Popen(command, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, **pipes)
        for rank in ("0", "1")
    ]


def finish(children):
    """Return (exit code, output, errors) of each."""
    found = []
    for child in children:
        try:
            out, err = child.communicate(timeout=150)
        finally:
            child.kill()
        found.append((child.returncode, out, err))
    return found


def succeed(children):
    found = finish(children)
    assert [code for code, _, _ in found] == [0] * len(found), found
    return [out for _, out, _ in found]


CASES = [
    ["plain", {}],
    ["l2rm", {"model_options": {**TINY["model_options"], "word_pool": "last"}}],
    ["ncr", {}],
    ["mscn", {"epochs": 1, "threshold": 0.0}],
    ["repair", {"epochs": 1}],
    ["crcl", {"warmup_epochs": 0, "epochs": 3}],  # the third one begins with a new network
    ["plain", {"model": "saf", "epochs": 0}],
]


def records(out):
    found = [nclib.Record.load(path) for path in Path(out).glob("*/record.json")]
    return {(r.settings["method"], r.settings["model"]): r for r in found}


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("shared")
    return out, succeed(start(out, CASES, "gradients", "runs"))


@pytest.mark.slow
def test_gradients_of_a_shared_step_are_those_of_one_process(shared_runs):
    """The processes compared them, see parallel_worker."""
    _, (first, _) = shared_runs
    assert set(re.findall(r"gradients of (\w+)", first)) == set(models.available())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(do not fill a batch|have the same value)")
def test_runs_end_with_the_record_of_one_process(shared_runs, tmp_path):
    out, (first, second) = shared_runs
    assert second == ""
    assert first.count("epoch  1/") == len(CASES)  # one line per epoch and run, from one process
    shared = records(out)
    assert len(shared) == len(CASES)
    for method, values in CASES:
        alone = nclib.run(method, **{**TINY, **values}, out=str(tmp_path), progress=False)
        other = shared[method, alone.settings["model"]]
        assert (alone.environment["processes"], other.environment["processes"]) == (1, 2)
        assert other.name == alone.name
        assert other.best_epoch == alone.best_epoch
        for row, twin in zip(alone.curves, other.curves, strict=True):
            losses = {k: v for k, v in row.items() if k.startswith("loss")}
            assert {k: twin[k] for k in losses} == pytest.approx(losses, rel=1e-3)
        for part, metrics in alone.metrics.items():
            # A caption of a hundred that changes places with its neighbour moves a recall by one point.
            close = 1.5 if alone.settings["model"] == "vse" else 10
            recalls = {k: v for k, v in metrics.items() if "_r" in k}
            assert {k: other.metrics[part][k] for k in recalls} == pytest.approx(recalls, abs=close)


@pytest.mark.slow
def test_one_process_returns_the_record_of_several_and_reads_its_weights(shared_runs):
    out, _ = shared_runs
    again = nclib.run("plain", **TINY, out=str(out), progress=False)
    assert again.environment["processes"] == 2
    opened = nclib.open_run(again)
    trainer, dataset = opened.trainer, opened.dataset
    test = nclib.evaluation.recall(trainer.score(dataset.test), dataset.test.captions_per_image)
    assert test["rsum"] == pytest.approx(again.metrics["test"]["rsum"])


@pytest.mark.slow
def test_a_killed_run_continues_and_a_process_that_is_left_says_so(shared_runs, tmp_path):
    children = start(tmp_path, [["ncr", {}]], "runs")
    line = ""
    while "epoch  1/" not in line:
        line = children[0].stdout.readline()
        assert line, finish(children)
    os.kill(children[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    left, _ = finish(children)
    assert time.monotonic() - killed < 30
    assert left[0] != 0
    assert "process 0 of 2: another process failed" in left[2]
    assert list(tmp_path.rglob("checkpoint.safetensors"))
    assert not list(tmp_path.rglob("record.json"))
    succeed(start(tmp_path, [["ncr", {}]], "runs"))
    whole, again = (records(folder)["ncr", "vse"] for folder in (shared_runs[0], tmp_path))
    assert again.metrics == whole.metrics
    files = (Path(r.folder) / "checkpoint.safetensors" for r in (whole, again))
    tensors = [
        {f"{i}{k}": v for i, net in enumerate(checkpoint.load(file)["networks"]) for k, v in net.items()}
        for file in files
    ]
    assert checkpoint.digest(tensors[0]) == checkpoint.digest(tensors[1])


@pytest.mark.slow
def test_a_process_that_fails_stops_the_other_even_if_it_lives_on(tmp_path):
    children = start(tmp_path, [["plain", {}]], "fails")
    try:
        _, left = children[0].communicate(timeout=110)  # torch's own patience is half an hour
        assert children[1].poll() is None
    finally:
        for child in children:
            child.kill()
        rest = children[1].communicate()[0]
    assert children[0].returncode != 0
    assert "process 0 of 2: another process failed" in left
    assert "the disk is full" in rest


@pytest.fixture
def two(monkeypatch):
    """The environment of torchrun; joining the others is an error of the test."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: pytest.fail("joined"))


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("mrl", {}, "runs of category retrieval run in one process, not in 2"),
        ("plain", {"device": "cuda:1"}, "device='cuda:1' with 2 processes: each takes a GPU of its own"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_is_loaded(method, values, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        nclib.run(method, **values, out=str(tmp_path))


@pytest.mark.usefixtures("two")
def test_more_processes_than_gpus_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"process 1 of this machine has no GPU of its own: there are 1"):
        nclib.run("plain", **TINY, out=str(tmp_path))


def test_more_processes_than_pairs_in_a_batch_are_refused(tmp_path):
    token = _parallel._current.set(Processes(0, 16, "cpu"))
    try:
        with pytest.raises(ValueError, match="batch_size=15 is less than the 16 processes"):
            experiment_of("plain").load(resolve("plain", **TINY), tmp_path, torch.device("cpu"))
    finally:
        _parallel._current.reset(token)


@pytest.mark.parametrize("name", models.available())
def test_models_that_say_so_encode_every_row_by_itself(name):
    split = data.load("planted", n_train=12).train
    sizes = {"feature_dim": split.images.shape[2], "vocab_size": 400, "n_regions": split.images.shape[1]}
    net = models.build(name, **sizes, **TINY["model_options"])
    images, captions = split.features(torch.arange(6).numpy()), split.captions.batch(torch.arange(6).numpy())
    assert net.eval().encodes_alone
    for mode in (True, False):
        net.train(mode)
        torch.manual_seed(0)
        whole = net.encode_images(images).vectors, net.encode_captions(captions).vectors
        state = torch.get_rng_state()
        some = net.encode_images(images[2:5]).vectors, net.encode_captions(_part(captions, 2, 5)).vectors
        alike = all(torch.allclose(a[2:5], b, atol=1e-6) for a, b in zip(whole, some, strict=True))
        assert net.encodes_alone == (alike and torch.equal(state, torch.get_rng_state()))


def _part(captions, start, stop):
    return nclib.common.tokens.Tokens(captions.ids[start:stop], captions.lengths[start:stop])
