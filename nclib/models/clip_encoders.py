"""CLIP's towers in the place of regions and of the BiGRU: patches as regions, word vectors from its text."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.bpe import BytePairs
from nclib.models.clip_file import ClipFile, read_clip
from nclib.models.clip_towers import TextTower
from nclib.models.encoders import l2, word_mask, xavier_linear
from nclib.models.text_transformer import cut, read_words, word_means


class Pictures(nn.Module):
    """Pictures as rows of numbers to what an image tower reads.

    They are scaled bicubically, with antialiasing, until the shorter side fits, cut to a square around the
    centre, and normalised: CLIP's own preparation.

    Parameters
    ----------
    feature_dim : int
        Numbers in a row, three times the width of a picture.
    size : int
        Side of the square in pixels.
    mean, std : sequence of float
        Of red, green and blue.

    Raises
    ------
    ValueError
        If a row is no multiple of three.
    """

    def __init__(self, feature_dim: int, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        if feature_dim % 3:
            raise ValueError(
                f"feature_dim={feature_dim}: CLIP reads pictures, whose rows have three numbers per pixel; "
                "choose data or data_options that give images as (images, height, 3 * width) in [0, 1], not "
                "region features"
            )
        self.size = size
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, height, 3 width) in [0, 1] to (B, 3, size, size)."""
        x = images.unflatten(-1, (-1, 3)).permute(0, 3, 1, 2)  # (B, 3, height, width)
        height, width = x.shape[2:]
        if min(height, width) != self.size:
            sides = [self.size * side // min(height, width) for side in (height, width)]
            x = F.interpolate(x, sides, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        top, left = (round((side - self.size) / 2) for side in x.shape[2:])
        x = x[:, :, top : top + self.size, left : left + self.size]
        return (x - self.mean) / self.std


class ClipPatches(nn.Module):
    """Pictures to the patches of CLIP's image tower, as if these were region features.

    A patch is the state of its place after the last norm, without the projection, which CLIP applies to the
    class token only.

    Parameters
    ----------
    feature_dim, n_rows : int
        Numbers in a row (three times the width of a picture), and rows of a picture.
    file : str
        Local file with the weights; see :func:`~nclib.models.clip_file.read_clip`.
    gelu : {"config", "exact", "quick"}
        See there.
    finetune : bool
        Train the tower too.

    Attributes
    ----------
    width, n_cells : int
        Width of a patch's state and patches of a picture.

    Raises
    ------
    ValueError
        If the file does not fit, or a row is no multiple of three.
    """

    def __init__(
        self, feature_dim: int, n_rows: int, *, file: str, gelu: str = "config", finetune: bool = False
    ) -> None:
        super().__init__()
        found = read_clip(file, "image_file", gelu)
        found.check("vision_cfg")
        found.check("preprocess_cfg")
        self.tower = found.image_tower(embeddings=False)
        self.prepare = Pictures(feature_dim, self.tower.size, *found.colours)
        self.tower.requires_grad_(finetune)
        self.finetune, self.width = finetune, self.tower.width
        self.n_cells = len(self.tower.positional_embedding) - 1

    def forward(self, images: Tensor) -> Tensor:
        """Map pictures (B, height, 3 width) to patches (B, n_cells, width), row by row."""
        with contextlib.nullcontext() if self.finetune else torch.no_grad():
            states: Tensor = self.tower(self.prepare(images))
        return states[:, 1:]


def read_pieces(found: ClipFile, n_known: int, *, merges: str, words_file: str, vocab_size: int) -> Tensor:
    """Table from the data's word ids to the tower's, (V, M); see :class:`ClipTextEncoder`.

    Raises
    ------
    ValueError
        If only one of the two files is given, or they do not fit.
    """
    if bool(merges) != bool(words_file):
        raise ValueError(
            f"text_merges={merges!r} and text_words={words_file!r}: give both, to cut the data's words into "
            "pieces, or neither, if the data's ids are the tower's"
        )
    if merges:
        return BytePairs.read(merges, n_known).table(read_words(words_file, vocab_size))
    if n_known < vocab_size:
        raise ValueError(
            f"{found.name} knows {n_known} ids and the data has {vocab_size}; give text_merges and "
            "text_words to cut the data's words into pieces"
        )
    return torch.arange(vocab_size)[:, None]


class ClipCaptions(nn.Module):
    """CLIP's text tower on the data's captions.

    Pieces beyond the tower's positions are cut off, and the last that is left becomes the end of the text, as
    in CLIP.

    Parameters
    ----------
    tower : TextTower
        The tower.
    pieces : Tensor, (V, M)
        Ids of the pieces of each of the data's words, -1 beyond the last.
    finetune : bool
        Train the tower.
    """

    def __init__(self, tower: TextTower, pieces: Tensor, *, finetune: bool) -> None:
        super().__init__()
        self.tower, self.finetune = tower, finetune
        self.tower.requires_grad_(finetune)
        self.pieces: Tensor
        self.register_buffer("pieces", pieces, persistent=False)

    def read(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Read captions.

        Returns
        -------
        words : Tensor, (C, W, H)
            A word is the mean of its pieces' states. A word without pieces has the state of the end.
        ends : Tensor, (C, H)
            States of the last pieces.
        """
        width = max(tokens.lengths)
        valid = word_mask(tokens.lengths, width, self.tower.positional_embedding) > 0
        ids, owner, present = cut(self.pieces, tokens.ids[:, :width], valid)  # (C, P) each
        last = (present.sum(1, keepdim=True) - 1).clamp_min(0)  # (C, 1)
        if ids.shape[1] > self.tower.longest:
            place, longest = last, self.tower.longest
            last = last.clamp_max(longest - 1)
            ids = ids[:, :longest].scatter(1, last, ids.gather(1, place))
            owner = owner[:, :longest].scatter(1, last, owner.gather(1, place))
            present = present[:, :longest]
        with contextlib.nullcontext() if self.finetune else torch.no_grad():
            states = self.tower(ids)  # (C, P, H)
            ends = states.gather(1, last[..., None].expand(-1, -1, states.shape[-1])).squeeze(1)
            means, count = word_means(states, owner, present, width)
            return torch.where(count > 0, means, ends[:, None]), ends


class ClipTextEncoder(ClipCaptions):
    """Takes the place of the BiGRU: captions to word vectors, by CLIP's text tower and a linear map.

    With ``merges`` and ``words_file`` every word of the data is cut into byte pairs, the tower reads all
    pieces of a caption, and a word is the mean of its pieces' states; ``<start>`` and ``<end>`` become the
    tower's own. CLIP knows no unknown word: what the data's vocabulary left out has no piece, and the state
    of the end takes its place. Without the two files the data's ids are the tower's.

    Parameters
    ----------
    vocab_size, embed_dim : int
        Number of token ids of the data, width of an encoded word.
    file : str
        Local file with the weights; see :func:`~nclib.models.clip_file.read_clip`.
    merges : str
        Local file of merges, ``bpe_simple_vocab_16e6.txt.gz`` or the like.
    words_file : str
        The data's vocabulary file (JSON with ``word2idx``).
    gelu : {"config", "exact", "quick"}
        Activation; see :func:`~nclib.models.clip_file.read_clip`.
    unit : bool
        Scale every encoded word to unit length.
    finetune : bool
        Train the tower too; otherwise only the linear map is trained.

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
        file: str,
        merges: str = "",
        words_file: str = "",
        gelu: str = "config",
        unit: bool = True,
        finetune: bool = False,
    ) -> None:
        found = read_clip(file, "text_file", gelu)
        found.check("text_cfg")
        tower = found.text_tower(embeddings=False)
        pieces = read_pieces(
            found, tower.vocab_size, merges=merges, words_file=words_file, vocab_size=vocab_size
        )
        super().__init__(tower, pieces, finetune=finetune)
        self.unit = unit
        self.fc = xavier_linear(tower.width, embed_dim)

    def forward(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions.

        Returns
        -------
        words : Tensor, (C, W, embed_dim)
            W is the longest caption's length; rows beyond a caption's length are zero.
        last : Tensor, (C, embed_dim)
            The vector of the end of the text, not normalised.
        """
        states, ends = self.read(tokens)
        mask = word_mask(tokens.lengths, states.shape[1], states)[..., None]  # (C, W, 1)
        words = self.fc(states)  # (C, W, D)
        return (l2(words) if self.unit else words) * mask, self.fc(ends)
