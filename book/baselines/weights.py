"""Published weights of pretrained networks beside the papers' data: where they lie, and what they must be.

Below the folder, ``weights`` holds a folder for each network, and files of word vectors. Runs of the papers'
grids name them; the digest of the content, and not the place, names a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib.common.npy import npy_header
from nclib.runs.words import flatten

PLACE = "weights"
"""Folder below that of the papers' data."""


@dataclass(frozen=True)
class Weights:
    """Published weights.

    Parameters
    ----------
    publisher : str
        What the publisher calls them.
    facts : callable
        Reads what is known of them from their folder or file; raises OSError or ValueError.
    wanted : mapping of str to value
        These facts of the published ones.
    files : sequence of tuples of str
        Of each one must be in the folder; empty for a file.
    """

    publisher: str
    facts: Callable[[Path], Mapping[str, Any]]
    wanted: Mapping[str, Any]
    files: Sequence[tuple[str, ...]] = ()


def _config(folder: Path) -> dict[str, Any]:
    return flatten(json.loads((folder / "config.json").read_text("utf8")))


def _shapes(folder: Path) -> dict[str, Any]:
    from baselines.omit import residual

    file = residual.file_in(str(folder))
    if file is None:
        raise ValueError("must hold one .pth file")
    return residual.shape_of(residual.read(file, folder.name))


def _size(file: Path) -> dict[str, Any]:
    return {"shape": npy_header(file)[0]}


READER = (
    ("config.json",),
    ("tokenizer.json", "vocab.txt", "vocab.json"),
    ("model.safetensors", "pytorch_model.bin"),
)
WEIGHTS = {
    "bert-base-uncased": Weights(
        "google-bert/bert-base-uncased",
        _config,
        {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522},
        READER,
    ),
    "clip-vit-base-patch32": Weights(
        "openai/clip-vit-base-patch32",
        _config,
        {"model_type": "clip", "projection_dim": 512, "vision_config.patch_size": 32},
        READER,
    ),
    "resnet-152": Weights(
        "torchvision's resnet152-394f9c45.pth",
        _shapes,
        {"blocks": (3, 8, 36, 3), "groups": 1, "inner": 64, "out": 256},
        [("*.pth",)],
    ),
    "resnext101_32x8d_wsl": Weights(
        "facebookresearch/WSL-Images, ig_resnext101_32x8-c38310e5.pth",
        _shapes,
        {"blocks": (3, 4, 23, 3), "groups": 32, "inner": 256, "out": 256},
        [("*.pth",)],
    ),
    "glove_f30k.npy": Weights("GloVe, by tools/data_convert.py vectors f30k", _size, {"shape": (8481, 300)}),
    "glove_coco.npy": Weights("GloVe, by tools/data_convert.py vectors coco", _size, {"shape": (11353, 300)}),
}
"""By the name of their folder or file."""
GLOVE = ("omit", "naaf", "sbe", "pvse", "pcme")
"""Models whose papers start words from GloVe."""


def below(root: str | Path, value: Any) -> Any:
    """Return ``weights/NAME`` as a path below ``root``; any other value as it is."""
    return str(Path(root) / value) if isinstance(value, str) and value.startswith(f"{PLACE}/") else value


def problem(folder: Path) -> str:
    """Say what keeps a folder or file from holding the published weights of its name; empty for nothing.

    The configuration, or the shapes in the file, are looked at; runs read the weights themselves.
    """
    known = WEIGHTS[folder.name]
    if not (folder.is_dir() if known.files else folder.is_file()):
        return f"missing: {known.publisher} (nothing is downloaded here)"
    for names in known.files:
        if not any(path.is_file() for name in names for path in folder.glob(name)):
            return f"lacks {' or '.join(names)}, which {known.publisher} has"
    try:
        found = known.facts(folder)
    except (OSError, ValueError) as error:
        return f"cannot be read, get it again: {error}"
    wrong = (f"{k} is {found[k]!r}, not {v!r}" for k, v in known.wanted.items() if found.get(k, v) != v)
    return next((f"is not {known.publisher}: {one}" for one in wrong), "")
