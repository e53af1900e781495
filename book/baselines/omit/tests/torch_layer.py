"""PyTorch's layer of a transformer, with the weights of the layer under test."""

import torch
from baselines.omit.hrem import RelationLayer
from torch import nn


def layer_of_torch(mine: RelationLayer) -> nn.TransformerEncoderLayer:
    """PyTorch's own layer with the same weights."""
    dim, hidden = mine.first.in_features, mine.first.out_features
    other = nn.TransformerEncoderLayer(dim, mine.heads, hidden, 0.0, batch_first=True, dtype=torch.float64)
    parts = (
        (other.self_attn.out_proj, mine.out),
        (other.linear1, mine.first),
        (other.linear2, mine.second),
        (other.norm1, mine.attended_norm),
        (other.norm2, mine.norm),
    )
    for theirs, own in parts:
        theirs.load_state_dict(own.state_dict())
    with torch.no_grad():
        other.self_attn.in_proj_weight.copy_(mine.mix.weight)
        other.self_attn.in_proj_bias.copy_(mine.mix.bias)
    return other
