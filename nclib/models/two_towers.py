"""CLIP and SigLIP as published, for pictures and captions of any data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nclib.common.files import digest
from nclib.common.transformers import SAFE, library_for, load_tokenizer, quietly
from nclib.models.pretrained import load


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
            list(texts), padding=self.padding, truncation=True, max_length=self.longest, return_tensors="pt"
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
