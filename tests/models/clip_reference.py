"""CLIP's blocks written out: one picture or text at a time, with torch's own attention."""

import torch
import torch.nn.functional as F

GELU = {"gelu": F.gelu, "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x)}


def norm(state, name, x):
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])


def linear(state, name, x):
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def blocks(state, prefix, x, heads, gelu, mask=None):
    """Blocks on one sequence (P, H), with torch's attention."""
    i = 0
    while f"{prefix}encoder.layers.{i}.layer_norm1.weight" in state:
        name = f"{prefix}encoder.layers.{i}"
        attention = torch.nn.MultiheadAttention(x.shape[-1], heads)
        own = {f"out_proj.{k}": state[f"{name}.self_attn.out_proj.{k}"] for k in ("weight", "bias")}
        for kind in ("weight", "bias"):
            parts = [state[f"{name}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            own[f"in_proj_{kind}"] = torch.cat(parts)
        attention.load_state_dict(own)
        y = norm(state, f"{name}.layer_norm1", x)
        with torch.no_grad():
            x = x + attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        wide = GELU[gelu](linear(state, f"{name}.mlp.fc1", norm(state, f"{name}.layer_norm2", x)))
        x = x + linear(state, f"{name}.mlp.fc2", wide)
        i += 1
    return x


def text_states(state, ids, heads=2, gelu="gelu"):
    """States (P, H) of one text."""
    x = state["text_model.embeddings.token_embedding.weight"][ids]
    x = x + state["text_model.embeddings.position_embedding.weight"][: len(ids)]
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
    return norm(state, "text_model.final_layer_norm", blocks(state, "text_model.", x, heads, gelu, mask))
