"""Bases of the models on regions and words: their encoders, cosines of one vector each, scores by groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher, fragments, option, used_with
from nclib.models.compiled import alike, call, comparing, wanted
from nclib.models.encoders import RegionEncoder, TextEncoder, mask_of, sizes_on, start_from
from nclib.models.grouping import GROUP_BYTES, Grouped, accelerated, group_captions
from nclib.models.pretrained import PretrainedText

TEXT_RATE, IMAGE_RATE = 0.1, 0.01
"""What multiplies the learning rate of pretrained networks in the official codes of VSE-infinity and OMIT."""

PICTURE_NETWORKS: dict[str, Callable[..., Any]] = {}
"""What turns pictures into cells, by the value of the option ``image``. ``book/baselines/omit`` brings both:
modules with ``width``, ``n_cells`` and ``projection``, as :class:`PictureMatcher` uses them."""


class PictureMatcher(Matcher):
    """A model that takes region features, or pictures, whose cells or patches then take their place.

    Parameters
    ----------
    image : {"regions", "resnet", "clip"}
        What an image is: region features, or a picture, which goes through the residual network or the CLIP
        model in ``image_folder``.
    image_folder, finetune : str, bool
        Folder with the weights, or a name in the hub's cache, for one of
        :data:`PICTURE_NETWORKS`; train pretrained networks too.
    image_rate, held_epochs : float, int
        With ``finetune``: what multiplies the learning rate for the image network; first epochs, warm-up
        included, in which it (and CLIP's text tower) stays as it is.
    crop : bool
        Read random parts of the pictures in training, some mirrored. Not for captions that tell left from
        right.
    **common
        Sizes; see :class:`~nclib.models.Matcher`. For pictures ``feature_dim`` is the numbers in a row (three
        times the width) and ``n_regions`` the rows.

    Attributes
    ----------
    cell_dim, n_slots : int
        Width and number of the regions, cells or patches.
    pixels : Module or None
        What turns pictures into cells.

    Raises
    ------
    ValueError
        For a size or choice that is not allowed, an option that is missing or has no effect, or a network for
        pictures that is not loaded.
    """

    image: str = option("regions", choices=("regions", "resnet", "clip"))
    image_folder: str = option("", file=True)
    finetune: bool = option(False)
    image_rate: float = option(IMAGE_RATE, above=0)
    held_epochs: int = option(0, low=0)
    crop: bool = option(False)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        networks = ("image", self.image, "resnet", "clip")
        used_with("image_folder", self.image_folder, *networks, needed=True)
        tuned = ("image_rate", "held_epochs", "crop")
        for name in (*tuned, "finetune") if getattr(self, "text", "bigru") == "bigru" else tuned:
            used_with(name, getattr(self, name), *networks, usual=getattr(type(self), name))
        self.cell_dim, self.n_slots = self.feature_dim, self.n_regions
        self.pixels: Any = None
        if self.image != "regions":
            if self.image not in PICTURE_NETWORKS:
                raise ValueError(
                    f"image={self.image!r} needs a network for pictures; --import book/baselines/omit has it"
                )
            self.needs_regions = self.n_regions
            how: dict[str, Any] = {"finetune": self.finetune, "rate": self.image_rate}
            how |= {"held_epochs": self.held_epochs, "crop": self.crop}
            how |= {"class_token": getattr(self, "image_global", "mean") == "first"}
            how |= {"kind": self.image, "folder": self.image_folder}
            self.pixels = PICTURE_NETWORKS[self.image](self.feature_dim, self.n_regions, **how)
            self.cell_dim, self.n_slots = self.pixels.width, self.pixels.n_cells

    def cells(self, images: Tensor) -> Tensor:
        """Return region features (B, R, feature_dim) as they are, pictures as cells (B, n, cell_dim)."""
        images = self.check_images(images)
        cells: Tensor = images if self.pixels is None else self.pixels(images)
        return cells


class TextMatcher(PictureMatcher):
    """A model whose captions go through a BiGRU from scratch or a pretrained text encoder.

    Parameters
    ----------
    text : {"bigru", "bert", "clip"}
        Text encoder: a BiGRU from scratch, or the BERT or CLIP model in ``text_folder``.
    text_folder, text_words : str
        Folder with the weights in the layout of ``transformers``, or a name in the hub's cache; the data's
        vocabulary file, to cut its words into the pieces of the text encoder. See
        :class:`~nclib.models.pretrained.PretrainedText`.
    text_rate : float
        With ``finetune``: what multiplies the learning rate for the BERT or CLIP model.
    word_vectors : str
        For the BiGRU: a ``.npy`` file of at most ``vocab_size`` rows of ``word_dim`` numbers, from which the
        embeddings start (``tools/data_convert.py vectors``); rows of NaN start at random. All rows train.
    **common
        Of :class:`PictureMatcher`.

    Attributes
    ----------
    text_options : dict
        Options of :class:`~nclib.models.pretrained.PretrainedText`.

    Raises
    ------
    ValueError
        For a size or choice that is not allowed, or a path that is missing or has no effect.
    """

    text: str = option("bigru", choices=("bigru", "bert", "clip"))
    text_folder: str = option("", file=True)
    text_words: str = option("", file=True)
    text_rate: float = option(TEXT_RATE, above=0)
    word_vectors: str = option("", file=True)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        kinds = ("text", self.text, "bert", "clip")
        used_with("text_folder", self.text_folder, *kinds, needed=True)
        used_with("text_words", self.text_words, *kinds)
        used_with("text_rate", self.text_rate, *kinds, usual=TEXT_RATE)
        used_with("word_vectors", self.word_vectors, "text", self.text, "bigru")
        self.text_options: dict[str, Any] = {
            "folder": self.text_folder,
            "words_file": self.text_words,
            "finetune": self.finetune,
            "rate": self.text_rate,
            "held_epochs": self.held_epochs if self.text == "clip" else 0,
        }


class RegionWordMatcher(TextMatcher):
    """A model on region features and words, encoded in one common space.

    Parameters
    ----------
    dropout : float
        Dropout on the word embeddings of the BiGRU while training.
    **common
        Of :class:`TextMatcher` and :class:`PictureMatcher`.
    """

    dropout: float = option(0.0, low=0, high=1)

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.image_encoder: Any = self.region_encoder(self.cell_dim)
        self.text_encoder: Any = self.word_encoder()

    def region_encoder(self, width: int) -> nn.Module:
        """Return the encoder of regions or cells of this width; a subclass may have its own."""
        return RegionEncoder(width, self.embed_dim)

    def word_encoder(self) -> nn.Module:
        """Return the encoder of words that ``text`` names."""
        if self.text == "bigru":
            encoder = TextEncoder(self.vocab_size, self.word_dim, self.embed_dim, dropout=self.dropout)
            if self.word_vectors:
                start_from(encoder.embedding.weight, self.word_vectors)
            return encoder
        return PretrainedText(self.vocab_size, self.embed_dim, kind=self.text, **self.text_options)

    def encode_regions(self, images: Tensor) -> Tensor:
        """Encode region features (B, R, feature_dim), or pictures, as regions (B, R, D)."""
        regions: Tensor = self.image_encoder(self.cells(images))
        return regions

    def encode_words(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and sentence vectors (C, D)."""
        words, last = self.text_encoder(self.check_tokens(tokens))
        return words, last

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Encode region features (B, R, feature_dim) as unit regions (B, R, D) and their mean (B, D)."""
        regions = self.encode_regions(images)
        return ImageEncoding(regions.mean(1), regions)

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Encode captions as unit words (C, W, D) and sentence vectors (C, D)."""
        words, last = self.encode_words(tokens)
        return CaptionEncoding(last, tokens.lengths, words)


class DualEncoder(Matcher):
    """A model whose encodings hold unit vectors and whose similarity is their cosine."""

    score_range = (-1.0, 1.0)

    def similarity(self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False) -> Tensor:
        """Return the cosine of every image and every caption, (B, C) in [-1, 1].

        ``logits`` changes nothing here: a cosine does not saturate.
        """
        return images.vectors @ captions.vectors.t()

    @property
    def pair_dim(self) -> int:
        """Width of the common space."""
        return self.embed_dim

    def pair_vectors(
        self, images: ImageEncoding, captions: CaptionEncoding, *, paired: bool = False
    ) -> Tensor:
        """Return elementwise products of the unit vectors, (B, C, D) or (B, D); they sum to the cosine."""
        return self.cosine_products(images, captions, paired)

    def paired_similarity(
        self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False
    ) -> Tensor:
        """Return the cosine of image i and caption i, (n,)."""
        return self.cosine_products(images, captions, True).sum(-1)


class CosineMatcher(DualEncoder, RegionWordMatcher):
    """A dual encoder of region features and words."""


GROUP_COST = 30.0
"""Fixed cost of a group of captions on a CPU, in words of padding: mask, gather, and some forty calls."""

EVALUATION_BYTES = 1 << 28
"""Largest group without gradients on a CPU."""


class FragmentMatcher(RegionWordMatcher):
    """A model that compares regions with words; a subclass gives :meth:`pair_scores`.

    Captions are cut into groups that fit the memory budget. If all groups of a training step together do not
    fit, each group is computed again in the backward pass.

    Attributes
    ----------
    group_bytes : int or None
        Largest group in training on an accelerator, below the memory budget; None: the budget alone.
    """

    group_bytes: ClassVar[int | None] = None

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._measured: dict[tuple[Any, ...], tuple[int, int]] = {}

    @abstractmethod
    def pair_scores(self, regions: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Compare every image with every caption of a group.

        Parameters
        ----------
        regions : Tensor, (B, R, D)
        words : Tensor, (n, w, D)
            Words of captions of nearly equal length, rows of ones at padding.
        mask : Tensor, (n, w)
            1 at words, 0 at padding, which must not change a score.

        Returns
        -------
        Tensor, (B, n)
        """

    def training_bytes(self, regions: Tensor) -> tuple[int, int]:
        """Return the bytes that one word, and one caption whatever its length, leave in memory in training.

        Groups of captions are chosen by them to fit :attr:`memory_budget`. They are measured: three small
        trials of :meth:`pair_scores` on the given images count what autograd keeps for the backward pass,
        once for each shape of images. A model that knows a formula overrides the method.
        """
        key = (*regions.shape, regions.dtype, regions.device.type)
        if key not in self._measured:
            n = 2 if wanted(regions.device) else 1  # a compiler has a graph of its own for 1
            short, long, two = (self._kept(regions, k * n, w) for k, w in ((1, 4), (1, 8), (2, 4)))
            per_word = max(1, (long - short) // (4 * n))
            self._measured[key] = per_word, max(0, (two - short) // n - 4 * per_word)
        return self._measured[key]

    def _kept(self, regions: Tensor, n: int, w: int) -> int:
        """Bytes of the results that autograd keeps from scoring ``n`` captions of ``w`` words."""
        regions = regions.detach().requires_grad_()
        words = torch.ones(n, w, regions.shape[2], dtype=regions.dtype, device=regions.device)
        words.requires_grad_()
        given = {regions.untyped_storage().data_ptr(), words.untyped_storage().data_ptr()}
        given |= {p.untyped_storage().data_ptr() for p in self.parameters()}
        kept: dict[int, tuple[int, Tensor]] = {}  # tensors are held, so that no address is used twice

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in given:
                kept[storage.data_ptr()] = storage.nbytes(), tensor
            return tensor

        devices = [regions.device] if regions.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            if wanted(regions.device):
                scores = self._scores(regions, words, sizes_on((w,) * n, words.device))
            else:
                scores = self.pair_scores(regions, words, words.new_ones(n, w))
        if scores.shape != (len(regions), n):
            raise TypeError(
                f"{type(self).__name__}.pair_scores must be (images, captions), ({len(regions)}, {n}), got "
                f"{tuple(scores.shape)}"
            )
        return scores.nbytes + sum(size for size, _ in kept.values())

    def similarity(self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False) -> Tensor:
        """Compare every image with every caption: (B, C).

        ``logits`` changes nothing here: these scores do not saturate.
        """
        regions, words = fragments(images, captions)
        lengths, training = captions.lengths, torch.is_grad_enabled()
        with comparing(regions.device):
            regions, words = regions.to(self.dtype), words.to(self.dtype)
            per_word, per_caption = self.training_bytes(regions)
            word = per_word + per_caption * len(lengths) // sum(lengths)
            budget = self.memory_budget
            if not training and not accelerated(regions.device):
                budget = min(budget, EVALUATION_BYTES)
            if training and accelerated(regions.device) and self.group_bytes:
                budget = min(budget, self.group_bytes)
            groups = group_captions(
                lengths,
                group_cost=GROUP_BYTES / word if accelerated(regions.device) else GROUP_COST,
                max_words=max(1, budget // word),
            )
            again = training and word * sum(group.words for group in groups) > budget
            grouped, columns = Grouped(groups, words.device), []
            parts = grouped.split(words), grouped.split(sizes_on(lengths, words.device))
            for group, some, sizes in zip(groups, *parts, strict=True):
                inputs = regions, some[:, : group.width], sizes
                columns.append(grouped.compute(self._scores, *inputs, again=again))
            return grouped.join(columns)

    def _scores(self, regions: Tensor, words: Tensor, sizes: Tensor) -> Tensor:
        """:meth:`padded_scores`, compiled where that is wanted."""
        if accelerated(words.device):
            regions, words = alike(regions, words)
        varying = [(regions, 0), (words, 0), (words, 1), (sizes, 0)]
        scores: Tensor = call(FragmentMatcher.padded_scores, self, regions, words, sizes, varying=varying)
        return scores

    def padded_scores(self, regions: Tensor, words: Tensor, sizes: Tensor) -> Tensor:
        """Return :meth:`pair_scores` of captions with ``sizes`` (n,) words each: one graph for a compiler."""
        return self.pair_scores(regions, *_padded_with_ones(words, sizes))

    def paired_similarity(
        self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False
    ) -> Tensor:
        """Compare image i with caption i only, (n,); ``logits`` changes nothing here."""
        self.check_pairs(images, captions)
        regions, words = fragments(images, captions)
        with torch.autocast(regions.device.type, enabled=False):
            regions, words = regions.to(self.dtype), words.to(self.dtype)
            sets = regions, *_padded_with_ones(words, sizes_on(captions.lengths, words.device))
            # one image and one caption at a time: (n, 1, 1)
            scores: Tensor = torch.vmap(self.pair_scores)(*(part[:, None] for part in sets))
            return scores.flatten()


def _padded_with_ones(words: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Words (n, w, D) with ones at padding, and their mask (n, w).

    No score depends on these rows, but the length of a zero row has no second derivative.
    """
    mask = mask_of(sizes, words.shape[1], words)
    return words.masked_fill(mask[..., None] == 0, 1.0), mask
