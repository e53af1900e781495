"""Tiny networks with random weights, written to disk in the layout of transformers."""

import json

import torch
from safetensors.torch import save_file

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "tea", "##pot", "##s", "'", "n", "t"]
WORDS = ["<pad>", "<start>", "<end>", "<unk>", "a", "n't", "red", "teapot", "teapots", "zebra"]
MERGES = ["t e", "te a</w>", "te a", "p o", "po t</w>", "po t", "tea pot</w>", "tea pot"]


def words_file(path, words=WORDS):
    """Write a vocabulary file as the field's loaders read it."""
    path.write_text(json.dumps({"word2idx": {word: i for i, word in enumerate(words)}}))
    return str(path)


def drawn(shapes, seed=0, scale=0.3):
    """Random weights by name; those of norms and running variances lie near 1, so that all of them matter."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        fan = shape[1:].numel() ** 0.5 if len(shape) > 1 and "embedding" not in name else 1
        value = scale * torch.randn(shape, generator=generator) / fan
        if "norm" in name.lower() and name.endswith("weight"):
            value = 1 + value
        if name.endswith("running_var"):
            value = 0.5 + value.abs()
        state[name] = value
    return state


def write(folder, config, state):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    return state


def shapes_of(module):
    floats = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    return {name: value.shape for name, value in floats.items()}


def bert_folder(folder, *, state=None, pieces=PIECES, **changes):
    """Write config.json, model.safetensors and vocab.txt; return the configuration and the weights."""
    from transformers import BertConfig, BertModel

    config = {
        "model_type": "bert",
        "hidden_size": 8,
        "intermediate_size": 12,
        "max_position_embeddings": 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": len(pieces),
        **changes,
    }
    state = drawn(shapes_of(BertModel(BertConfig(**config))), scale=0.8) if state is None else state
    write(folder, config, state)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return config, state


def clip_folder(folder, *, gelu="gelu", text_width=64, out=6, merges=MERGES, **text):
    """Write a whole CLIP folder, tokenizer included; return the weights."""
    from transformers import CLIPConfig, CLIPModel

    vocab = clip_vocabulary(merges)
    config = {
        "model_type": "clip",
        "projection_dim": out,
        "text_config": {
            "hidden_size": text_width,
            "intermediate_size": 2 * text_width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": len(vocab),
            "max_position_embeddings": 12,
            "hidden_act": gelu,
            "bos_token_id": vocab["<|startoftext|>"],
            "eos_token_id": vocab["<|endoftext|>"],
            **text,
        },
        "vision_config": {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 8,
            "patch_size": 4,
            "hidden_act": gelu,
        },
    }
    state = drawn(shapes_of(CLIPModel(CLIPConfig(**config))))
    write(folder, config, state)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return state


def clip_vocabulary(merges=MERGES):
    """Bytes, bytes that end a word, merges, start and end of a text, as CLIP numbers them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
    pieces = [*letters, *(letter + "</w>" for letter in letters), *("".join(m.split()) for m in merges)]
    return {piece: i for i, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
