"""Pretrained networks through the library ``transformers``, and captions read by BERT or CLIP's text tower.

Both towers of CLIP or SigLIP as published are read by :mod:`nclib.models.two_towers`.

They need the extra ``pretrained``. Weights come from a local folder in the library's own layout
(``config.json``, ``model.safetensors``, and for text the tokenizer's files) or, by name, from the hub's cache
on this machine. Nothing is downloaded here: ``hf download NAME`` fills the cache.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.common.transformers import SAFE, library_for, load_tokenizer, quietly
from nclib.models.encoders import l2, word_mask, xavier_linear

CONTINUES = "##"
"""Begins the pieces of BERT that go on with a word."""

CLASSES = {
    "bert": "BertModel",
    "clip": "CLIPModel",
    "resnet": "ResNetModel",
    "siglip": "SiglipModel",
    "siglip2": "Siglip2Model",
}
"""Kinds of networks, each named like ``model_type`` in its ``config.json``, and their classes."""


@contextlib.contextmanager
def _reading(given: str) -> Iterator[None]:
    """Name the option in errors of the library; damaged files make its parsers raise errors of any kind."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{given} is neither a folder with config.json and model.safetensors nor a name in the hub's "
            "cache on this machine; nothing is downloaded here, `hf download NAME` does that"
        ) from error
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        # torch goes on to advise loading with less care
        said = str(error).split(". ")[0] or type(error).__name__
        raise ValueError(f"{given} holds a damaged file ({said}); get it again") from None


def load(kind: str | tuple[str, ...], source: str, option: str, *, finetune: bool) -> Any:
    """Load a network with all its weights.

    Parameters
    ----------
    kind : str or tuple of str
        One of ``CLASSES``, or several that will do.
    source, option : str
        Local folder or name in the hub's cache, and the model's option that holds it.
    finetune : bool
        Whether it will be trained. Its attention is then computed in plain steps, which can be differentiated
        twice; otherwise by fused kernels.

    Returns
    -------
    PreTrainedModel
        With float32 weights, in evaluation mode.

    Raises
    ------
    ValueError
        If the library or the files are missing or damaged, a file asks for code of its own, the network is of
        another kind, or a weight is missing or has another shape.
    """
    library, given = library_for(source, option), f"{option}={source!r}"
    with quietly(library):
        with _reading(given):
            kind_there = library.AutoConfig.from_pretrained(source, **SAFE).model_type
        kinds = (kind,) if isinstance(kind, str) else kind
        if kind_there not in kinds:
            wanted = " or ".join(map(repr, kinds))
            raise ValueError(f"{given} holds a network of type {kind_there!r}, {wanted} is needed")
        attention = {} if kind_there == "resnet" else {"attn_implementation": "eager" if finetune else "sdpa"}
        with _reading(given):
            model, report = getattr(library, CLASSES[kind_there]).from_pretrained(
                source,
                **SAFE,
                output_loading_info=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # reported below
                **attention,
                **({"add_pooling_layer": False} if kind_there == "bert" else {}),
            )
    wrong = [f"{k!r} is missing" for k in report["missing_keys"] if not k.endswith("num_batches_tracked")]
    for name, there, expected in report["mismatched_keys"]:
        wrong.append(f"{name!r} has shape {tuple(there)}, config.json says {tuple(expected)}")
    if wrong:
        raise ValueError(f"{given}: the weight {min(wrong)}")
    return model


def _read_words(words_file: str, vocab_size: int) -> list[str]:
    """The data's words in the order of their ids, from ``word2idx`` in its vocabulary file (JSON)."""
    try:
        index = dict(json.loads(Path(words_file).read_text(encoding="utf8"))["word2idx"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"text_words={words_file!r} is not a vocabulary file, JSON with the data's words under "
            f"'word2idx': {error!r}"
        ) from None
    if sorted(index.values()) != list(range(vocab_size)):
        raise ValueError(
            f"text_words={words_file!r} has {len(index)} words under 'word2idx', the data has {vocab_size}; "
            "it must be the vocabulary file of the same data"
        )
    return sorted(index, key=index.__getitem__)


def piece_table(words: Iterable[str], t: Any) -> Tensor:
    """Ids of the pieces (WordPieces, byte pairs) of each word.

    ``<start>`` and ``<end>`` are the tokenizer's own. ``<unk>``, and a word without pieces, is BERT's [UNK];
    CLIP knows no unknown word, so that it has no piece there.

    Parameters
    ----------
    words : iterable of str, V words
        In the order of their ids.
    t : PreTrainedTokenizerBase

    Returns
    -------
    Tensor, int64, (V, M)
        -1 beyond a word's last piece; M is the longest word's number of pieces, at least 1.
    """
    clip = t.cls_token_id is None
    unknown = [] if clip else [t.unk_token_id]
    start, end = (t.bos_token_id, t.eos_token_id) if clip else (t.cls_token_id, t.sep_token_id)
    special = {"<start>": [start], "<end>": [end], "<unk>": unknown, "<pad>": []}
    words = list(words)
    pieces = t(words, add_special_tokens=False)["input_ids"]
    rows = [special.get(word, own or unknown) for word, own in zip(words, pieces, strict=True)]
    width = max(1, *map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def _cut(pieces: Tensor, ids: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces of captions: their ids, the positions of their words, and which are valid, (C, P) each.

    ``pieces`` (V, M) is a :func:`piece_table`; the words ``ids`` (C, W) are ``valid`` or padding.
    """
    of_words = pieces[ids]  # (C, W, M)
    n = of_words.shape[-1]
    present = ((of_words >= 0) & valid[..., None]).flatten(1)
    # The longest caption in pieces is known on the device only; with one piece per word it is W.
    width = ids.shape[1] if n == 1 else max(1, int(present.sum(1).max()))
    order = torch.argsort((~present).to(torch.uint8), dim=1, stable=True)[:, :width]
    present = present.gather(1, order)
    return of_words.flatten(1).gather(1, order).clamp_min(0), order // n, present


def _word_means(states: Tensor, owner: Tensor, present: Tensor, n_words: int) -> tuple[Tensor, Tensor]:
    """Mean state (C, W, H) of the pieces of each word, zero without any, and their number (C, W, 1).

    ``states`` (C, P, H) are the pieces', ``owner`` and ``present`` (C, P) as :func:`_cut` returns them.
    """
    states = states * present[..., None]
    total = states.new_zeros(len(states), n_words, states.shape[-1])
    total = total.scatter_add(1, owner[..., None].expand_as(states), states)  # (C, W, H)
    count = total.new_zeros(total.shape[:2]).scatter_add(1, owner, present.to(total))[..., None]
    return total / count.clamp_min(1), count


class Frozen(nn.Module):
    """A pretrained network, trained with ``finetune`` only; otherwise it stays in evaluation mode.

    With ``fixed_norms`` it does so even then, and its batch norms keep the file's statistics. The trainer
    multiplies the learning rate of the tower's weights by ``rate``, and calls :meth:`begin_epoch`; the first
    ``held_epochs`` leave the tower as it is.
    """

    def __init__(
        self,
        tower: Any,
        *,
        finetune: bool,
        fixed_norms: bool = False,
        rate: float = 1.0,
        held_epochs: int = 0,
    ) -> None:
        super().__init__()
        self.tower, self.finetune = tower, finetune
        self.rate, self.held_epochs, self.held = rate, held_epochs, False
        self.evaluates = fixed_norms or not finetune
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout")
        drops = any(getattr(tower.config, rate, 0) for rate in rates)
        self.draws_in_training = drops and not self.evaluates
        tower.requires_grad_(finetune)
        self.train()

    def train(self, mode: bool = True) -> Frozen:
        """Set training mode, except where the network stays in evaluation mode."""
        super().train(mode)
        if self.evaluates:
            self.tower.eval()
        return self

    def begin_epoch(self, epoch: int) -> None:
        """Train the tower in this epoch (the first is 0), or hold it as it is."""
        self.held = epoch < self.held_epochs
        self.tower.requires_grad_(self.finetune and not self.held)

    def gradients(self) -> contextlib.AbstractContextManager[Any]:
        """Switch gradients off unless the network is trained."""
        return contextlib.nullcontext() if self.finetune and not self.held else torch.no_grad()


class CaptionReader(Frozen):
    """A text transformer on the data's captions.

    With ``words_file`` each word of the data is cut into the pieces of the transformer's own tokenizer, and a
    word is the mean of its pieces' states. Without it the data's ids must be the transformer's, as the option
    ``pieces`` of ``book/baselines/omit`` makes them.

    Parameters
    ----------
    tower : nn.Module
        BERT, or the text tower of CLIP.
    source, option
        As in :func:`load`.
    words_file, vocab_size : str, int
        The data's vocabulary file, or empty, and number of token ids.
    **tuning
        ``finetune``, ``rate`` and ``held_epochs`` of :class:`Frozen`.

    Attributes
    ----------
    pieces : Tensor, (vocab_size, M)
        :func:`piece_table`; without a file the ids themselves.
    mask_id, continues : int, Tensor of bool (vocab_size,), or None
        Where the data's ids are all those of BERT: its [MASK], and which ids go on with a word.

    Raises
    ------
    ValueError
        If a file is missing or does not fit.
    """

    def __init__(
        self, tower: Any, source: str, option: str, *, words_file: str, vocab_size: int, **tuning: Any
    ) -> None:
        super().__init__(tower, **tuning)
        self.clip = tower.config.model_type != "bert"
        self.longest = tower.config.max_position_embeddings
        self.width = tower.config.hidden_size
        n_known = tower.config.vocab_size
        if words_file:
            pieces = piece_table(_read_words(words_file, vocab_size), load_tokenizer(source, option))
            if int(pieces.max()) >= n_known:
                raise ValueError(
                    f"{option}={source!r}: the tokenizer gives the id {int(pieces.max())}, config.json has "
                    f"{n_known}"
                )
        elif n_known < vocab_size:
            raise ValueError(
                f"{option}={source!r} knows {n_known} ids and the data has {vocab_size}; give text_words, "
                "the data's vocabulary file, to cut its words into pieces"
            )
        else:
            pieces = torch.arange(vocab_size)[:, None]
        self.pieces: Tensor
        self.register_buffer("pieces", pieces, persistent=False)
        # where the data's ids are BERT's own, words can be masked as BERT masks them
        self.mask_id: int | None = None
        self.continues: Tensor | None
        continues = None
        if not words_file and not self.clip and n_known == vocab_size:
            own = load_tokenizer(source, option, "masking words")
            self.mask_id = own.mask_token_id
            names = own.convert_ids_to_tokens(range(n_known))
            continues = torch.tensor([name.startswith(CONTINUES) for name in names])
        self.register_buffer("continues", continues, persistent=False)

    def read(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Read captions as words (C, W, H) and sentences (C, H).

        A sentence is the first piece's state in BERT ([CLS]), the last one's in CLIP (the end of the text); a
        word without pieces has the sentence's. Where a caption has more pieces than positions, CLIP cuts
        pieces off before the last, and BERT raises a ValueError.
        """
        width = max(tokens.lengths)
        valid = word_mask(tokens.lengths, width, self.tower.get_input_embeddings().weight) > 0
        ids, owner, present = _cut(self.pieces, tokens.ids[:, :width], valid)  # (C, P) each
        last = (present.sum(1, keepdim=True) - 1).clamp_min(0)  # (C, 1)
        if ids.shape[1] > self.longest:
            if not self.clip:
                raise ValueError(
                    f"tokens has a caption of {ids.shape[1]} pieces, the transformer reads at most "
                    f"{self.longest}"
                )
            place, last = last, last.clamp_max(self.longest - 1)
            ids, owner = (x.scatter(1, last, x.gather(1, place))[:, : self.longest] for x in (ids, owner))
            present = present[:, : self.longest]
        with self.gradients():
            states = self.tower(input_ids=ids, attention_mask=present.to(ids)).last_hidden_state  # (C, P, H)
            place = last if self.clip else torch.zeros_like(last)
            sentences = states.gather(1, place[..., None].expand(-1, -1, states.shape[-1])).squeeze(1)
            means, count = _word_means(states, owner, present, width)
            return torch.where(count > 0, means, sentences[:, None]), sentences


def start_from(layer: nn.Module, projection: Tensor) -> None:
    """Copy weights (D, width) into a linear layer of this shape; those of others stay as they were drawn."""
    if isinstance(layer, nn.Linear) and layer.weight.shape == projection.shape:
        with torch.no_grad():
            layer.weight.copy_(projection)


class PretrainedText(CaptionReader):
    """Captions to word vectors by BERT or CLIP's text tower and a linear map, in place of the BiGRU.

    Parameters
    ----------
    vocab_size, embed_dim : int
        Number of token ids of the data, width of an encoded word.
    kind, folder, words_file : str
        ``"bert"`` or ``"clip"``, where it is, see :func:`load`, and the data's vocabulary file (JSON with
        ``word2idx``), see :class:`CaptionReader`.
    unit, finetune : bool
        Scale every encoded word to unit length; train the transformer too, with its dropout, and not only
        the linear map.
    **tuning
        ``rate`` and ``held_epochs`` of :class:`Frozen`.

    Notes
    -----
    The linear map starts from CLIP's own projection where that has the same width.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        kind: str,
        folder: str,
        words_file: str = "",
        unit: bool = True,
        finetune: bool = False,
        **tuning: Any,
    ) -> None:
        network = load(kind, folder, "text_folder", finetune=finetune)
        tower = network.text_model if kind == "clip" else network
        data: dict[str, Any] = {"words_file": words_file, "vocab_size": vocab_size, "finetune": finetune}
        super().__init__(tower, folder, "text_folder", **data, **tuning)
        self.unit = unit
        self.fc = xavier_linear(self.width, embed_dim)
        if kind == "clip":
            start_from(self.fc, network.text_projection.weight)

    def forward(self, tokens: Tokens, pool: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and sentences (C, D) of any length.

        See :meth:`CaptionReader.read`; a sentence is ``pool(words, mask)`` where that is given.
        """
        states, sentences = self.read(tokens)
        mask = word_mask(tokens.lengths, states.shape[1], states)  # (C, W)
        words = self.fc(states)  # (C, W, D)
        words = (l2(words) if self.unit else words) * mask[..., None]
        return words, self.fc(sentences) if pool is None else pool(words, mask)
