"""Pretrained encoders through the library ``transformers``: CLIP's two towers, BERT, residual networks.

They need the extra ``nclib[pretrained]``. Weights come from a local folder in the library's own layout
(``config.json``, ``model.safetensors``, and for text the tokenizer's files) or, by name, from the hub's cache
on this machine; of residual networks also from a folder with one ``.pth`` file of torchvision's layout, see
:mod:`nclib.models.residual`. Nothing is downloaded here: ``hf download NAME`` fills the cache.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.files import digest
from nclib.common.tokens import Tokens
from nclib.common.transformers import SAFE, library_for, load_tokenizer, quietly
from nclib.models import residual
from nclib.models.encoders import l2, word_mask, xavier_linear

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of red, green and blue in the pictures that residual networks are trained on."""

CLIP_COLOURS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""The same for CLIP."""

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
    if kind == "resnet" and (file := residual.file_in(source)):
        return residual.load(file, option)
    library, given = library_for(source, option), f"{option}={source!r}"
    with quietly(library):
        with _reading(given):
            found = library.AutoConfig.from_pretrained(source, **SAFE).model_type
        kinds = (kind,) if isinstance(kind, str) else kind
        if found not in kinds:
            wanted = " or ".join(map(repr, kinds))
            raise ValueError(f"{given} holds a network of type {found!r}, {wanted} is needed")
        with _reading(given):
            model, report = getattr(library, CLASSES[found]).from_pretrained(
                source,
                **SAFE,
                output_loading_info=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # reported below
                **({} if found == "resnet" else {"attn_implementation": "eager" if finetune else "sdpa"}),
                **({"add_pooling_layer": False} if found == "bert" else {}),
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
    rows = [special.get(word, found or unknown) for word, found in zip(words, pieces, strict=True)]
    width = max(1, *map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def _cut(pieces: Tensor, ids: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces of captions: their ids, the positions of their words, and which are valid, (C, P) each.

    ``pieces`` (V, M) is a :func:`piece_table`; the words ``ids`` (C, W) are ``valid`` or padding.
    """
    found = pieces[ids]  # (C, W, M)
    n = found.shape[-1]
    present = ((found >= 0) & valid[..., None]).flatten(1)
    # The longest caption in pieces is known on the device only; with one piece per word it is W.
    width = ids.shape[1] if n == 1 else max(1, int(present.sum(1).max()))
    order = torch.argsort((~present).to(torch.uint8), dim=1, stable=True)[:, :width]
    present = present.gather(1, order)
    return found.flatten(1).gather(1, order).clamp_min(0), order // n, present


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
    ``pieces`` of the papers' data makes them.

    Parameters
    ----------
    tower : nn.Module
        BERT, or the text tower of CLIP.
    source, option, finetune
        As in :func:`load`.
    words_file, vocab_size : str, int
        The data's vocabulary file, or empty, and number of token ids.
    rate, held_epochs
        As in :class:`Frozen`.

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
        self,
        tower: Any,
        source: str,
        option: str,
        *,
        words_file: str,
        vocab_size: int,
        finetune: bool,
        rate: float = 1.0,
        held_epochs: int = 0,
    ) -> None:
        super().__init__(tower, finetune=finetune, rate=rate, held_epochs=held_epochs)
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
    rate, held_epochs
        As in :class:`Frozen`.

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
        rate: float = 1.0,
        held_epochs: int = 0,
    ) -> None:
        network = load(kind, folder, "text_folder", finetune=finetune)
        tower = network.text_model if kind == "clip" else network
        data: dict[str, Any] = {"words_file": words_file, "vocab_size": vocab_size}
        data |= {"finetune": finetune, "rate": rate, "held_epochs": held_epochs}
        super().__init__(tower, folder, "text_folder", **data)
        self.unit = unit
        self.fc = xavier_linear(self.width, embed_dim)
        if kind == "clip":
            start_from(self.fc, network.text_projection.weight)

    def forward(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and sentences (C, D) of any length.

        See :meth:`CaptionReader.read`.
        """
        states, sentences = self.read(tokens)
        mask = word_mask(tokens.lengths, states.shape[1], states)[..., None]  # (C, W, 1)
        words = self.fc(states)  # (C, W, D)
        return (l2(words) if self.unit else words) * mask, self.fc(sentences)


class Pictures(nn.Module):
    """Pictures as rows of numbers to what an image tower reads.

    A picture travels as ``height`` rows of ``3 * width`` numbers in [0, 1], red, green, blue of each pixel in
    turn: the shape (images, rows, numbers) that region features have too. With ``size`` it is scaled
    bicubically with antialiasing until the shorter side fits, and cut to a square around the centre, as CLIP
    prepares pictures.

    Parameters
    ----------
    feature_dim : int
        Numbers in a row, three times the width of a picture; else a ValueError.
    mean, std : sequence of float
        Of red, green and blue.
    size : int, optional
        Side of the square in pixels.
    crop : bool
        In training cut a random part of each picture, 60 to 100 % of each side, scale it back, and mirror
        every second one, as the official codes of VSE-infinity and OMIT.
    """

    def __init__(
        self,
        feature_dim: int,
        mean: Sequence[float],
        std: Sequence[float],
        size: int | None = None,
        *,
        crop: bool = False,
    ) -> None:
        super().__init__()
        self.draws_in_training = crop
        if feature_dim % 3:
            raise ValueError(
                f"feature_dim={feature_dim}: the model reads pictures, whose rows have three numbers per "
                "pixel; choose data or data_options that give images as (images, height, 3 * width) in "
                "[0, 1], not region features"
            )
        self.size = size
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, height, 3 width) in [0, 1] to (B, 3, size, size), or (B, 3, height, width)."""
        x = images.unflatten(-1, (-1, 3)).permute(0, 3, 1, 2)  # (B, 3, height, width)
        if self.training and self.draws_in_training:
            x = random_crops(x)
        if self.size:
            height, width = x.shape[2:]
            if min(height, width) != self.size:
                sides = [self.size * side // min(height, width) for side in (height, width)]
                x = F.interpolate(x, sides, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
            top, left = (round((side - self.size) / 2) for side in x.shape[2:])
            x = x[:, :, top : top + self.size, left : left + self.size]
        return (x - self.mean) / self.std


def random_crops(pictures: Tensor, least: float = 0.6) -> Tensor:
    """Cut a random part of each picture, scale it to the size of the whole, and mirror every second one.

    Parameters
    ----------
    pictures : Tensor, (B, 3, height, width)
    least : float, in (0, 1]
        Smallest share of each side; height and width keep their proportion.

    Returns
    -------
    Tensor, (B, 3, height, width)
        Draws come from torch's global generator on the CPU.
    """
    n = len(pictures)
    share, side = least + (1 - least) * torch.rand(n), torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    shift = (2 * torch.rand(n, 2) - 1) * (1 - share)[:, None]
    zero = torch.zeros(n)
    rows = [torch.stack([share * side, zero, shift[:, 0]], 1), torch.stack([zero, share, shift[:, 1]], 1)]
    maps = torch.stack(rows, 1).to(pictures.device, pictures.dtype, non_blocking=True)  # (B, 2, 3)
    places = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, places, padding_mode="border", align_corners=False)


class PictureReader(Frozen):
    """A residual network or CLIP's image tower, and what prepares pictures for it.

    Mean and deviation of the colours are those in the ``preprocessor_config.json`` of ``folder``, if any.
    """

    def __init__(
        self,
        tower: Any,
        folder: str,
        feature_dim: int,
        *,
        finetune: bool,
        fixed_norms: bool = False,
        rate: float = 1.0,
        held_epochs: int = 0,
        crop: bool = False,
    ) -> None:
        how: dict[str, Any] = {"fixed_norms": fixed_norms, "rate": rate, "held_epochs": held_epochs}
        super().__init__(tower, finetune=finetune, **how)
        self.clip = tower.config.model_type != "resnet"
        quiet = ("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors")
        file = None
        if not isinstance(tower, residual.ResidualNetwork):
            file = library_for(folder, "image_folder").utils.cached_file(
                folder, "preprocessor_config.json", local_files_only=True, **dict.fromkeys(quiet, False)
            )
        found = json.loads(Path(file).read_text(encoding="utf8")) if file else {}
        mean, std = CLIP_COLOURS if self.clip else IMAGENET
        size = tower.config.image_size if self.clip else None
        colours = found.get("image_mean", mean), found.get("image_std", std)
        self.prepare = Pictures(feature_dim, *colours, size, crop=crop)


class PretrainedCells(PictureReader):
    """Pictures to the cells of a residual network, or the patches of CLIP's image tower, in place of regions.

    A cell is a place of the last feature map. A patch is the state of its place after the last norm, without
    the projection, which CLIP applies to the class token only.

    Parameters
    ----------
    feature_dim, n_rows : int
        Numbers in a row (three times the width of a picture), and rows of a picture.
    kind, folder : str
        ``"resnet"`` or ``"clip"``, and where it is; see :func:`load`.
    finetune : bool
        Train the network too. Batch norms stay in evaluation mode.
    rate, held_epochs
        As in :class:`Frozen`.
    crop : bool
        As in :class:`Pictures`.
    class_token : bool
        Put the state of CLIP's class token, which describes the whole picture, before the patches.

    Attributes
    ----------
    width, n_cells : int
        Width of a cell's feature and cells of a picture.
    projection : Tensor, (D, width), or None
        Weights with which CLIP itself maps its class token to the space of its captions.
    """

    def __init__(
        self,
        feature_dim: int,
        n_rows: int,
        *,
        kind: str,
        folder: str,
        finetune: bool = False,
        rate: float = 1.0,
        held_epochs: int = 0,
        crop: bool = False,
        class_token: bool = False,
    ) -> None:
        network = load(kind, folder, "image_folder", finetune=finetune)
        tower = network.vision_model if kind == "clip" else network
        how: dict[str, Any] = {"finetune": finetune, "rate": rate, "held_epochs": held_epochs}
        super().__init__(tower, folder, feature_dim, fixed_norms=True, crop=crop, **how)
        self.first = int(not class_token)
        own = network.visual_projection.weight.detach() if kind == "clip" else None
        self.projection: Tensor | None
        self.register_buffer("projection", own, persistent=False)
        with torch.no_grad():
            one = self(torch.zeros(1, n_rows, feature_dim, device=self.prepare.mean.device))
        self.n_cells, self.width = one.shape[1:]

    def forward(self, images: Tensor) -> Tensor:
        """Map pictures (B, height, 3 width) to cells (B, n_cells, width), row by row."""
        with self.gradients():
            states: Tensor = self.tower(self.prepare(images)).last_hidden_state
            if self.clip:
                patches: Tensor = self.tower.post_layernorm(states[:, self.first :])
                return patches
        return states.flatten(2).transpose(1, 2)


class TwoTowers:
    """CLIP or SigLIP as published: pictures and captions as vectors of one space.

    Pictures are prepared and captions cut into pieces as the files beside the weights say.

    Parameters
    ----------
    source, option : str
        Local folder or name in the hub's cache, and the option that holds it, for messages.
    device : str

    Attributes
    ----------
    width : int
        Numbers of a vector.

    Raises
    ------
    ValueError
        If the library or a file is missing, or the network is of another kind.
    """

    def __init__(self, source: str, option: str = "model", device: str = "cpu") -> None:
        library = library_for(source, option)
        self.model = load(("clip", "siglip", "siglip2"), source, option, finetune=False).to(device)
        self.tokenizer = load_tokenizer(source, option, "reading captions")
        with quietly(library):
            try:
                self.processor = library.AutoImageProcessor.from_pretrained(source, **SAFE)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{option}={source!r} has no preprocessor_config.json, which says how to prepare pictures"
                ) from error
        self.device = device
        self.longest = self.model.config.text_config.max_position_embeddings
        # SigLIP reads captions at their full length, CLIP at any.
        self.padding: bool | str = True if self.model.config.model_type == "clip" else "max_length"
        self.width = self.captions(["a"]).shape[1]

    @torch.inference_mode()
    def pictures(self, pictures: Sequence[Any]) -> Tensor:
        """Embed pictures (``PIL.Image.Image`` in RGB), float32 (B, width) on the host, not normalised."""
        given = self.processor(images=list(pictures), return_tensors="pt").to(self.device)
        return _pooled(self.model.get_image_features(**given))

    @torch.inference_mode()
    def captions(self, texts: Sequence[str]) -> Tensor:
        """Embed captions, float32 (C, width) on the host, not normalised; long ones are cut at the end."""
        given = self.tokenizer(
            list(texts),
            padding=self.padding,
            truncation=True,
            max_length=self.longest,
            return_tensors="pt",
        ).to(self.device)
        given.pop("token_type_ids", None)
        if self.padding == "max_length":
            given.pop("attention_mask", None)  # SigLIP was trained to read the padding
        return _pooled(self.model.get_text_features(**given))

    def checksum(self) -> str:
        """Return a digest of the weights."""
        state = self.model.state_dict()
        return digest(part for name in sorted(state) for part in (name, state[name].cpu().numpy()))


def _pooled(output: Any) -> Tensor:
    """Return the vectors in an output, whose form depends on the version of the library."""
    vectors: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return vectors.float().cpu()
