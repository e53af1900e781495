"""CLIP's towers written out: one picture or text at a time, with torch's own attention."""

import torch
import torch.nn.functional as F

GELU = {"exact": F.gelu, "quick": lambda x: x * torch.sigmoid(1.702 * x)}


def norm(state, name, x):
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])


def blocks(state, prefix, x, heads, gelu, mask=None):
    """Blocks on one sequence (P, H), with torch's attention."""
    i = 0
    while f"{prefix}transformer.resblocks.{i}.ln_1.weight" in state:
        name = f"{prefix}transformer.resblocks.{i}"
        attention = torch.nn.MultiheadAttention(x.shape[-1], heads)
        own = {k.removeprefix(f"{name}.attn."): v for k, v in state.items() if k.startswith(f"{name}.attn.")}
        attention.load_state_dict(own)
        y = norm(state, f"{name}.ln_1", x)
        with torch.no_grad():
            x = x + attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        wide = F.linear(
            norm(state, f"{name}.ln_2", x),
            state[f"{name}.mlp.c_fc.weight"],
            state[f"{name}.mlp.c_fc.bias"],
        )
        x = x + F.linear(
            GELU[gelu](wide), state[f"{name}.mlp.c_proj.weight"], state[f"{name}.mlp.c_proj.bias"]
        )
        i += 1
    return x


def image_states(state, picture, heads=2, gelu="exact"):
    """States (1 + grid^2, H) of a picture (3, S, S), patch by patch."""
    weight = state["visual.conv1.weight"]
    patch, rows = weight.shape[2], [state["visual.class_embedding"]]
    for top in range(0, picture.shape[1], patch):
        for left in range(0, picture.shape[2], patch):
            rows.append((weight * picture[:, top : top + patch, left : left + patch]).sum((1, 2, 3)))
    x = norm(state, "visual.ln_pre", torch.stack(rows) + state["visual.positional_embedding"])
    return norm(state, "visual.ln_post", blocks(state, "visual.", x, heads, gelu))


def text_states(state, ids, heads=1, gelu="exact"):
    """States (P, H) of one text."""
    x = state["token_embedding.weight"][ids] + state["positional_embedding"][: len(ids)]
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
    return norm(state, "ln_final", blocks(state, "", x, heads, gelu, mask))
