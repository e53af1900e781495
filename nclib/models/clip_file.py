"""CLIP's weights from a local file: OpenAI's and open_clip's layout, for the towers built here.

The sizes are read off the shapes of the weights. Three things are not to be seen there: the number of
heads, the activation, and the colours' mean and deviation. They come from ``open_clip_config.json`` if it
lies beside the file, as open_clip's published folders have it; otherwise a head is 64 wide, the activation is
the exact GELU, and the colours are CLIP's.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nclib.models.clip_towers import GELUS, ImageTower, Sizes, TextTower
from nclib.models.registry import choice

CONFIG = "open_clip_config.json"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of the three colours that CLIP was trained with."""

HEAD = 64
"""Width of a head of the attention, where no configuration says otherwise."""

ONLY: dict[str, dict[str, Any]] = {
    "vision_cfg": {
        "timm_model_name": None,
        "attentional_pool": False,
        "no_ln_pre": False,
        "pos_embed_type": "learnable",
        "final_ln_after_pool": False,
        "pool_type": "tok",
    },
    "text_cfg": {
        "hf_model_name": None,
        "embed_cls": False,
        "no_causal_mask": False,
        "final_ln_after_pool": False,
        "pool_type": "argmax",
        "proj_bias": False,
    },
    "preprocess_cfg": {"interpolation": "bicubic", "resize_mode": "shortest"},
}
"""Settings of a configuration that change the computation without a trace in the weights' names."""

BOTH = {"ls_init_value": None, "act_kwargs": None, "norm_kwargs": None, "scaled_cosine_attn": False}
"""The same, for either tower."""

TEXT = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
"""Beginnings of the names of the text tower."""


@dataclass(frozen=True)
class ClipFile:
    """What a file holds.

    Parameters
    ----------
    name : str
        Option and path, for messages.
    visual, text : dict of str to Tensor
        Weights of the towers; empty if the file has none.
    logit_scale : Tensor or None
        Logarithm of the factor by which CLIP multiplies cosines.
    config : dict
        Content of the configuration beside the file, empty without one.
    gelu : {"exact", "quick"}
        Activation.
    """

    name: str
    visual: dict[str, Tensor]
    text: dict[str, Tensor]
    logit_scale: Tensor | None
    config: dict[str, Any]
    gelu: str

    def image_tower(self, *, embeddings: bool) -> ImageTower:
        """Build the image tower, with its projection if ``embeddings``.

        Raises
        ------
        ValueError
            If a weight is missing, superfluous or of another shape.
        """
        first = self._shape("visual.", self.visual, "conv1.weight", 4)
        positions = self._shape("visual.", self.visual, "positional_embedding", 2)
        grid = round((positions[0] - 1) ** 0.5)
        if grid**2 + 1 != positions[0]:
            raise ValueError(
                f"{self.name}: {positions[0] - 1} patches are no square; pictures must be square"
            )
        heads = self._of("vision_cfg", "head_width", HEAD), None
        out = self._shape("visual.", self.visual, "proj", 2)[1] if embeddings else 0
        sizes = self._sizes("visual.", self.visual, heads)
        tower = ImageTower(sizes, patch=first[2], grid=grid, out=out)
        return self._filled(tower, "visual.", self.visual, "proj")

    def text_tower(self, *, embeddings: bool) -> TextTower:
        """Build the text tower, with its projection if ``embeddings``.

        Raises
        ------
        ValueError
            If a weight is missing, superfluous or of another shape.
        """
        words = self._shape("", self.text, "token_embedding.weight", 2)
        positions = self._shape("", self.text, "positional_embedding", 2)
        out = self._shape("", self.text, "text_projection", 2)[1] if embeddings else 0
        sizes = self._sizes("", self.text, (HEAD, self._of("text_cfg", "heads", None)))
        tower = TextTower(sizes, vocab_size=words[0], longest=positions[0], out=out)
        return self._filled(tower, "", self.text, "text_projection")

    @property
    def colours(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of red, green and blue."""
        mean, std = (self._of("preprocess_cfg", key, value) for key, value in (("mean", MEAN), ("std", STD)))
        return tuple(mean), tuple(std)

    def _of(self, part: str, key: str, default: Any) -> Any:
        found = self._part(part).get(key)
        return default if found is None else found

    def _part(self, part: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.config.get(part, self.config.get("model_cfg", {}).get(part, {}))
        return found

    def check(self, part: str) -> None:
        """Raise a ValueError if the configuration asks for something that is not built here."""
        towers = BOTH if part != "preprocess_cfg" else {}
        for key, only in {**ONLY[part], **towers}.items():
            found = self._part(part).get(key)
            if found not in (None, only, {}):
                raise ValueError(
                    f"{self.name}: {CONFIG} beside it asks for {part}.{key}={found!r}, which is not built "
                    f"here; it must be {only!r}"
                )

    def _shape(self, prefix: str, state: Mapping[str, Tensor], name: str, ndim: int) -> tuple[int, ...]:
        if name not in state or state[name].ndim != ndim:
            what = "image tower: a vision transformer" if prefix else "text tower: a transformer"
            raise ValueError(
                f"{self.name} has no {what} in the layout of OpenAI's and open_clip's CLIP "
                f"({prefix + name!r} is missing or has another shape)"
            )
        return tuple(state[name].shape)

    def _sizes(self, prefix: str, state: Mapping[str, Tensor], heads: tuple[int, int | None]) -> Sizes:
        block = "transformer.resblocks.0."
        width = self._shape(prefix, state, f"{block}attn.in_proj_weight", 2)[1]
        hidden = self._shape(prefix, state, f"{block}mlp.c_fc.weight", 2)[0]
        numbers = (re.match(r"transformer\.resblocks\.(\d+)\.", name) for name in state)
        head_width, number = heads
        number = width // head_width if number is None else number
        if number < 1 or width % number or (heads[1] is None and width % head_width):
            raise ValueError(
                f"{self.name}: states of width {width} cannot be cut into heads of width {head_width}; "
                f"say in {CONFIG} beside it how many there are (vision_cfg.head_width, text_cfg.heads)"
            )
        layers = 1 + max(int(found[1]) for found in numbers if found)
        return Sizes(width, hidden, layers, number, self.gelu)

    def _filled(self, tower: Any, prefix: str, state: Mapping[str, Tensor], projection: str) -> Any:
        own = tower.state_dict()
        for name, value in own.items():
            if name not in state or state[name].shape != value.shape:
                shape = f"has shape {tuple(state[name].shape)}" if name in state else "is missing"
                raise ValueError(f"{self.name}: {prefix + name!r} {shape}, {tuple(value.shape)} is needed")
        more = [name for name in state if name not in own and name != projection]
        if more:
            raise ValueError(f"{self.name}: {prefix + more[0]!r} belongs to no tower that is built here")
        tower.load_state_dict({name: state[name] for name in own})
        return tower


def read_clip(file: str, option: str, gelu: str = "config") -> ClipFile:
    """Read the weights of a CLIP model.

    Parameters
    ----------
    file : str
        A safetensors file, or one of ``torch.save`` that holds tensors only (a state dict, or open_clip's
        checkpoint around it). Half precision becomes single precision.
    option : str
        Name of the option that gave ``file``, for messages.
    gelu : {"config", "exact", "quick"}
        Activation. ``quick`` belongs to OpenAI's weights and those trained like them; ``config`` is what
        ``open_clip_config.json`` beside the file says under ``quick_gelu``, ``exact`` without one.

    Raises
    ------
    ValueError
        If there is no such file, or it is not read here.
    """
    choice("clip_gelu", gelu, ("config", *GELUS))
    path, name = Path(file), f"{option}={file!r}"
    if not path.is_file():
        raise ValueError(f"{name}: there is no such file")
    found = _tensors(path, name)
    found = {key.removeprefix("module."): value.float() for key, value in found.items()}
    config: Any = {}
    if path.with_name(CONFIG).is_file():
        config = json.loads(path.with_name(CONFIG).read_text(encoding="utf8"))
        if not isinstance(config, dict):
            raise ValueError(f"{path.with_name(CONFIG)} must hold a JSON object")
    if gelu == "config":
        gelu = "quick" if config.get("model_cfg", config).get("quick_gelu") else "exact"
    visual = {k.removeprefix("visual."): v for k, v in found.items() if k.startswith("visual.")}
    text = {k.removeprefix("text."): v for k, v in found.items() if k.startswith(("text.", *TEXT))}
    return ClipFile(name, visual, text, found.get("logit_scale"), config, gelu)


def _tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Tensors of a file by name."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in entry for entry in archive.namelist()):
                raise ValueError(
                    f"{name} is a TorchScript archive, which holds a program; save its weights once with "
                    "torch.save(torch.jit.load(file, 'cpu').state_dict(), other) and give that file"
                )
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no such file fails in many ways
        raise ValueError(f"{name} is no file of torch.save that holds tensors only") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}
