"""Published weights of pretrained networks beside the papers' data: where they lie, and what they must be.

Below the folder, ``weights`` holds a folder for each network, and files of word vectors. Runs of the papers'
grids name them; the digest of the content, and not the place, names a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nclib.common.npy import npy_header

PLACE = "weights"
"""Folder below that of the papers' data."""


@dataclass(frozen=True)
class Weights:
    """Published weights.

    Parameters
    ----------
    publisher : str
        What the publisher calls them.
    config : mapping of str to value
        What their ``config.json`` says, ``group.name`` inside a group; empty for a file of torchvision's.
    sizes : mapping of str to value
        What the shapes of a file of torchvision's say; see :func:`nclib.models.residual.shape_of`.
    reads : bool
        Whether a tokeniser must lie beside them.
    shape : tuple of int
        Of a ``.npy`` file, which is not a folder.
    """

    publisher: str
    config: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    reads: bool = False
    shape: tuple[int, ...] = ()


WEIGHTS = {
    "bert-base-uncased": Weights(
        "google-bert/bert-base-uncased",
        {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522},
        reads=True,
    ),
    "clip-vit-base-patch32": Weights(
        "openai/clip-vit-base-patch32",
        {"model_type": "clip", "projection_dim": 512, "vision_config.patch_size": 32},
        reads=True,
    ),
    "resnet-152": Weights(
        "torchvision's resnet152-394f9c45.pth",
        sizes={"blocks": (3, 8, 36, 3), "groups": 1, "inner": 64, "out": 256},
    ),
    "resnext101_32x8d_wsl": Weights(
        "facebookresearch/WSL-Images, ig_resnext101_32x8-c38310e5.pth",
        sizes={"blocks": (3, 4, 23, 3), "groups": 32, "inner": 256, "out": 256},
    ),
    "glove_f30k.npy": Weights("GloVe, by tools/data_convert.py vectors f30k", shape=(8481, 300)),
    "glove_coco.npy": Weights("GloVe, by tools/data_convert.py vectors coco", shape=(11353, 300)),
}
"""By the name of their folder or file."""


def named(value: object) -> str:
    """Return the name of the published weights that a path names; empty for any other value."""
    if not isinstance(value, str) or not value:
        return ""
    path = Path(value)
    return path.name if path.name in WEIGHTS and path.parent.name in (PLACE, "") else ""


def below(root: str | Path, value: Any) -> Any:
    """Return ``weights/NAME`` as a path below ``root``; any other value as it is."""
    return str(Path(root) / value) if isinstance(value, str) and value.startswith(f"{PLACE}/") else value


def problem(folder: Path) -> str:
    """Say what keeps a folder or file from holding the published weights of its name; empty for nothing.

    The configuration, or the shapes in the file, are looked at; runs read the weights themselves.
    """
    known = WEIGHTS[folder.name]
    if not (folder.is_file() if known.shape else folder.is_dir()):
        return f"missing: {known.publisher} (nothing is downloaded here)"
    if known.shape:
        try:
            shape = npy_header(folder)[0]
        except OSError as error:
            return str(error)
        return (
            "" if shape == known.shape else f"has the shape {shape}, must be {known.shape}: {known.publisher}"
        )
    if known.sizes:
        return _other_shapes(folder, known)
    files = ["config.json", *(["tokenizer.json or vocabulary"] if known.reads else [])]
    beside = [folder / name for name in ("tokenizer.json", "vocab.txt", "vocab.json")]
    try:
        found = json.loads((folder / "config.json").read_text("utf8"))
        if known.reads and not any(path.is_file() for path in beside):
            return f"lacks {files[1]}, which {known.publisher} has"
        if not any((folder / name).is_file() for name in ("model.safetensors", "pytorch_model.bin")):
            return f"lacks model.safetensors, which {known.publisher} has"
    except OSError:
        return f"lacks config.json, which {known.publisher} has"
    except ValueError:
        return "config.json is damaged; get it again"
    for name, wanted in known.config.items():
        group, _, own = name.rpartition(".")
        value = (found.get(group) or {} if group else found).get(own, wanted)
        if value != wanted:
            return f"config.json: {name} is {value!r}, {known.publisher} has {wanted!r}"
    return ""


def _other_shapes(folder: Path, known: Weights) -> str:
    from nclib.models import residual

    file = residual.file_in(str(folder))
    if file is None:
        return f"must hold one .pth file, {known.publisher}"
    try:
        sizes = residual.shape_of(residual.read(file, folder.name))
    except ValueError as error:
        return str(error)
    other = [f"{k} {sizes[k]}" for k, wanted in known.sizes.items() if sizes[k] != wanted]
    return f"{file.name} is another network ({', '.join(other)}) than {known.publisher}" if other else ""
