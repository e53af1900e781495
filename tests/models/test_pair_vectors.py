"""Similarity vectors: of all pairs and of given pairs."""

import pytest
import torch
from refusals import refused
from registered import REGISTERED

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 7, "vocab_size": 30, "n_regions": 5, "embed_dim": 12, "sim_dim": 6, "word_dim": 4}
LENGTHS = (4, 2, 6, 4, 3)
NAMES = list(REGISTERED)


def example(name, lengths=LENGTHS, **options):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options).double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if hasattr(model, "drop"):
        model.drop = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    n = len(lengths)
    images = torch.randn(n, SIZES["n_regions"], SIZES["feature_dim"], dtype=torch.float64)
    return model, images, Tokens(torch.randint(1, SIZES["vocab_size"], (n, max(lengths))), tuple(lengths))


def encode(model, images, tokens):
    return model.encode_images(images), model.encode_captions(tokens)


@pytest.mark.parametrize("name", NAMES)
def test_given_pairs_are_the_diagonal_of_all_pairs(name):
    model, images, tokens = example(name)
    model.eval()
    encoded = encode(model, images, tokens)
    n = len(tokens)
    every, given = model.pair_vectors(*encoded), model.pair_vectors(*encoded, paired=True)
    assert every.shape == (n, n, model.pair_dim)
    assert given.shape == (n, model.pair_dim)
    rows = torch.arange(n)
    torch.testing.assert_close(given, every[rows, rows], rtol=0, atol=1e-13)
    for logits in (False, True):
        torch.testing.assert_close(
            model.paired_similarity(*encoded, logits=logits),
            model.similarity(*encoded, logits=logits).diagonal(),
            rtol=0,
            atol=1e-13,
        )


@pytest.mark.parametrize("name", NAMES)
def test_parts_padding_and_the_order_of_work_change_no_score(name):
    model, images, tokens = example(name)
    encoded, captions = encode(model.eval(), images, tokens)
    scores = model.similarity(encoded, captions)

    def same(found, wanted):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)

    some, other = [3, 0, 0], torch.tensor([4, 1, 2])
    same(model.similarity(encoded.select(some), captions.select(other)), scores[some][:, other])
    mask = torch.tensor([True, False, False, True, False])
    joined = type(captions).concat([captions.select([3]), captions.select(slice(0, 2)).detach()])
    same(model.similarity(encoded.select(mask), joined), scores[mask][:, [3, 0, 1]])
    halves = type(encoded).concat([encoded.select([4]), encoded.select([1, 2])])
    same(model.similarity(halves, captions), scores[[4, 1, 2]])
    model.memory_budget = 1
    same(model.similarity(encoded, captions), scores)
    wider = torch.randint(1, SIZES["vocab_size"], (len(tokens), 9))  # anything beyond the lengths
    wider[:, : tokens.ids.shape[1]] = torch.where(
        torch.arange(tokens.ids.shape[1]) < torch.tensor(LENGTHS)[:, None], tokens.ids, wider[:, :6]
    )
    same(model(images, Tokens(wider, LENGTHS)), scores)
    assert torch.equal(model(images, tokens), model(images, tokens))  # nothing is drawn
    low, high = model.score_range
    assert low <= scores.min() <= scores.max() <= high


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("training", [False, True])
def test_vectors_are_what_a_score_is_made_of(name, training):
    model, images, tokens = example(name)
    encoded = encode(model.train(training), images, tokens)
    scores = torch.sigmoid(model.score(model.pair_vectors(*encoded))).squeeze(-1)
    torch.testing.assert_close(scores, model.similarity(*encoded), rtol=0, atol=1e-13)


def test_the_ensemble_puts_both_vectors_side_by_side():
    model, images, tokens = example("sgraf")
    encoded, captions = encode(model.eval(), images, tokens)
    parts = [
        member.pair_vectors(i, c)
        for member, i, c in zip(model.members, encoded.parts, captions.parts, strict=True)
    ]
    torch.testing.assert_close(model.pair_vectors(encoded, captions), torch.cat(parts, -1))
    torch.testing.assert_close(encoded.vectors.norm(dim=-1), torch.full((5,), 2.0).double().sqrt())


def test_statistics_of_given_pairs_are_those_of_a_loop_over_pairs():
    """In training SAF's batch norm sees a caption with its own image, one pair after the other."""
    model, images, tokens = example("saf")
    encoded, captions = encode(model, images, tokens)
    encoded, captions = encoded.detach(), captions.detach()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    got, state = model.pair_vectors(encoded, captions, paired=True), model.state_dict()
    got_state = {key: value.clone() for key, value in state.items()}
    model.load_state_dict(start)
    one_by_one = [model.pair_vectors(encoded.select([i]), captions.select([i]))[0, 0] for i in range(5)]
    torch.testing.assert_close(got, torch.stack(one_by_one), rtol=0, atol=1e-13)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(got_state[key], value, rtol=0, atol=1e-13, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_need_equal_counts(name):
    model, images, tokens = example(name)
    encoded, captions = encode(model.eval(), images, tokens)
    for compared in (lambda *given: model.pair_vectors(*given, paired=True), model.paired_similarity):
        refused(ValueError, lambda call=compared: call(encoded.select(range(4)), captions), "4", "5")
