"""Captions through a transformer whose weights lie in a local folder, in the layout of BERT (NAACL 2019).

The folder holds ``config.json``, ``model.safetensors`` and, for WordPiece, ``vocab.txt``. Nothing is loaded
from anywhere else.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.encoders import l2, word_mask, xavier_linear

SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
SPECIAL = {"<pad>": "[PAD]", "<start>": "[CLS]", "<end>": "[SEP]", "<unk>": "[UNK]"}
"""The data's special words and the transformer's names for them."""

NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mixed": "attention.output.dense",
    "mixed_norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "norm": "output.LayerNorm",
}
"""Parts of a layer here, and their names in a file."""


class Layer(nn.Module):
    """Self-attention and a two-layer network, each added to its input and normalised."""

    def __init__(self, width: int, hidden: int, heads: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mixed = (nn.Linear(width, width) for _ in range(4))
        self.mixed_norm, self.norm = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, absent: Tensor) -> Tensor:
        """Map (C, P, H) to (C, P, H); ``absent`` (C, 1, 1, P) is -inf at padding."""
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._maps())
        share = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + absent, -1)  # (C, h, P, P)
        x = self.mixed_norm(x + self.dropout(self.mixed((share @ v).transpose(1, 2).flatten(2))))
        y: Tensor = self.norm(x + self.dropout(self.narrow(F.gelu(self.wide(x)))))
        return y

    def _maps(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value


class Transformer(nn.Module):
    """Embeddings and layers of a BERT encoder, without its pooler."""

    def __init__(self, config: Mapping[str, Any], dropout: float) -> None:
        super().__init__()
        width, eps = config["hidden_size"], float(config.get("layer_norm_eps", 1e-12))
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.kinds = nn.Embedding(config.get("type_vocab_size", 2), width)
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)
        sizes = width, config["intermediate_size"], config["num_attention_heads"], eps, dropout
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(config["num_hidden_layers"]))

    def forward(self, ids: Tensor, present: Tensor) -> Tensor:
        """Last hidden states (C, P, H) of ids (C, P); ``present`` (C, P) is False at padding."""
        x = self.words(ids) + self.positions.weight[: ids.shape[1]] + self.kinds.weight[0]
        x = self.dropout(self.norm(x))
        absent = torch.zeros_like(x[..., 0]).masked_fill(~present, -math.inf)[:, None, None]
        for layer in self.layers:
            x = layer(x, absent)
        return x

    def read(self, file: Path) -> None:
        """Take all weights from a safetensors file.

        Raises
        ------
        ValueError
            If a weight is missing or has another shape.
        """
        from safetensors.torch import load_file

        found = {}
        for name, value in load_file(file).items():
            name = name.removeprefix("bert.")
            name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))  # older files
            found[name] = value
        own = self.state_dict()
        wanted = {name: _name_in_file(name) for name in own}
        missing = [name for name in wanted.values() if name not in found]
        if missing:
            raise ValueError(f"{file}: {len(missing)} weights are missing, the first is {missing[0]!r}")
        for name, there in wanted.items():
            if found[there].shape != own[name].shape:
                raise ValueError(
                    f"{file}: {there!r} has shape {tuple(found[there].shape)}, config.json says "
                    f"{tuple(own[name].shape)}"
                )
        self.load_state_dict({name: found[there] for name, there in wanted.items()})


def _name_in_file(name: str) -> str:
    tables = {"words": "word", "positions": "position", "kinds": "token_type"}
    part, *rest = name.split(".")
    if part == "layers":
        return ".".join(["encoder.layer", rest[0], NAMES[rest[1]], rest[2]])
    return f"embeddings.{'LayerNorm' if part == 'norm' else tables[part] + '_embeddings'}.{rest[0]}"


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check ``config.json``.

    Raises
    ------
    ValueError
        If the folder or a file is missing, or the network is of a kind that is not built here.
    """
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(
                f"text_folder={str(folder)!r} has no {name}; it must hold config.json and model.safetensors "
                "of a BERT encoder"
            )
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf8"))
    missing = [key for key in SIZES if not isinstance(config.get(key), int) or config[key] < 1]
    if missing:
        raise ValueError(f"{folder / 'config.json'}: {missing[0]} must be a positive integer")
    for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(key, only) != only:
            raise ValueError(f"{folder / 'config.json'}: {key} must be {only!r}, got {config[key]!r}")
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError(f"{folder / 'config.json'}: num_attention_heads must divide hidden_size")
    return config


def word_pieces(word: str, known: Mapping[str, int]) -> list[str]:
    """Cut a word into the pieces of a WordPiece vocabulary: the longest known beginning, again and again.

    Accents are dropped and punctuation marks stand alone, as for the uncased models.

    Examples
    --------
    >>> word_pieces("teapots", {"tea": 0, "##pot": 1, "##s": 2})
    ['tea', '##pot', '##s']
    """
    plain = unicodedata.normalize("NFD", word.lower())
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    pieces = []
    for part in re.findall(r"\w+|[^\w\s]", plain.replace("_", " _ ")):
        start, found = 0, []
        while start < len(part):
            ends = range(len(part), start, -1)
            tries = (("##" if start else "") + part[start:end] for end in ends)
            piece = next((piece for piece in tries if piece in known), None)
            if piece is None:
                found = ["[UNK]"]
                break
            found.append(piece)
            start += len(piece) - 2 * (start > 0)
        pieces += found
    return pieces or ["[UNK]"]


def piece_table(words: Iterable[str], known: Mapping[str, int]) -> Tensor:
    """Ids of the pieces of each word, (V, largest number of pieces), -1 beyond the last."""
    rows = [
        [known[piece] for piece in ([SPECIAL[word]] if word in SPECIAL else word_pieces(word, known))]
        for word in words
    ]
    return table(rows)


def table(rows: Sequence[list[int]]) -> Tensor:
    """Rows of ids side by side, (V, length of the longest row), -1 beyond the last."""
    width = max(1, *map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def read_words(words_file: str, vocab_size: int) -> list[str]:
    """Read the data's words in the order of their ids from its vocabulary file.

    Raises
    ------
    ValueError
        If there is no such file or it has not as many words as the data.
    """
    if not Path(words_file).is_file():
        raise ValueError(f"text_words={words_file!r}: there is no such file")
    index = json.loads(Path(words_file).read_text(encoding="utf8")).get("word2idx", {})
    if sorted(index.values()) != list(range(vocab_size)):
        raise ValueError(
            f"text_words={words_file!r} has {len(index)} words under 'word2idx', the data has {vocab_size}; "
            "it must be the vocabulary file of the same data"
        )
    return sorted(index, key=index.__getitem__)


def cut(pieces: Tensor, ids: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the words of captions by their pieces.

    Parameters
    ----------
    pieces : Tensor, (V, M)
        Ids of the pieces of each word, -1 beyond the last.
    ids : Tensor, (C, W)
        Captions.
    valid : Tensor of bool, (C, W)
        Which words are no padding.

    Returns
    -------
    ids, owner : Tensor, (C, P)
        Ids of the pieces, and the word that each belongs to.
    present : Tensor of bool, (C, P)
        Which pieces are no padding.
    """
    found = pieces[ids]  # (C, W, M)
    n = found.shape[-1]
    present = ((found >= 0) & valid[..., None]).flatten(1)
    # With several pieces to a word the longest caption must be asked for, which waits for the device.
    width = ids.shape[1] if n == 1 else max(1, int(present.sum(1).max()))
    order = torch.argsort((~present).to(torch.uint8), dim=1, stable=True)[:, :width]
    present = present.gather(1, order)
    return found.flatten(1).gather(1, order).clamp_min(0), order // n, present


def word_means(states: Tensor, owner: Tensor, present: Tensor, n_words: int) -> tuple[Tensor, Tensor]:
    """Mean state of the pieces of each word: (C, P, H) to (C, W, H), and the number of pieces (C, W, 1)."""
    states = states * present[..., None]
    total = states.new_zeros(len(states), n_words, states.shape[-1])
    total = total.scatter_add(1, owner[..., None].expand_as(states), states)  # (C, W, H)
    count = total.new_zeros(total.shape[:2]).scatter_add(1, owner, present.to(total))[..., None]
    return total / count.clamp_min(1), count


def read_pieces(folder: Path, words_file: str, vocab_size: int, n_known: int) -> Tensor:
    """Table from the data's word ids to the transformer's ids; see :class:`TransformerTextEncoder`."""
    if not words_file:
        if n_known < vocab_size:
            raise ValueError(
                f"the transformer in {str(folder)!r} knows {n_known} ids and the data has {vocab_size}; "
                "give text_words, the data's vocabulary file, to cut its words into WordPieces"
            )
        return torch.arange(vocab_size)[:, None]
    if not (folder / "vocab.txt").is_file():
        raise ValueError(f"text_folder={str(folder)!r} has no vocab.txt, which text_words needs")
    lines = (folder / "vocab.txt").read_text(encoding="utf8").splitlines()
    known = {piece: i for i, piece in enumerate(lines)}
    absent = [name for name in SPECIAL.values() if name not in known]
    if absent or len(lines) > n_known:
        raise ValueError(
            f"{folder / 'vocab.txt'} has {len(lines)} pieces for {n_known} ids of config.json"
            + (f" and lacks {', '.join(absent)}" if absent else "")
        )
    return piece_table(read_words(words_file, vocab_size), known)


class TransformerTextEncoder(nn.Module):
    """Takes the place of the BiGRU: captions to word vectors, by a BERT encoder and a linear map.

    With ``words_file`` every word of the data is cut into WordPieces, the transformer reads all pieces of a
    caption, and a word is the mean of its pieces' states; ``<start>`` and ``<end>`` become [CLS] and [SEP].
    Words that the data's vocabulary left out are [UNK]. Without it the data's ids are the transformer's.

    Parameters
    ----------
    vocab_size, embed_dim : int
        Number of token ids of the data, width of an encoded word.
    folder : str
        Local folder with ``config.json`` and ``model.safetensors`` (and ``vocab.txt``) of a BERT encoder.
    words_file : str
        The data's vocabulary file (JSON with ``word2idx``).
    unit : bool
        Scale every encoded word to unit length.
    finetune : bool
        Train the transformer too (with its dropout); otherwise only the linear map is trained.

    Raises
    ------
    ValueError
        If a file is missing, or the files do not fit each other or the data.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        folder: str,
        words_file: str = "",
        unit: bool = True,
        finetune: bool = False,
    ) -> None:
        super().__init__()
        where = Path(folder)
        config = read_config(where)
        self.pieces: Tensor
        pieces = read_pieces(where, words_file, vocab_size, config["vocab_size"])
        self.register_buffer("pieces", pieces, persistent=False)
        self.transformer = Transformer(
            config, float(config.get("hidden_dropout_prob", 0.1)) if finetune else 0.0
        )
        self.transformer.read(where / "model.safetensors")
        self.transformer.requires_grad_(finetune)
        self.finetune, self.unit, self.longest = finetune, unit, config["max_position_embeddings"]
        self.fc = xavier_linear(config["hidden_size"], embed_dim)

    def forward(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions.

        Returns
        -------
        words : Tensor, (C, W, embed_dim)
            W is the longest caption's length; rows beyond a caption's length are zero.
        last : Tensor, (C, embed_dim)
            The first token's vector ([CLS]), not normalised.

        Raises
        ------
        ValueError
            If a caption has more pieces than the transformer has positions.
        """
        width = max(tokens.lengths)
        mask = word_mask(tokens.lengths, width, self.fc.weight)  # (C, W)
        ids, owner, present = cut(self.pieces, tokens.ids[:, :width], mask > 0)
        if ids.shape[1] > self.longest:
            raise ValueError(
                f"tokens has a caption of {ids.shape[1]} pieces, the transformer reads at most {self.longest}"
            )
        with contextlib.nullcontext() if self.finetune else torch.no_grad():
            means, _ = word_means(self.transformer(ids, present), owner, present, width)  # (C, W, H)
        words = self.fc(means)  # (C, W, D)
        return (l2(words) if self.unit else words) * mask[..., None], words[:, 0]
