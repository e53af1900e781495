"""Scores of a whole split: equal to the model itself, each image and caption encoded once, modes restored."""

import pytest
import torch
from refusals import refused
from registered import REGISTERED

from nclib.common.tokens import Tokens
from nclib.models import build, similarity_matrix

SIZES = {"feature_dim": 6, "vocab_size": 9, "n_regions": 4, "embed_dim": 8, "sim_dim": 4, "word_dim": 3}


class ToyCaptions:
    def __init__(self, rows, told):
        self.rows = rows
        self.asked = []
        if told:
            self.lengths = [len(row) for row in rows]

    def __len__(self):
        return len(self.rows)

    def batch(self, index):
        self.asked.extend(int(i) for i in index)
        rows = [self.rows[i] for i in index]
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return Tokens(ids, tuple(map(len, rows)))


class ToySplit:
    def __init__(self, n_images=7, n_captions=15, told=True):
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(n_images, 4, 6, generator=generator).numpy()
        lengths = torch.randint(1, 6, (n_captions,), generator=generator).tolist()
        self.captions = ToyCaptions(
            [[1 + (i * j) % 8 for j in range(n)] for i, n in enumerate(lengths)], told
        )
        self.asked = []

    def features(self, rows):
        self.asked.extend(int(i) for i in rows)
        return torch.from_numpy(self.images[rows])


@pytest.mark.parametrize("name", REGISTERED)
@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("told", [True, False])
def test_equals_the_model_and_encodes_once(name, batch_size, told):
    torch.manual_seed(0)
    model, split = build(name, **SIZES), ToySplit(told=told)
    scores = similarity_matrix(model, split, batch_size=batch_size)
    assert sorted(split.asked) == list(range(7))
    assert sorted(split.captions.asked) == list(range(15))
    with torch.no_grad():
        wanted = model.eval()(torch.from_numpy(split.images), split.captions.batch(range(15)))
    assert scores.dtype == torch.float32
    assert not scores.requires_grad
    torch.testing.assert_close(scores, wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"precision": "float16"}, ["precision='float16'", "'auto', 'fp32', 'tf32', 'bf16'"]),
        ({"batch_size": 0}, ["batch_size=0", "at least 1"]),
    ],
)
def test_bad_options_and_captions_are_named_and_modes_restored(options, named):
    model, split = build("vse", **SIZES).train(), ToySplit()
    refused(ValueError, lambda: similarity_matrix(model, split, **options), *named)
    split.captions.rows[3] = [99]
    refused(ValueError, lambda: similarity_matrix(model, split), "99")
    assert model.training


def test_modes_and_statistics_are_left_alone():
    model, split = build("saf", **SIZES), ToySplit()
    model.train()
    model.image_global.local_norm.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    similarity_matrix(model, split)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_double_weights_low_precision_and_logits():
    torch.manual_seed(0)
    model, split = build("saf", **SIZES), ToySplit()
    scores = similarity_matrix(model, split)
    torch.testing.assert_close(
        torch.sigmoid(similarity_matrix(model, split, logits=True)), scores, rtol=0, atol=1e-6
    )
    rough = similarity_matrix(model, split, precision="bf16")
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, scores)
    torch.testing.assert_close(rough, scores, rtol=0, atol=0.05)
    torch.testing.assert_close(similarity_matrix(model.double(), split), scores, rtol=0, atol=3e-6)
