"""The base class of image-text models, their options, and the encodings that they exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, make_dataclass
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nclib.common.options import Options, make, option
from nclib.common.tokens import Tokens

Index = Tensor | np.ndarray | Sequence[int] | slice


@dataclass(frozen=True, kw_only=True)
class Sizes(Options):
    """The sizes that every model takes, whether it has a use for them or not."""

    feature_dim: int = option(kind=int, low=1, help="width of a region feature")
    vocab_size: int = option(kind=int, low=1, help="number of token ids, padding included")
    n_regions: int = option(12, low=1, help="regions per image")
    embed_dim: int = option(1024, low=1, help="width of the common space")
    sim_dim: int = option(256, low=1, help="width of a similarity vector")
    word_dim: int = option(300, low=1, help="width of a word embedding")


@dataclass(frozen=True)
class Encoding:
    """Encoded samples; a subclass adds tensors with one row per sample, or None, and ``lengths``.

    Parameters
    ----------
    vectors : Tensor, (B, D)
        One global vector per sample.
    """

    vectors: Tensor

    ragged: ClassVar[tuple[str, ...]] = ()  # fields that are zero beyond a sample's length along dimension 1

    def __len__(self) -> int:
        return len(self.vectors)

    def select(self, index: Index) -> Self:
        """Return some samples in the order of ``index``: (m,) of int, (B,) of bool, or a slice.

        Captions are cut to the longest of them.
        """
        rows = _host_rows(index, len(self))
        values = self._each(lambda x: _take(x, rows))
        if "lengths" in values:
            values["lengths"] = tuple(values["lengths"][row] for row in rows)
            width = max(values["lengths"], default=0)
            values |= {name: values[name][:, :width] for name in self.ragged if values[name] is not None}
        return type(self)(**values)

    def detach(self) -> Self:
        """Return the same values without a gradient."""
        return type(self)(**self._each(Tensor.detach))

    @classmethod
    def concat(cls, parts: Sequence[Encoding]) -> Self:
        """Return all samples of ``parts``, at least one, in order, padded to the longest.

        An optional field must be present in all parts or in none.
        """
        values = {f.name: [getattr(part, f.name, None) for part in parts] for f in fields(cls)}
        return cls(**{name: _join(given, name in cls.ragged) for name, given in values.items()})

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Fields by name, tensors changed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: change(x) if isinstance(x, Tensor) else x for name, x in values.items()}


@dataclass(frozen=True)
class ImageEncoding(Encoding):
    """Encoded images, with ``select(index)``, ``detach()`` and ``concat(parts)``.

    Parameters
    ----------
    vectors : Tensor, (B, D)
        One global vector per image.
    regions : Tensor, (B, R, D), optional
        One vector per region; absent in models that keep global vectors only.
    """

    regions: Tensor | None = None


@dataclass(frozen=True)
class CaptionEncoding(Encoding):
    """Encoded captions, with ``select(index)``, ``detach()`` and ``concat(parts)``.

    Parameters
    ----------
    vectors : Tensor, (C, D)
        One global vector per caption.
    lengths : tuple of int, length C
        Valid words per caption, on the host.
    words : Tensor, (C, W, D), optional
        One vector per word, zero beyond a caption's length; absent in models with global vectors only.
    """

    lengths: tuple[int, ...]
    words: Tensor | None = None

    ragged: ClassVar[tuple[str, ...]] = ("words",)


def _host_rows(index: Index, n: int) -> list[int]:
    """Row numbers on the host, of a slice among ``n`` rows."""
    if isinstance(index, slice):
        return list(range(n))[index]
    rows = torch.as_tensor(index)
    if rows.dtype == torch.bool:
        rows = rows.nonzero().squeeze(1)
    return rows.tolist()


def _take(tensor: Tensor, rows: list[int]) -> Tensor:
    """Rows (m, ...) of a tensor (n, ...) on any device; repeats are allowed."""
    return tensor.index_select(0, torch.tensor(rows, dtype=torch.long).to(tensor.device, non_blocking=True))


def _join(values: list[Any], ragged: bool) -> Any:
    """Concatenate the tensors (n_i, ...), or tuples, that are present; None without any."""
    present = [value for value in values if value is not None]
    if present and isinstance(present[0], tuple):
        return tuple(chain.from_iterable(present))
    if ragged:
        width = max((x.shape[1] for x in present), default=0)
        present = [F.pad(x, (0, 0) * (x.ndim - 2) + (0, width - x.shape[1])) for x in present]
    return torch.cat(present) if present else None


def fragments(images: ImageEncoding, captions: CaptionEncoding) -> tuple[Tensor, Tensor]:
    """Return regions and words of two encodings.

    Parameters
    ----------
    images, captions : ImageEncoding, CaptionEncoding

    Returns
    -------
    regions, words : Tensor, (B, R, D) and (C, W, D)

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


def used_with(
    name: str, value: Any, option: str, chosen: str, *users: str, usual: Any = "", needed: bool = False
) -> None:
    """Forbid a value other than the usual one unless ``option`` has one of the values ``users``.

    Parameters
    ----------
    name, value : str, object
        Option that may be without effect, and its value.
    option, chosen, *users : str
        Option that decides, its value, and the values with which ``name`` has an effect.
    usual, needed : object, bool
        Default of ``name``; whether it is a path that ``users`` need.

    Raises
    ------
    ValueError
        If the option would have no effect, or the path is missing.
    """
    if needed and chosen in users and not value:
        raise ValueError(f"{option}={chosen!r} needs {name}, a local path; nothing is downloaded")
    if chosen not in users and value != usual:
        known = " or ".join(map(repr, users))
        raise ValueError(f"{name}={value!r} is used with {option}={known} only, got {option}={chosen!r}")


class Matcher(nn.Module, ABC):
    """Base of all image-text models.

    A model has three steps that can be called separately, so that encodings are computed once and reused:
    :meth:`encode_images`, :meth:`encode_captions`, :meth:`similarity`. Calling the model does all three.

    A subclass declares its options in the class body, like the fields of a dataclass, with
    :func:`~nclib.models.option`; a constructor takes ``**common`` and passes it on to this one.

    Parameters
    ----------
    feature_dim, vocab_size : int
        Width of a region feature (2048 in the field's files), number of token ids, padding included.
    n_regions : int
        Regions per image. Any number may be given later, unless :attr:`needs_regions` is set.
    embed_dim, sim_dim, word_dim : int
        Width of the common space, of a similarity vector, of a word embedding; ignored by models without one.
    **values
        Values of the declared options. Each becomes an attribute of the model.

    Attributes
    ----------
    Options : type
        Frozen dataclass of sizes and options, made from the class and its bases.
    score_range : tuple of float
        Smallest and largest similarity the model can give.
    needs_regions : int or None
        The only number of regions that the model takes, where it takes one only.
    draws_in_training : bool
        Whether encoding in training mode draws random numbers other than by dropout modules.

    Raises
    ------
    ValueError
        For an option that the class does not declare, or a size or value that is not allowed.

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
    ...     def similarity(self, images, captions, *, logits=False):
    ...         return -self.weight * (images.vectors - captions.vectors.t()).abs()
    >>> model = Count(feature_dim=3, vocab_size=9, weight=2)
    >>> model.weight, model.n_regions
    (2.0, 12)
    >>> Count(feature_dim=3, vocab_size=9, weight=-1)
    Traceback (most recent call last):
    ValueError: bad parameters: weight=-1: must be a number, above 0
    """

    Options: ClassVar[type[Options]] = Sizes

    score_range: tuple[float, float] = (0.0, 1.0)
    needs_regions: int | None = None
    draws_in_training: bool = False

    feature_dim: int
    vocab_size: int
    n_regions: int
    embed_dim: int
    sim_dim: int
    word_dim: int

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Make ``Options`` of the declared options; as a class attribute each has its default."""
        super().__init_subclass__(**arguments)
        own = [(n, object, f) for n, f in vars(cls).items() if isinstance(f, Field) and "rule" in f.metadata]
        for name, _, declared in own:
            setattr(cls, name, declared.default)
        if "Options" not in vars(cls):
            bases = tuple(base.Options for base in cls.__bases__ if issubclass(base, Matcher))
            cls.Options = make_dataclass(
                f"{cls.__name__}Options", own, bases=bases, frozen=True, kw_only=True
            )

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in vars(make(self.Options, values)).items():
            setattr(self, name, value)
        self._budget: int | None = None

    @property
    def memory_budget(self) -> int:
        """Bytes that the intermediate results of one :meth:`similarity` call may take.

        The model chooses its chunks of captions from it. Unless it is set: 4 GB on a CPU, a quarter of its
        memory on a GPU.
        """
        if self._budget is not None:
            return self._budget
        if self.device.type != "cuda":
            return 4 << 30
        return int(torch.cuda.get_device_properties(self.device).total_memory // 4)

    @memory_budget.setter
    def memory_budget(self, value: int) -> None:
        self._budget = value

    @property
    def device(self) -> torch.device:
        """Device of the weights, or of the buffers of a model without any."""
        return next(chain(self.parameters(), self.buffers()), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the weights."""
        return next(self.parameters(), torch.empty(0)).dtype

    def check_images(self, images: Tensor) -> Tensor:
        """Return images (B, R, feature_dim) in the model's number type; a ValueError if they do not fit."""
        shape, regions = tuple(images.shape), self.needs_regions
        fits = len(shape) == 3 and 0 not in shape and shape[2] == self.feature_dim
        if not fits or regions not in (None, shape[1]):
            raise ValueError(
                f"images must be (batch, {regions or 'regions'}, {self.feature_dim}), none of them 0, got "
                f"{shape}; the sizes are fixed when the model is built, by the data's feature_dim and, in "
                "models that tell regions apart or read pictures, n_regions"
            )
        return images.to(self.dtype)

    def check_tokens(self, tokens: Tokens) -> Tokens:
        """Return tokens unchanged; a ValueError if there are none or (looked up on a CPU) an id is wrong."""
        if len(tokens) == 0:
            raise ValueError("tokens must hold at least one caption")
        # On an accelerator the embedding kernel checks the ids itself; reading them here would stall it.
        if tokens.ids.device.type == "cpu":
            low, high = torch.aminmax(tokens.ids)
            if bool(low < 0) or bool(high >= self.vocab_size):
                raise ValueError(
                    f"tokens has ids from {int(low)} to {int(high)}, but the vocabulary holds 0 to "
                    f"{self.vocab_size - 1} (vocab_size={self.vocab_size})"
                )
        return tokens

    @staticmethod
    def check_pairs(images: Any, captions: Any) -> None:
        """Raise a ValueError unless there are as many images as captions, to be taken pair by pair."""
        if len(images) != len(captions):
            got = f"{len(images)} images and {len(captions)} captions"
            raise ValueError(f"pairs need as many images as captions, got {got}")

    def cosine_products(self, images: Any, captions: Any, paired: bool) -> Tensor:
        """Products of global unit vectors, (B, C, D), or (n, D) if ``paired``; they sum to the cosines."""
        if paired:
            self.check_pairs(images, captions)
            return images.vectors * captions.vectors
        return images.vectors[:, None] * captions.vectors

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
            Or a model's own encoding with ``select``, ``detach`` and ``concat``.

        Raises
        ------
        ValueError
            As :meth:`check_images`.
        """

    @abstractmethod
    def encode_captions(self, tokens: Tokens) -> Any:
        """Encode C captions; returns and raises as :meth:`encode_images`, with CaptionEncoding."""

    @abstractmethod
    def similarity(self, images: Any, captions: Any, *, logits: bool = False) -> Tensor:
        """Compare every image with every caption.

        Parameters
        ----------
        images, captions
            Encodings of this model.
        logits : bool
            Return the unbounded score behind the similarity: the same order without ties by saturation.

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
        """Compare image i with caption i only, (n,): the diagonal of :meth:`similarity`.

        Raises
        ------
        ValueError
            If there are not as many images as captions.
        """
        self.check_pairs(images, captions)
        return self.similarity(images, captions, logits=logits).diagonal()

    def own_rates(self) -> dict[nn.Parameter, float]:
        """Return weights with what multiplies their learning rate; none in most models."""
        return {}

    def own_loss(self, images: Any, captions: Any) -> dict[str, Tensor]:
        """Return the weighted terms of the loss of the model's own paper, from the encodings of one batch.

        Plain training with ``loss="own"`` minimises their sum. Most models have none: their papers train with
        a triplet loss.
        """
        return {}

    def forward(self, images: Tensor, tokens: Tokens, *, logits: bool = False) -> Tensor:
        """Encode and compare all images (B, R, feature_dim) and all C captions: (B, C)."""
        return self.similarity(self.encode_images(images), self.encode_captions(tokens), logits=logits)
