"""Encoders that the models share with those of nclib."""

import numpy as np
import pytest
import torch

from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.encoders import BiGRU

SIZES = {"feature_dim": 6, "vocab_size": 9, "n_regions": 4, "embed_dim": 8, "sim_dim": 4, "word_dim": 3}


@pytest.mark.parametrize("model", ["pvse", "pcme"])
def test_word_embeddings_of_sets_start_from_a_file(model, tmp_path):
    np.save(path := tmp_path / "vectors.npy", np.arange(24, dtype=np.float32).reshape(8, 3))
    weight = build(model, **SIZES, word_vectors=str(path)).embedding.weight
    assert torch.equal(weight[:8], torch.arange(24.0).view(8, 3))


def test_a_single_direction_needs_no_packing_either(monkeypatch):
    torch.manual_seed(0)
    model = build("vsrn", **SIZES).double()
    tokens = Tokens(torch.tensor([[1, 4, 5, 2], [1, 2, 0, 0], [3, 5, 2, 0]]), (4, 2, 3))
    found = []
    for alone in (False, True):
        monkeypatch.setattr(BiGRU, "alone", staticmethod(lambda device, alone=alone: alone))
        vectors = model.encode_captions(tokens).vectors
        grads = torch.autograd.grad(
            vectors[:, 0].sum(), [model.embedding.weight, *model.text_gru.parameters()]
        )
        found.append([vectors.detach(), *grads])
    torch.testing.assert_close(*found)
