"""Tiny networks with random weights, written to disk in the layouts that the models read."""

import json

import torch
from safetensors.torch import save_file

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "tea", "##pot", "##s", "'", "n", "t"]
WORDS = ["<pad>", "<start>", "<end>", "<unk>", "a", "n't", "red", "teapot", "teapots", "zebra"]


def bert_state(config, seed=0):
    """Weights under the names of a BERT file."""
    generator = torch.Generator().manual_seed(seed)
    width, hidden = config["hidden_size"], config["intermediate_size"]

    def draw(*shape):
        return 0.5 * torch.randn(*shape, generator=generator)

    state = {
        "embeddings.word_embeddings.weight": draw(config["vocab_size"], width),
        "embeddings.position_embeddings.weight": draw(config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": draw(2, width),
        "embeddings.LayerNorm.weight": 1 + draw(width),
        "embeddings.LayerNorm.bias": draw(width),
        "pooler.dense.weight": draw(width, width),
    }
    for i in range(config["num_hidden_layers"]):
        for name, (n_out, n_in) in {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "intermediate.dense": (hidden, width),
            "output.dense": (width, hidden),
        }.items():
            state[f"encoder.layer.{i}.{name}.weight"] = draw(n_out, n_in)
            state[f"encoder.layer.{i}.{name}.bias"] = draw(n_out)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            state[f"encoder.layer.{i}.{name}.weight"] = 1 + draw(width)
            state[f"encoder.layer.{i}.{name}.bias"] = draw(width)
    return state


def bert_folder(folder, *, state=None, pieces=PIECES, **changes):
    """Write config.json, model.safetensors and vocab.txt; return the configuration and the weights."""
    config = {
        "hidden_size": 8,
        "intermediate_size": 12,
        "max_position_embeddings": 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": len(pieces),
        "type_vocab_size": 2,
        **changes,
    }
    state = bert_state(config) if state is None else state
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    save_file(state, folder / "model.safetensors")
    return config, state


def words_file(path, words=WORDS):
    """Write a vocabulary file as the field's loaders read it."""
    path.write_text(json.dumps({"word2idx": {word: i for i, word in enumerate(words)}}))
    return str(path)


def resnet_state(blocks=(1, 1, 1, 1), *, bottleneck=False, width=4, groups=1, seed=0):
    """Weights under torchvision's names of a residual network; batch norms with statistics that matter."""
    generator = torch.Generator().manual_seed(seed)
    state = {}

    def convolution(name, n_out, n_in, size):
        scale = (n_in * size * size) ** -0.5
        state[f"{name}.weight"] = scale * torch.randn(n_out, n_in, size, size, generator=generator)

    def norm(name, n):
        for key in ("weight", "bias", "running_mean"):
            state[f"{name}.{key}"] = 0.3 * torch.randn(n, generator=generator) + (key == "weight")
        state[f"{name}.running_var"] = 0.5 + torch.rand(n, generator=generator)
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    convolution("conv1", width, 3, 7)
    norm("bn1", width)
    n_in, grow = width, 4 if bottleneck else 1
    for stage, n_blocks in enumerate(blocks, start=1):
        inner = width * 2 ** (stage - 1)
        for i in range(n_blocks):
            name = f"layer{stage}.{i}"
            if bottleneck:
                convolution(f"{name}.conv1", inner, n_in, 1)
                convolution(f"{name}.conv2", inner, inner // groups, 3)
                convolution(f"{name}.conv3", inner * grow, inner, 1)
            else:
                convolution(f"{name}.conv1", inner, n_in, 3)
                convolution(f"{name}.conv2", inner, inner, 3)
            for k in range(1, 4 if bottleneck else 3):
                norm(f"{name}.bn{k}", inner * grow if k == 3 else inner)
            if i == 0 and (stage > 1 or n_in != inner * grow):
                convolution(f"{name}.downsample.0", inner * grow, n_in, 1)
                norm(f"{name}.downsample.1", inner * grow)
            n_in = inner * grow
    state["fc.weight"], state["fc.bias"] = torch.zeros(10, n_in), torch.zeros(10)
    return state


def clip_state(*, width=128, text_width=64, patch=4, grid=2, layers=2, vocab=540, longest=12, out=6, seed=0):
    """Weights under the names of a CLIP file, both towers."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=0.3):
        return scale * torch.randn(*shape, generator=generator)

    def norm(name, n):
        return {f"{name}.weight": 1 + draw(n), f"{name}.bias": draw(n)}

    def blocks(prefix, n):
        state = {}
        for i in range(layers):
            name, scale = f"{prefix}transformer.resblocks.{i}", n**-0.5
            state |= norm(f"{name}.ln_1", n) | norm(f"{name}.ln_2", n)
            state[f"{name}.attn.in_proj_weight"] = draw(3 * n, n, scale=scale)
            state[f"{name}.attn.in_proj_bias"] = draw(3 * n)
            for part, n_out, n_in in (
                ("attn.out_proj", n, n),
                ("mlp.c_fc", 2 * n, n),
                ("mlp.c_proj", n, 2 * n),
            ):
                state[f"{name}.{part}.weight"] = draw(n_out, n_in, scale=scale)
                state[f"{name}.{part}.bias"] = draw(n_out)
        return state

    return {
        "visual.conv1.weight": draw(width, 3, patch, patch),
        "visual.class_embedding": draw(width),
        "visual.positional_embedding": draw(grid**2 + 1, width),
        **norm("visual.ln_pre", width),
        **blocks("visual.", width),
        **norm("visual.ln_post", width),
        "visual.proj": draw(width, out),
        "token_embedding.weight": draw(vocab, text_width),
        "positional_embedding": draw(longest, text_width),
        **blocks("", text_width),
        **norm("ln_final", text_width),
        "text_projection": draw(text_width, out),
        "logit_scale": torch.tensor(2.0),
    }


MERGES = ["t e", "te a</w>", "te a", "p o", "po t</w>", "po t", "tea pot</w>", "tea pot"]


def merges_file(path, n=26, merges=MERGES):
    """Write a file of merges for a tower of 514 + n pieces; those that no test needs join capitals."""
    rest = [f"{chr(65 + i)} {chr(66 + i)}" for i in range(n - len(merges))]
    path.write_text("\n".join(["#version: 0.2", *merges, *rest, "never read"]) + "\n")
    return str(path)
