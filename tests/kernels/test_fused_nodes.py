"""The kernels for the nodes of SGR and SAF in Triton's interpreter: against the formulas in float64."""

import pytest
import torch

import nclib.ot
from nclib.models import Tokens, build, sgraf_fused
from nclib.models.sgraf_nodes import pair_nodes, plain_nodes
from nclib.ot.backends import fused


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """Let tensors on the CPU pass for those on a GPU; count the launches of a test."""
    found, launch = [], sgraf_fused.launch

    def counted(kernel, *given, **how):
        found.append(kernel)
        launch(kernel, *given, **how)

    monkeypatch.setattr(sgraf_fused, "asked", lambda x: fused._asked and x.dtype == torch.float32)
    monkeypatch.setattr(sgraf_fused, "launch", counted)
    return found


def inputs(images, captions, regions, words, dim, size, seed=0):
    """Return unit vectors, the last word of every second caption padded with zeros, and two maps."""
    g = torch.Generator().manual_seed(seed)

    def unit(*shape):
        return torch.nn.functional.normalize(torch.randn(*shape, generator=g), dim=-1)

    padded = unit(captions, words, dim)
    if words > 1:
        padded[::2, -1] = 0
    maps = [torch.randn(*shape, generator=g) for shape in ((size, dim), (size,)) * 2]
    return [unit(images, dim), unit(images, regions, dim), unit(captions, dim), padded, *maps]


def wanted(given, temperature, weight):
    """Return nodes and gradients in float64, from the formulas."""
    exact = [x.double().requires_grad_() for x in given]
    nodes = plain_nodes(*exact, temperature=temperature)
    return [nodes.detach(), *torch.autograd.grad((nodes * weight.double()).sum(), exact)]


def close(found, best):
    for a, b in zip(found, best, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-5 * float(b.abs().max()))


@pytest.mark.parametrize(
    "shape",
    [
        (3, 5, 6, 4, 20, 8),
        (2, 3, 36, 13, 40, 24),
        (1, 1, 1, 1, 16, 16),
        (2, 2, 17, 33, 33, 20),
        (2, 19, 5, 3, 64, 5),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 8])
def test_nodes_and_gradients_equal_the_formulas(shape, block, launches):
    given = inputs(*shape)
    images, captions, _, words, _, size = shape
    weight = torch.randn(images, captions, words + 1, size, generator=torch.Generator().manual_seed(1))
    sides = [x.clone().requires_grad_() for x in given]
    with nclib.ot.fused():
        nodes = pair_nodes(*sides, temperature=4.0, block=block)
        grads = torch.autograd.grad((nodes * weight).sum(), sides)
    blocks = -(-images // min(block, images))
    assert len(launches) == 2 * blocks
    close([nodes, *grads], wanted(given, 4.0, weight))


def test_without_gradients_nothing_is_kept(launches):
    given = inputs(3, 5, 6, 4, 20, 8)
    with torch.no_grad(), nclib.ot.fused():
        nodes = pair_nodes(*given, temperature=9.0, block=2)
    close([nodes], [plain_nodes(*(x.double() for x in given), temperature=9.0)])
    assert len(launches) == 2


def test_a_gradient_can_be_differentiated(launches):
    given = inputs(2, 3, 4, 3, 16, 6)
    found = []
    for kind, on in ((torch.float64, False), (torch.float32, True)):
        sides = [x.to(kind).requires_grad_() for x in given]
        with nclib.ot.fused(on):
            nodes = pair_nodes(*sides, temperature=4.0, block=2)
            first = torch.autograd.grad(nodes[..., 0].sum(), sides[1], create_graph=True)[0]
            found.append(torch.autograd.grad(first.square().sum(), sides[3])[0])
    close(found[1:], found[:1])
    assert len(launches) == 1  # the gradient comes from the formulas


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_models_score_and_learn_as_on_the_plain_path(name, launches):
    torch.manual_seed(0)
    model = build(name, feature_dim=12, vocab_size=30, n_regions=7, embed_dim=24, sim_dim=10, dropout=0.0)
    images, lengths = torch.randn(4, 7, 12), (6, 4, 5, 3, 6)
    words = torch.arange(6) < torch.tensor(lengths)[:, None]
    tokens = Tokens(torch.randint(4, 30, (5, 6)) * words, lengths)
    found = []
    for on in (False, True):
        model.zero_grad()
        with nclib.ot.fused(on):
            scores = model(images, tokens)
            scores.square().sum().backward()
        found.append([scores.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert launches
    largest = max(float(x.abs().max()) for x in found[0][1:])
    for a, b in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * largest)


@pytest.mark.parametrize("shape", [(1, 1, 65, 2, 16, 4), (1, 1, 2, 129, 16, 4), (1, 1, 2, 2, 16, 257)])
def test_larger_problems_stay_on_the_plain_path(shape, launches):
    given = inputs(*shape)
    with nclib.ot.fused():
        nodes = pair_nodes(*given, temperature=9.0, block=1)
    assert launches == []
    close([nodes], [plain_nodes(*(x.double() for x in given), temperature=9.0)])
