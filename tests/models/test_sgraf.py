"""SGR and SAF: equal to the loop over captions in values, gradients and statistics."""

import pytest
import torch
from refusals import refused
from sgraf_reference import loop_similarity

import nclib.models.sgraf as sgraf
from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.sgraf_nodes import pair_nodes, reason_over_pairs, softmax_

SIZES = {"feature_dim": 7, "vocab_size": 30, "n_regions": 5, "embed_dim": 12, "sim_dim": 6, "word_dim": 4}
LENGTHS = (4, 2, 6, 4, 3, 1, 6)


def example(name, lengths=LENGTHS, n_images=5, dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = build(name, **SIZES, **{"dropout": 0.0, **options}).to(dtype)
    with torch.no_grad():  # biases and batch norms that matter
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(n_images, SIZES["n_regions"], SIZES["feature_dim"], dtype=dtype)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, SIZES["vocab_size"], (length,))
    return model, images, Tokens(ids, tuple(lengths))


def gradients(model):
    return {k: torch.zeros_like(p) if p.grad is None else p.grad.clone() for k, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("group_cost", [0.0, 12.0, 1e9])
@pytest.mark.parametrize("values", [1, 500, 10**6])
def test_batch_equals_loop(name, training, group_cost, values, monkeypatch):
    monkeypatch.setattr(sgraf, "BLOCK_VALUES", values)
    monkeypatch.setattr(sgraf, "GRAPH_VALUES", values)
    model, images, tokens = example(name)
    model.train(training)
    monkeypatch.setattr(sgraf, "GROUP_COST", group_cost * len(images))
    model.memory_budget = 1 if values == 500 else model.memory_budget  # every group computed twice
    pull = torch.randn(len(images), len(tokens), dtype=torch.float64)
    images.requires_grad_()
    expected, running = loop_similarity(model, images, tokens)
    (expected * pull).sum().backward()
    wanted, wanted_images, images.grad = gradients(model), images.grad, None
    model.zero_grad()
    got = model.similarity(model.encode_images(images), model.encode_captions(tokens))
    (got * pull).sum().backward()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(images.grad, wanted_images, rtol=1e-9, atol=1e-14)
    for key, grad in gradients(model).items():
        torch.testing.assert_close(grad, wanted[key], rtol=1e-8, atol=1e-13, msg=key)
    with torch.no_grad():  # in blocks of scratch space, without what a backward pass keeps
        if name == "sgr" or not training:  # batch norm moves its statistics
            torch.testing.assert_close(model(images, tokens), expected, rtol=0, atol=1e-14)
    if running is not None:
        torch.testing.assert_close(model.filtration.norm.running_mean, running[0], rtol=0, atol=1e-14)
        torch.testing.assert_close(model.filtration.norm.running_var, running[1], rtol=0, atol=1e-14)
        assert model.filtration.norm.num_batches_tracked == (len(tokens) if training else 0)


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("longest", [9, 22])
def test_float32_is_close_to_the_loop(name, longest):
    model, images, tokens = example(name, lengths=tuple(range(1, longest)), dtype=torch.float32)
    expected, _ = loop_similarity(model.eval(), images, tokens)
    torch.testing.assert_close(model(images, tokens), expected, rtol=0, atol=5e-7)


def test_budget_bounds_the_groups():
    model, images, tokens = example("sgr")
    encoded = model.encode_images(images)
    node = len(images) * model.sim_dim * 8 * model._vectors_per_node
    model.memory_budget = 9 * node
    groups, again = model._plan(encoded.regions, tokens.lengths)
    assert again
    assert max(len(g.rows) * (g.width + 1) for g in groups) <= 9
    with torch.no_grad():
        assert not model._plan(encoded.regions, tokens.lengths)[1]


def test_ensemble_is_the_mean_and_its_logits_do_not_saturate():
    model, images, tokens = example("sgraf")
    model.eval()
    scores = (model.sgr(images, tokens) + model.saf(images, tokens)) / 2
    torch.testing.assert_close(model(images, tokens), scores)
    model.float()
    with torch.no_grad():
        model.sgr.score.bias.fill_(30.0)
        model.saf.score.bias.fill_(31.0)
    images = images.float()
    assert len(model(images, tokens).unique()) == 1
    logits = model(images, tokens, logits=True)
    assert bool(logits.isfinite().all())
    assert len(logits.unique()) > 20


def test_one_image_needs_evaluation_mode_only():
    model, images, tokens = example("saf", n_images=1)
    model.eval()
    expected, _ = loop_similarity(model, images, tokens)
    torch.testing.assert_close(model(images, tokens), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_autocast_lowers_the_encoders_only(name):
    model, images, tokens = example(name, dtype=torch.float32)
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(images, tokens)
        scores.sum().backward()
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, model(images, tokens), rtol=0, atol=0.05)
    assert all(bool(grad.isfinite().all()) for grad in gradients(model).values())


def test_encodings_of_another_model_are_refused():
    model, images, tokens = example("sgr")
    vse = build("vse", **SIZES).double()
    encoded = vse.encode_images(images), vse.encode_captions(tokens)
    refused(ValueError, lambda: model.similarity(*encoded), "images", "captions")


# the autograd nodes alone


def pair_inputs(n_images=3, n=2, w=3, n_regions=4, dim=5, size=4):
    torch.manual_seed(1)
    shapes = [(n_images, dim), (n_images, n_regions, dim), (n, dim), (n, w, dim)]
    shapes += [(size, dim), (size,), (size, dim), (size,)]
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def test_the_gradient_can_be_differentiated():
    inputs = pair_inputs()
    assert torch.autograd.gradgradcheck(lambda *x: pair_nodes(*x, temperature=4.0, block=2), inputs)
    square, shift = torch.randn(2, 3, 3).double(), torch.randn(2, 3).double()
    maps = [x.requires_grad_() for pair in zip(square, shift, strict=True) for x in pair]
    nodes = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    absent = torch.tensor([[[0.0, 0.0, 0.0]], [[0.0, 0.0, -torch.inf]]]).double()
    assert torch.autograd.gradgradcheck(
        lambda x, *m: reason_over_pairs(x, absent, m, block=1), (nodes, *maps)
    )


@pytest.mark.parametrize("needed", range(8))
def test_gradient_when_one_input_asks_for_it(needed):
    inputs = [x.detach().requires_grad_(i == needed) for i, x in enumerate(pair_inputs())]
    everything = pair_inputs()
    for given in (inputs, everything):
        pair_nodes(*given, temperature=4.0, block=2).square().sum().backward()
    torch.testing.assert_close(inputs[needed].grad, everything[needed].grad)


def test_zero_vectors_give_finite_gradients():
    inputs = [torch.zeros_like(x).requires_grad_() for x in pair_inputs()]
    nodes = pair_nodes(*inputs, temperature=9.0, block=2)
    assert torch.equal(nodes, torch.zeros_like(nodes))
    nodes.sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in inputs)


@pytest.mark.parametrize("width", [1, 7, 15, 16, 33])
def test_softmax_in_place(width):
    logits = 60 * torch.randn(11, 5, width)
    logits[0, 0, : width // 2] = -torch.inf
    torch.testing.assert_close(softmax_(logits.clone()), torch.softmax(logits, -1))
