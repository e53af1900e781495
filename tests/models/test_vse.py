"""The dual encoder: pooling against a plain loop."""

import pytest
import torch

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 6, "vocab_size": 9, "n_regions": 4, "embed_dim": 8, "word_dim": 3}


@pytest.mark.parametrize("region_pool", ["mean", "max"])
@pytest.mark.parametrize("word_pool", ["mean", "last"])
def test_equals_one_pair_at_a_time(region_pool, word_pool):
    torch.manual_seed(0)
    options = {"region_pool": region_pool, "word_pool": word_pool}
    model = build("vse", **SIZES, **options).double()
    images = torch.randn(3, 4, 6, dtype=torch.float64)
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]])
    lengths = (4, 2, 1)
    scores = model(images, Tokens(ids, lengths))
    encoder = model.text_encoder
    for i in range(3):
        mapped = images[i] @ model.image_encoder.fc.weight.t() + model.image_encoder.fc.bias
        image = mapped.mean(0) if region_pool == "mean" else mapped.max(0).values
        for c in range(3):
            states, final = encoder.gru(encoder.embedding(ids[c : c + 1, : lengths[c]]))
            word = (states[0, :, :8] + states[0, :, 8:]) / 2
            caption = word.mean(0) if word_pool == "mean" else final.sum(0)[0] / 2
            cosine = torch.nn.functional.cosine_similarity(image, caption, dim=0)
            torch.testing.assert_close(scores[i, c], cosine, rtol=0, atol=1e-7)
