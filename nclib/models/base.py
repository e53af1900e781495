"""The base class of image-text models and the encodings that they exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nclib.common.tokens import Tokens
from nclib.models.options import Option

Index = Tensor | np.ndarray | Sequence[int] | slice


SIZES = ("feature_dim", "vocab_size", "n_regions", "embed_dim", "sim_dim", "word_dim")
"""The sizes that every model takes."""


def host_rows(index: Index, n: int) -> list[int]:
    """Return row numbers as a plain list.

    Parameters
    ----------
    index : Tensor, ndarray or sequence of int, (m,), of bool, (n,), or slice
        Selected rows.
    n : int
        Number of rows, against which a slice is resolved.

    Returns
    -------
    list of int
        Row numbers on the host, in the order of ``index``.
    """
    if isinstance(index, slice):
        return list(range(n))[index]
    rows = torch.as_tensor(index)
    if rows.dtype == torch.bool:
        rows = rows.nonzero().squeeze(1)
    return rows.tolist()


def take(tensor: Tensor, rows: list[int]) -> Tensor:
    """Return the given rows of a tensor.

    Parameters
    ----------
    tensor : Tensor, (n, ...)
        On any device.
    rows : list of int, length m
        Row numbers; repeats are allowed.

    Returns
    -------
    Tensor, (m, ...)
        A copy, which can be differentiated.
    """
    return tensor.index_select(0, torch.tensor(rows, dtype=torch.long).to(tensor.device, non_blocking=True))


def join(parts: list[Tensor | None]) -> Tensor | None:
    """Concatenate the tensors that are present.

    Parameters
    ----------
    parts : list of Tensor, (n_i, ...), or None
        Equal beyond the first dimension.

    Returns
    -------
    Tensor, (sum of n_i, ...), or None
        None without any tensor.
    """
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


@dataclass(frozen=True)
class ImageEncoding:
    """Encoded images.

    Parameters
    ----------
    vectors : Tensor, (B, D)
        One global vector per image.
    regions : Tensor, (B, R, D), optional
        One vector per region; absent in models that keep global vectors only.
    """

    vectors: Tensor
    regions: Tensor | None = None

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def select(self, index: Index) -> ImageEncoding:
        """Return some rows.

        Parameters
        ----------
        index : Tensor, ndarray or sequence of int, (m,), of bool, (B,), or slice
            Selected images.

        Returns
        -------
        ImageEncoding
            The selected images, in the order of ``index``.
        """
        rows = host_rows(index, len(self))
        regions = None if self.regions is None else take(self.regions, rows)
        return ImageEncoding(take(self.vectors, rows), regions)

    def detach(self) -> ImageEncoding:
        """Return the same values without a gradient."""
        return ImageEncoding(self.vectors.detach(), None if self.regions is None else self.regions.detach())

    @staticmethod
    def concat(parts: Sequence[ImageEncoding]) -> ImageEncoding:
        """Return all rows of ``parts``, in order.

        Parameters
        ----------
        parts : sequence of ImageEncoding
            At least one; all with regions or all without.

        Returns
        -------
        ImageEncoding
        """
        return ImageEncoding(torch.cat([p.vectors for p in parts]), join([p.regions for p in parts]))


@dataclass(frozen=True)
class CaptionEncoding:
    """Encoded captions.

    Parameters
    ----------
    vectors : Tensor, (C, D)
        One global vector per caption.
    lengths : tuple of int, length C
        Valid words per caption, on the host.
    words : Tensor, (C, W, D), optional
        One vector per word, zero beyond a caption's length; absent in models with global vectors only.
    """

    vectors: Tensor
    lengths: tuple[int, ...]
    words: Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, index: Index) -> CaptionEncoding:
        """Return some rows, cut to their longest caption.

        Parameters
        ----------
        index : Tensor, ndarray or sequence of int, (m,), of bool, (C,), or slice
            Selected captions.

        Returns
        -------
        CaptionEncoding
            The selected captions, in the order of ``index``.
        """
        rows = host_rows(index, len(self))
        lengths = tuple(self.lengths[row] for row in rows)
        words = None if self.words is None else take(self.words, rows)[:, : max(lengths, default=0)]
        return CaptionEncoding(take(self.vectors, rows), lengths, words)

    def detach(self) -> CaptionEncoding:
        """Return the same values without a gradient."""
        words = None if self.words is None else self.words.detach()
        return CaptionEncoding(self.vectors.detach(), self.lengths, words)

    @staticmethod
    def concat(parts: Sequence[CaptionEncoding]) -> CaptionEncoding:
        """Return all rows of ``parts``, in order, padded to the longest caption.

        Parameters
        ----------
        parts : sequence of CaptionEncoding
            At least one; all with words or all without.

        Returns
        -------
        CaptionEncoding
        """
        width = max((p.words.shape[1] for p in parts if p.words is not None), default=0)
        words = [
            None if p.words is None else F.pad(p.words, (0, 0, 0, width - p.words.shape[1])) for p in parts
        ]
        lengths = tuple(length for p in parts for length in p.lengths)
        return CaptionEncoding(torch.cat([p.vectors for p in parts]), lengths, join(words))


def same_count(images: Any, captions: Any) -> None:
    """Require as many images as captions, so that they can be taken pair by pair.

    Parameters
    ----------
    images, captions : sized
        Encodings, or anything with a length.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    if len(images) != len(captions):
        raise ValueError(
            f"pairs need as many images as captions, got {len(images)} images and {len(captions)} captions"
        )


def fragments(images: ImageEncoding, captions: CaptionEncoding) -> tuple[Tensor, Tensor]:
    """Return regions and words of two encodings.

    Parameters
    ----------
    images, captions : ImageEncoding, CaptionEncoding
        Encodings of one model.

    Returns
    -------
    regions : Tensor, (B, R, D)
    words : Tensor, (C, W, D)

    Raises
    ------
    ValueError
        If the encodings come from a model that keeps global vectors only.
    """
    if images.regions is None or captions.words is None:
        raise ValueError(
            "images and captions must be encodings made by this model: regions or words are missing"
        )
    return images.regions, captions.words


def cosine_pairs(images: ImageEncoding, captions: CaptionEncoding, paired: bool) -> Tensor:
    """Elementwise products of global vectors, whose sums over D are the cosines.

    Parameters
    ----------
    images, captions : ImageEncoding, CaptionEncoding
        With unit vectors (B, D) and (C, D).
    paired : bool
        Only image i with caption i.

    Returns
    -------
    Tensor, (B, C, D), or (B, D) if ``paired``

    Raises
    ------
    ValueError
        If ``paired`` and there are not as many images as captions.
    """
    if paired:
        same_count(images, captions)
        return images.vectors * captions.vectors
    return images.vectors[:, None] * captions.vectors


class Matcher(nn.Module, ABC):
    """Base of all image-text models.

    A model has three steps that can be called separately, so that encodings are computed once and reused:
    :meth:`encode_images`, :meth:`encode_captions`, :meth:`similarity`. Calling the model does all three.

    A subclass declares its options with :func:`~nclib.models.option`, or takes them as keywords of its own
    constructor; both pass ``**common`` on to this one.

    Parameters
    ----------
    feature_dim : int
        Width of a region feature.
    vocab_size : int
        Number of token ids.
    n_regions : int
        Regions per image. Any number may be given later, unless :attr:`needs_regions` is set.
    embed_dim, sim_dim, word_dim : int
        Width of the common space, of a similarity vector, of a word embedding; ignored by models without one.
    **options
        Values of the declared options.

    Attributes
    ----------
    score_range : tuple of float
        Smallest and largest similarity the model can give.
    needs_regions : int or None
        The only number of regions that the model takes, where it takes one only.
    memory_budget : int
        Bytes that the intermediate results of one :meth:`similarity` call may take. The model
        chooses its chunks of captions from it.
    draws_in_training : bool
        Whether encoding in training mode draws random numbers other than by dropout modules.

    Raises
    ------
    ValueError
        If a size is not a positive integer, or the value of an option is not allowed.
    TypeError
        For an option that the class does not declare.

    Examples
    --------
    >>> import torch
    >>> from nclib.models import CaptionEncoding, ImageEncoding, Matcher, option
    >>> class Count(Matcher):
    ...     weight: float = option(1.0, above=0)
    ...     def encode_images(self, images):
    ...         return ImageEncoding(images.mean((1, 2))[:, None])
    ...     def encode_captions(self, tokens):
    ...         return CaptionEncoding(torch.tensor(tokens.lengths)[:, None].float(), tokens.lengths)
    ...     def similarity(self, images, captions, *, logits=False, chunk=None):
    ...         return -self.weight * (images.vectors - captions.vectors.t()).abs()
    >>> model = Count(feature_dim=3, vocab_size=9, weight=2)
    >>> model.weight, model.n_regions
    (2.0, 12)
    >>> Count(feature_dim=3, vocab_size=9, weight=-1)
    Traceback (most recent call last):
    ValueError: weight=-1: must be a number, above 0
    """

    score_range: tuple[float, float] = (0.0, 1.0)
    needs_regions: int | None = None
    draws_in_training: bool = False
    declared: ClassVar[dict[str, Option]] = {}

    feature_dim: int
    vocab_size: int
    n_regions: int
    embed_dim: int
    sim_dim: int
    word_dim: int

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Collect the declared options; as a class attribute each has its default."""
        super().__init_subclass__(**arguments)
        cls.declared = {name: found for name, found in vars(cls).items() if isinstance(found, Option)}
        for name, found in cls.declared.items():
            setattr(cls, name, found.default)

    def __init__(
        self,
        *,
        feature_dim: int,
        vocab_size: int,
        n_regions: int = 12,
        embed_dim: int = 1024,
        sim_dim: int = 256,
        word_dim: int = 300,
        **options: Any,
    ) -> None:
        super().__init__()
        given = (feature_dim, vocab_size, n_regions, embed_dim, sim_dim, word_dim)
        for name, size in zip(SIZES, given, strict=True):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive integer, got {size!r}")
            setattr(self, name, size)
        known: dict[str, Option] = {}
        for cls in reversed(type(self).__mro__):
            known |= vars(cls).get("declared", {})
        unknown = [name for name in options if name not in known]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no option {unknown[0]!r}; it has {', '.join(known)}")
        for name, found in known.items():
            setattr(self, name, found.checked(name, options.get(name, found.default)))
        self.memory_budget = 4 << 30

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the weights."""
        return next(self.parameters(), torch.empty(0)).dtype

    @property
    def encodes_alone(self) -> bool:
        """Whether the encoding of a row depends, in the current mode, on that row and the weights only.

        Batch norm, dropout and other random draws in training forbid it. Processes that share a run divide
        the encoding of a batch where this holds.
        """

        def mixes(module: nn.Module) -> bool:
            draws = getattr(module, "draws_in_training", False)
            draws |= isinstance(module, nn.Dropout) and module.p > 0
            return module.training and (draws or isinstance(module, _BatchNorm))

        return not any(map(mixes, self.modules()))

    def check_images(self, images: Tensor) -> Tensor:
        """Check images and return them in the model's number type.

        Parameters
        ----------
        images : Tensor, (B, R, feature_dim)
            Region features.

        Returns
        -------
        Tensor, (B, R, feature_dim)

        Raises
        ------
        ValueError
            If the shape or the number of regions does not fit the model.
        """
        if images.ndim != 3 or images.shape[2] != self.feature_dim:
            raise ValueError(
                f"images must be (batch, regions, {self.feature_dim}), got {tuple(images.shape)}; "
                "feature_dim is fixed when the model is built"
            )
        if images.shape[0] == 0 or images.shape[1] == 0:
            raise ValueError(f"images must hold at least one image and one region, got {tuple(images.shape)}")
        if self.needs_regions is not None and images.shape[1] != self.needs_regions:
            raise ValueError(
                f"images have {images.shape[1]} regions, but the model was built with "
                f"n_regions={self.needs_regions} and takes no other number: it has statistics of each region "
                "slot, or reads pictures; build it with the data's n_regions"
            )
        return images.to(self.dtype)

    def check_tokens(self, tokens: Tokens) -> Tokens:
        """Check tokens and return them unchanged.

        Parameters
        ----------
        tokens : Tokens
            Padded token ids with lengths.

        Returns
        -------
        Tokens

        Raises
        ------
        ValueError
            If there is no caption, an empty one, or (on a CPU) an id outside the vocabulary.
        """
        if len(tokens) == 0:
            raise ValueError("tokens must hold at least one caption")
        if min(tokens.lengths) < 1:
            raise ValueError("tokens has an empty caption; every caption needs at least one token")
        # On an accelerator the embedding kernel checks the ids itself; reading them here would stall it.
        if tokens.ids.device.type == "cpu":
            low, high = torch.aminmax(tokens.ids)
            if bool(low < 0) or bool(high >= self.vocab_size):
                raise ValueError(
                    f"tokens has ids from {int(low)} to {int(high)}, but the vocabulary holds 0 to "
                    f"{self.vocab_size - 1} (vocab_size={self.vocab_size})"
                )
        return tokens

    @abstractmethod
    def encode_images(self, images: Tensor) -> Any:
        """Encode images.

        Parameters
        ----------
        images : Tensor, (B, R, feature_dim)
            Region features.

        Returns
        -------
        ImageEncoding
            Or a model's own encoding with ``select`` and ``concat``.

        Raises
        ------
        ValueError
            If the feature width or the number of regions does not fit the model.
        """

    @abstractmethod
    def encode_captions(self, tokens: Tokens) -> Any:
        """Encode captions.

        Parameters
        ----------
        tokens : Tokens
            Padded token ids with lengths.

        Returns
        -------
        CaptionEncoding
            Or a model's own encoding with ``select`` and ``concat``.

        Raises
        ------
        ValueError
            If a token id is not in the vocabulary or there is no caption.
        """

    @abstractmethod
    def similarity(
        self, images: Any, captions: Any, *, logits: bool = False, chunk: int | None = None
    ) -> Tensor:
        """Compare every image with every caption.

        Parameters
        ----------
        images, captions
            Encodings of this model.
        logits : bool
            Return the unbounded score behind the similarity: the same order without ties by saturation.
        chunk : int, optional
            Captions compared at a time; chosen from :attr:`memory_budget` if not given.

        Returns
        -------
        Tensor, (n_images, n_captions)
            Similarities within :attr:`score_range`, or their logits.
        """

    @property
    def pair_dim(self) -> int:
        """Width P of a similarity vector; 1 in models whose only description of a pair is its score."""
        return 1

    def pair_vectors(self, images: Any, captions: Any, *, paired: bool = False) -> Tensor:
        """Describe pairs by similarity vectors, from which the final score is computed.

        The result can be differentiated twice, as a gradient step inside another one needs.

        Parameters
        ----------
        images, captions
            Encodings of this model.
        paired : bool
            Only the pairs of image i and caption i, without computing the others.

        Returns
        -------
        Tensor, (n_images, n_captions, pair_dim), or (n, pair_dim) if ``paired``
            In models without such vectors the unbounded score itself, as a vector of length one.

        Raises
        ------
        ValueError
            If ``paired`` and there are not as many images as captions.
        """
        if paired:
            return self.paired_similarity(images, captions, logits=True)[:, None]
        return self.similarity(images, captions, logits=True)[..., None]

    def paired_similarity(self, images: Any, captions: Any, *, logits: bool = False) -> Tensor:
        """Compare image i with caption i only: the diagonal of :meth:`similarity`.

        Parameters
        ----------
        images, captions
            Encodings of this model, as many images as captions.
        logits : bool
            Return the unbounded score.

        Returns
        -------
        Tensor, (n,)
            Similarities within :attr:`score_range`, or their logits.

        Raises
        ------
        ValueError
            If there are not as many images as captions.
        """
        same_count(images, captions)
        return self.similarity(images, captions, logits=logits).diagonal()

    def extra_terms(self, images: Any, captions: Any) -> dict[str, Tensor]:
        """Return loss terms that belong to the model, by name: those that look at encodings, not at scores.

        Most models have none. A training loop that reproduces a model's own paper adds them to its loss.

        Parameters
        ----------
        images, captions
            Encodings of this model, of one batch.

        Returns
        -------
        dict of str to Tensor
            Weighted scalars.
        """
        return {}

    def forward(self, images: Tensor, tokens: Tokens, *, logits: bool = False) -> Tensor:
        """Encode and compare all images and all captions.

        Parameters
        ----------
        images : Tensor, (B, R, feature_dim)
            Region features.
        tokens : Tokens
            C captions.
        logits : bool
            Return the unbounded score behind the similarity.

        Returns
        -------
        Tensor, (B, C)
            Images are rows, captions are columns.

        Raises
        ------
        ValueError
            If images or tokens do not fit the model.
        """
        return self.similarity(self.encode_images(images), self.encode_captions(tokens), logits=logits)
