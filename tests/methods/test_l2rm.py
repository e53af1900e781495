"""L2RM against the exact linear program, and its own corner cases."""

import contextlib
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from refusals import refused
from torch._subclasses.fake_tensor import FakeTensorMode

import nclib
from nclib import losses, methods
from nclib.methods import Batch, Truth
from nclib.methods.l2rm import CostNetwork
from nclib.methods.parts.rematching import SCORED, RematchLog
from nclib.models import ImageEncoding
from nclib.noise import BetaMixture, auc
from nclib.ot import entropic, partial_exact
from nclib.runs import epoch_arrays

PAIRS_320 = {"n_train": 64, "n_val": 16, "n_test": 16}


@pytest.mark.parametrize("rematch", losses.REMATCH)
def test_rematching_waits_for_no_gpu(rematch, monkeypatch):
    monkeypatch.setattr(entropic, "place", lambda *_: "kernel")
    solve = lambda problem, _: SimpleNamespace(plan=torch.rand_like(problem.cost))  # noqa: E731
    monkeypatch.setattr(entropic.kernels, "published", solve)
    with FakeTensorMode():  # tensors without values: what asks for one fails
        scores = torch.rand(6, 6, requires_grad=True)
        log = RematchLog(6, scores.device)
        plan = methods.build("l2rm").refine(1 - scores)
        losses.REMATCH[rematch](scores, plan, 0.05).mean().backward()
        log.add(Batch(torch.arange(6), None, None), plan)
    assert scores.grad.shape == (6, 6)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({}, "auto"), ({"lam": 0.001}, "log"), ({"lam": 0.001, "stop": "accurate"}, "auto")],
)
def test_a_kernel_is_asked_only_for_costs_in_its_range(options, wanted, monkeypatch):
    asked = []

    def solved(cost, mass, **given):
        asked.append(given["method"])
        return SimpleNamespace(plan=cost)

    class OnCuda(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr("nclib.methods.l2rm.partial_sinkhorn", solved)
    for cost in (torch.rand(4, 4).as_subclass(OnCuda), torch.rand(4, 4)):
        methods.build("l2rm", **options).refine(cost)
    assert asked == [wanted, "auto"]


@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("mask", [True, False])
def test_small_regularisation_approaches_the_linear_program(mask, rho):
    g = torch.Generator().manual_seed(3)
    cost = torch.rand(12, 12, generator=g, dtype=torch.float64)
    plan = methods.build("l2rm", rho=rho, lam=5e-4, stop="accurate", mask=mask).refine(cost)
    exact = partial_exact(cost, rho, mask=~torch.eye(12, dtype=torch.bool) if mask else None)
    assert plan.diagonal().any() != mask
    assert plan.sum().item() == pytest.approx(rho, rel=1e-6)
    assert (plan * cost).sum().item() == pytest.approx(float(exact.value), abs=2e-3)
    rough = methods.build("l2rm", rho=rho, lam=0.05, mask=mask).refine(cost)
    assert rho == 1 or rough.sum() > 1.001 * rho  # the published rule stops before that


def test_cost_network_starts_at_one_minus_similarity_and_takes_short_batches():
    network = CostNetwork(6)
    scores = torch.rand(6, 6) * 1.5
    assert torch.equal(network(scores), torch.relu(1 - scores))
    assert torch.equal(network(scores[:4, :4]), torch.relu(1 - scores[:4, :4]))


class Reader:
    """A loop that only serves what one step needs."""

    def __init__(self, B=8):
        self.batch_size, self.device, self.epoch = B, torch.device("cpu"), 3
        self.lr_scale, self.n_pairs = 1.0, 40
        self.weight = torch.nn.Parameter(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)))
        self.networks = [torch.nn.Linear(1, 1)]
        self.asked = []

    def generator(self, purpose):
        return torch.Generator().manual_seed(len(purpose))

    def batch(self, index):
        g = torch.Generator().manual_seed(1)
        images = torch.randn(self.n_pairs, 1, 5, generator=g)[index]
        return Batch(index, images, torch.randn(self.n_pairs, 5, generator=g)[index])

    def similarity(self, batch):
        self.asked.append((self.networks[0].training, torch.is_grad_enabled()))
        return torch.sigmoid(batch.images[:, 0] @ self.weight @ batch.captions.T)


def test_one_step_learns_the_cost_without_touching_the_network_and_sets_no_gradient_through_the_plan():
    loop = Reader()
    method = methods.build("l2rm", cost_lr=1e-2, rematch_weight=0.5, margin=0.3, tau=0.1)
    method.begin_training(loop)
    method.log = RematchLog(8, loop.device)
    before = method.cost_network.weight.detach().clone()
    clean, noisy = loop.batch(torch.arange(8)), loop.batch(torch.arange(8, 16))
    terms = method.step(loop, (clean, noisy))
    assert set(terms) == {"triplet", "rematch"}
    assert loop.asked[0] == (False, False)  # the cost is learned from scores in eval mode, without gradient
    assert loop.asked[1:] == [(True, True)] * 2
    assert not torch.equal(method.cost_network.weight, before)
    assert torch.equal(method.buffer, noisy.index)
    method.cost_network.weight.grad = None
    sum(terms.values()).backward()
    assert loop.weight.grad.abs().sum() > 0
    assert method.cost_network.weight.grad is None
    expected = losses.triplet(loop.similarity(clean), 0.3, "hardest").sum()
    assert terms["triplet"].item() == pytest.approx(expected.item())
    scores = loop.similarity(noisy).detach()
    plan = method.refine(method.cost_network(scores))
    expected = 0.5 * losses.REMATCH["sym_kl"](scores, plan, 0.1).mean()
    assert terms["rematch"].item() == pytest.approx(expected.item())
    loop.batch = None
    method.step(loop, (noisy, clean))  # the buffer is the batch before: it is not read again


@pytest.mark.parametrize(("B", "sizes"), [(8, {1}), (20, {1, 2}), (40, {1, 2, 3, 4})])
def test_the_cost_is_learned_from_up_to_a_tenth_of_known_pairs_among_unrelated_ones(B, sizes):
    loop, drawn = Reader(B), set()
    method = methods.build("l2rm")
    for seed in range(40):
        loop.generator = lambda purpose, seed=seed: torch.Generator().manual_seed(seed)
        method.begin_training(loop)
        assert len(set(method.buffer.tolist())) == B
        clean, unrelated = loop.batch(torch.arange(B)), loop.batch(method.buffer).images
        clean = Batch(clean.index, clean.images + 0.1, clean.captions)
        given, similarity = [], loop.similarity
        loop.similarity = lambda batch: given.append(batch) or similarity(batch)  # noqa: B023
        method._learn_cost(loop, clean)
        del loop.similarity
        (batch,) = given
        assert torch.equal(batch.captions, clean.captions)
        slots = (batch.images != unrelated).any(2).any(1).nonzero()[:, 0]
        known = [int((clean.images == batch.images[s]).all(2).all(1).nonzero()) for s in slots]
        pulled = method.cost_network.weight.grad  # by the known pairs alone
        assert pulled.abs().sum(1).nonzero()[:, 0].tolist() == sorted(known)
        drawn.add(len(slots))
    assert drawn == sizes


@pytest.mark.parametrize(("matched", "rematched"), [(16, True), (40, True), (304, True), (305, False)])
def test_a_full_batch_of_each_kind_is_enough(matched, rematched, tmp_path, monkeypatch):
    trainer = tiny.trainer_of("l2rm", tmp_path, data_options=PAIRS_320, cost_lr=1e-4)
    method = trainer.method
    method.begin_training(trainer)
    p = torch.full((320,), 0.5)  # the threshold itself: not matched
    p[:matched] = 0.51
    monkeypatch.setattr(BetaMixture, "predict_proba", lambda *_: torch.stack([p, 1 - p], 1).numpy())
    trainer.lr_scale = 0.1
    with contextlib.nullcontext() if rematched else pytest.warns(UserWarning, match="15 mismatched pairs"):
        steps = method.begin_epoch(trainer)
    pairs = list(steps)
    assert len(pairs) == len(steps) == matched // 16
    assert all(len(clean) == 16 and (clean.index < matched).all() for clean, _ in pairs)
    assert all((noisy is not None) == rematched for _, noisy in pairs)
    assert not rematched or all(len(noisy) == 16 and (noisy.index >= matched).all() for _, noisy in pairs)
    assert method.cost_optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)


def test_cosine_cost_encodes_once_more_in_eval_mode():
    loop, g = Reader(), torch.Generator().manual_seed(0)
    v, t = torch.randn(2, 8, 5, generator=g)
    encoders = {"encode_images": lambda x: ImageEncoding(v), "encode_captions": lambda x: ImageEncoding(t)}
    loop.networks = [SimpleNamespace(**encoders)]
    method = methods.build("l2rm", cost="cosine")
    modes = []
    loop.evaluating = lambda: contextlib.nullcontext(modes.append("eval"))
    cost = method._cost(loop, Batch(None, None, None), torch.zeros(8, 8))
    torch.testing.assert_close(cost, 1 - torch.cosine_similarity(v[:, None], t, dim=2))
    assert modes == ["eval"]  # a second encoding in training mode would move the statistics of batch norm


def test_rematch_report_against_a_plain_count():
    g = torch.Generator().manual_seed(5)
    B, batches = 6, 4
    log = RematchLog(B, torch.device("cpu"))
    relevance = (torch.rand(B * batches, B * batches, generator=g) * 4).round() / 4
    rows, shares = [], {"moved": [], "unmoved": []}
    for _ in range(batches):
        index = torch.randperm(B * batches, generator=g)[:B]
        plan = torch.rand(B, B, generator=g) * (torch.rand(B, 1, generator=g) > 0.4) / B / B * 1.5
        plan.fill_diagonal_(0)
        log.add(Batch(index, index, None), plan)
        for row in plan.clamp_min(1e-10).tolist():
            share = np.array(row) / sum(row)
            said = [share.max(), -(share * np.log(share)).sum() / np.log(B)]
            shares["moved" if sum(row) * B > 0.5 else "unmoved"].append(said)
        for r in range(B):
            if plan[r].sum() * B <= 0.5:
                continue
            c = int(plan[r].argmax())
            others = [float(relevance[index[r], index[j]]) for j in range(B) if j != r]
            chosen = float(relevance[index[r], index[c]])
            given = float(relevance[index[r], index[r]])
            right = chosen >= max(others) and chosen > 0
            rows.append((right, chosen, max(others), given, np.mean(others)))
    truth = Truth(np.ones(B * batches, bool), lambda i, j: relevance[i][:, j])
    report = log.report(truth)
    assert len(rows) > 3
    assert [report[n] for n in SCORED] == pytest.approx(list(np.mean(rows, axis=0)), rel=1e-5)
    assert report["rematch_rows"] == pytest.approx(len(rows) / (B * batches))
    assert log.report(Truth(truth.matched, None)) == {}
    found = log.alignment()
    for kind, said in shares.items():
        top, entropy = np.mean(said, axis=0)
        assert [found[f"top_{kind}"], found[f"entropy_{kind}"]] == pytest.approx([top, entropy], rel=1e-5)
    assert log.arrays()["ranked_moved"].sum().item() == pytest.approx(1, abs=1e-5)


run = partial(tiny.run, "l2rm", mrate=0.5, epochs=1, data_options=PAIRS_320)


def test_too_few_matched_pairs_stop_with_advice(tmp_path):
    call = partial(run, tmp_path, batch_size=64, threshold=0.998)
    refused(RuntimeError, call, "of 320 pairs", "batch_size", "warmup_epochs", "threshold")


def test_costs_and_losses_are_scored_as_signs_of_a_mismatch(tmp_path):
    record = run(tmp_path)
    kept, trainer = epoch_arrays(record.folder)[2], nclib.open_run(record).trainer
    matched = trainer.pairs.truth().matched
    found = record.diagnostics
    assert found["auc_cost"] == pytest.approx(auc(-kept["cost"], matched))
    assert found["auc_split"] == pytest.approx(auc(-kept["loss"], matched))  # scaling keeps the order
    assert found["cost_matched"] == pytest.approx(kept["cost"][matched].mean())
    assert found["auc_infonce"] != found["auc_split"]
    other = run(tmp_path, cost="cosine", mrate=0.0)
    assert "auc_cost" not in other.diagnostics
    assert other.diagnostics["auc_split"] is None  # nothing is mismatched
