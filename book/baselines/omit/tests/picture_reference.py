"""Picture networks for the tests of this folder: CLIP's tower written out, and a residual network on disk."""

import json

import torch
from clip_reference import blocks, norm
from local_weights import drawn, shapes_of, write


def image_states(state, picture, heads=4, gelu="gelu"):
    """States (1 + grid^2, H) of a picture (3, S, S), patch by patch, after the last norm."""
    vision = "vision_model."
    weight = state[f"{vision}embeddings.patch_embedding.weight"]
    patch, rows = weight.shape[2], [state[f"{vision}embeddings.class_embedding"]]
    for top in range(0, picture.shape[1], patch):
        for left in range(0, picture.shape[2], patch):
            rows.append((weight * picture[:, top : top + patch, left : left + patch]).sum((1, 2, 3)))
    x = torch.stack(rows) + state[f"{vision}embeddings.position_embedding.weight"]
    x = blocks(state, vision, norm(state, f"{vision}pre_layrnorm", x), heads, gelu)
    return norm(state, f"{vision}post_layernorm", x)


def resnet_folder(folder, blocks=(1, 1, 1, 1), *, bottleneck=False, width=8, colours=None):
    """Write config.json and model.safetensors (and preprocessor_config.json); return the weights.

    ``width`` is a multiple of 8, as in published networks: with 4 channels the gradient of a convolution of
    torch 2.13 on a processor with AVX2 alone damages the heap.
    """
    from transformers import ResNetConfig, ResNetModel

    grow = 4 if bottleneck else 1
    config = {
        "model_type": "resnet",
        "embedding_size": width,
        "hidden_sizes": [grow * width * 2**i for i in range(4)],
        "depths": list(blocks),
        "layer_type": "bottleneck" if bottleneck else "basic",
    }
    if colours:
        text = json.dumps(dict(zip(("image_mean", "image_std"), colours, strict=True)))
        (folder / "preprocessor_config.json").write_text(text)
    return write(folder, config, drawn(shapes_of(ResNetModel(ResNetConfig(**config))), scale=1.0))
