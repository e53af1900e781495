"""What the processes of tests/test_parallel.py do: ``parallel_worker.py FOLDER CASES TASK ...``."""

import json
import sys
import time

import torch

import nclib
from nclib import data, models
from nclib.models import Matcher
from nclib.runs.distributed import Processes, processes
from nclib.runs.pair_trainer import PairTrainer

TINY = {
    "dataset": "planted",
    "model": "vse",
    "mrate": 0.4,
    "batch_size": 15,  # odd, and the last batch smaller
    "warmup_epochs": 1,
    "epochs": 2,
    "data_options": {"n_train": 32, "n_val": 20, "n_test": 20},
    "model_options": {"embed_dim": 16, "sim_dim": 8, "word_dim": 8},
}


def one_step(
    name: str, n: int, group: Processes, dtype: torch.dtype
) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Return a training batch's similarities, all gradients and running statistics, and a later draw."""
    split = data.load("planted", n_train=12).train
    torch.manual_seed(1)
    sizes = {"feature_dim": split.images.shape[2], "vocab_size": 400, "n_regions": split.images.shape[1]}
    net: Matcher = models.build(name, **sizes, **TINY["model_options"]).to(dtype).train()
    rows = torch.arange(n).numpy()
    images, captions = split.features(split.image_of[rows]), split.captions.batch(rows)
    torch.manual_seed(2)
    S = group.compare(net, images.to(dtype), captions, logits=True)
    weight = torch.randn(n, n, generator=torch.Generator().manual_seed(3), dtype=dtype)
    ((S * weight).sum() + S.log_softmax(1).diagonal().mean()).backward()
    group.average_gradients(net.parameters())
    found = {k: p.grad for k, p in net.named_parameters() if p.grad is not None}
    return S.detach(), found | dict(net.named_buffers()), torch.rand(1)


def gradients(out: str, cases: str) -> None:
    """Compare a step that is shared with the same step alone, for every model; notice other settings."""
    steps = [(name, 7, torch.float64, 1e-12) for name in models.available()]
    steps += [(name, 7, torch.float32, 1e-5) for name in ("vse", "sgr")]
    steps += [("vse", 1, torch.float64, 1e-12)]  # nothing to share
    with processes("cpu") as group:
        for name, n, dtype, close in steps:
            S, alone, draw = one_step(name, n, Processes(), dtype)
            shared_S, shared, shared_draw = one_step(name, n, group, dtype)
            assert torch.equal(draw, shared_draw), name  # dropout was that of the whole batch
            assert alone.keys() == shared.keys()
            scale = torch.stack([value.double().norm() for value in alone.values()]).max()
            apart = {k: float((alone[k] - shared[k]).double().norm() / scale) for k in alone}
            assert torch.allclose(S, shared_S, rtol=close, atol=close), name
            assert max(apart.values()) < close, (name, n, dtype, apart)
            if group.rank == 0:
                print("gradients of", name)
        try:
            group.agree("luck", group.rank)
        except RuntimeError as error:
            assert "the processes of this run differ in luck" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a difference between the processes went unnoticed")
        group.agree("rank of the first", 0)


def runs(out: str, cases: str) -> None:
    """Run each case (method and parameters) in turn."""
    for method, values in json.loads(cases):
        nclib.run(method, **{**TINY, **values}, out=out)


def fails(out: str, cases: str) -> None:
    """Run, but the last process fails in the second epoch, and lives on for a while."""
    train = PairTrainer._train_epoch

    def stop(self: PairTrainer, progress: bool) -> dict[str, object]:
        if self.epoch == 1 and self.processes.rank == self.processes.size - 1:
            raise OSError("the disk is full")
        return train(self, progress)

    PairTrainer._train_epoch = stop  # type: ignore[method-assign]
    try:
        runs(out, cases)
    except OSError as error:
        print(error)
        time.sleep(300)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for task in sys.argv[3:]:
        {"gradients": gradients, "runs": runs, "fails": fails}[task](*sys.argv[1:3])
