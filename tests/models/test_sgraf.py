"""SGR and SAF: equal to the loop over captions, in values, gradients and running statistics."""

import pytest
import torch
from sgraf_reference import loop_similarity

from nclib.batch import Tokens
from nclib.models import build

SIZES = {"feature_dim": 7, "vocab_size": 30, "n_regions": 5, "embed_dim": 12, "sim_dim": 6, "word_dim": 4}


def example(name, lengths=(4, 2, 6, 4, 3, 1, 6), n_images=5, seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    model = build(name, **SIZES, dropout=0.0, **options).to(dtype)
    with torch.no_grad():  # biases that matter
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(n_images, SIZES["n_regions"], SIZES["feature_dim"], dtype=dtype)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, SIZES["vocab_size"], (length,))
    return model, images, Tokens(ids, lengths)


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("group_cost", [0.0, 1e9])
def test_batch_equals_loop(name, training, chunk, group_cost):
    model, images, tokens = example(name)
    model.train(training)
    model.group_cost = group_cost
    pull = torch.randn(len(images), len(tokens), dtype=torch.float64)
    images.requires_grad_()
    expected, running = loop_similarity(model, images, tokens)
    (expected * pull).sum().backward()
    wanted = {key: p.grad for key, p in model.named_parameters()}
    wanted_images, images.grad = images.grad, None
    model.zero_grad()
    got = model.similarity(model.encode_images(images), model.encode_captions(tokens), chunk=chunk)
    (got * pull).sum().backward()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(images.grad, wanted_images, rtol=1e-9, atol=1e-14)
    for key, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(grad, wanted[key], rtol=1e-8, atol=1e-13, msg=key)
    if running is not None:
        torch.testing.assert_close(model.filtration.norm.running_mean, running[0], rtol=0, atol=1e-14)
        torch.testing.assert_close(model.filtration.norm.running_var, running[1], rtol=0, atol=1e-14)
