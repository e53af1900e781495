"""A small model trained on the very pairs that it judges, without judging what it was trained on.

Pictures are divided into folds, and each caption goes with the picture that it claims. A model is trained on
all folds but one, with a loss that is bounded for each pair, and then embeds the captions of the fold left
out, and *all* pictures. A caption is therefore compared with every picture by a model that knew neither the
caption nor its picture.

The embedding of a picture holds its vectors by all models side by side; that of a caption holds its vector in
the place of its own model, and zeros elsewhere. The scores of the folds are comparable: in each fold vectors
are centred, and then scaled so that captions exchanged at random among the fold's pictures have cosines of
mean zero and the same spread in every fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nclib.auditing.copies import first_of, joined
from nclib.auditing.pairs import FOLDS, WIDTH
from nclib.common.files import digest
from nclib.data import Split, Vocabulary
from nclib.data.dataset import Captions
from nclib.data.tokeniser import tokenise
from nclib.methods.base import METHODS
from nclib.models import build
from nclib.noise import Mismatch
from nclib.runs.loop import Place
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.options import PairSchedule
from nclib.runs.pair_trainer import PairTrainer

Array = NDArray[Any]

LEAST = 40  # pictures, below which two folds have nothing to learn from
VALIDATION = 10  # one picture in ten of those trained on selects the epoch, at most LARGEST
LARGEST = 1000
ALIKE = 0.98  # cosine of features, from which pictures with one caption are copies
STEPS = 3000
"""Steps of training that suffice in tens of thousands of pairs; few pairs get fewer."""
EPOCHS = 20
SOON = 2000  # pairs up to which training is done in seconds


def crossfit(
    features: Array,
    texts: Sequence[str],
    image_of: NDArray[np.int64],
    usable: NDArray[np.bool_],
    *,
    folder: Path,
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
) -> tuple[Array, Array]:
    """Embed pictures and captions by models that were trained without them.

    Parameters
    ----------
    features : ndarray, float32, (N, F)
        A row per picture.
    texts : sequence of str, (M,)
    image_of : ndarray, int64, (M,)
        The picture that each caption claims.
    usable : ndarray of bool, (M,)
        Pairs to train on and to embed; the captions of others are zero.
    folder : Path
        For the models; a stopped call continues.
    seed : int
        Of folds, weights and batches.
    device : str
    progress : bool
        Print which model is trained, or read from ``folder``, and, of many pairs, a line per epoch.

    Returns
    -------
    images, captions : ndarray, float32, (N, FOLDS * WIDTH) and (M, FOLDS * WIDTH)

    Raises
    ------
    ValueError
        With fewer than 40 pictures.
    """
    rng = np.random.default_rng(seed)
    pictures = np.unique(image_of[usable])
    if len(pictures) < LEAST:
        raise ValueError(
            f"{len(pictures)} pictures are too few to train a model on ({LEAST} at least); give embeddings, "
            "or a CLIP model"
        )
    fold_of = np.full(len(features), -1)
    fold_of[rng.permutation(pictures)] = np.arange(len(pictures)) % FOLDS
    fold_of[pictures] = fold_of[_first_copies(features, texts, image_of)[pictures]]
    words = Vocabulary.from_texts(
        (t for t, good in zip(texts, usable, strict=True) if good),
        min_count=2 if usable.sum() < LARGEST else 4,
        tokenise=tokenise,
    )
    tokens = Captions(*words.encode_all(texts), words)
    scale = np.sqrt((features[pictures] ** 2).mean()) or 1.0
    x = np.where(np.isfinite(features), features / scale, 0).astype(np.float32)[:, None]  # (N, 1, F)
    images = np.zeros((len(features), FOLDS, WIDTH), np.float32)
    captions = np.zeros((len(texts), FOLDS, WIDTH), np.float32)
    for fold in range(FOLDS):
        own = np.flatnonzero(usable & (fold_of[image_of] == fold))
        others = np.flatnonzero(usable & (fold_of[image_of] != fold))
        said = f"small model {fold + 1} of {FOLDS}, on {len(others):,} pairs, to judge {len(own):,} others"
        network = _trained(x, tokens, image_of, others, seed, device, folder, said if progress else "")
        v, t = _vectors(network, x, device), _vectors(network, tokens.take(own), device)
        images[:, fold], captions[own, fold] = _comparable(v, t, image_of[own])
    images[~x.any((1, 2))] = 0  # a picture that could not be read: no vector, so no partner
    return images.reshape(len(images), -1), captions.reshape(len(captions), -1)


def _first_copies(features: Array, texts: Sequence[str], image_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first copy of every picture, (N,), whose fold it shares: no model judges what it has seen.

    Copies have equal features, or nearly equal ones and the same caption.
    """
    units = _unit(features - features.mean(0)).astype(np.float32)
    same = first_of([row.tobytes() for row in np.ascontiguousarray(features)])
    other = image_of[first_of(list(texts))]
    near = np.arange(len(features))
    alike = np.einsum("md,md->m", units[image_of], units[other]) >= ALIKE
    near[image_of[alike]] = other[alike]
    return joined(len(features), same, near)


def _comparable(v: Array, t: Array, image_of: NDArray[np.int64]) -> tuple[Array, Array]:
    """Centre the vectors of a fold, and scale those of pictures by the spread of exchanged cosines."""
    rows = np.unique(image_of)
    v, t = _unit(v - v[rows].mean(0)), _unit(t - t.mean(0))
    # All exchanges at once: the mean square of the cosines of every caption with every picture of the fold.
    spread = np.sqrt(((v[rows].T @ v[rows]) * (t.T @ t)).sum() / (len(rows) * len(t)))
    return v / max(float(spread), 1e-6), t


def _unit(x: Array) -> Array:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _trained(
    x: Array,
    tokens: Captions,
    image_of: NDArray[np.int64],
    rows: NDArray[np.int64],
    seed: int,
    device: str,
    folder: Path,
    said: str,
) -> Any:
    """Train a model on the pairs ``rows``; some of their pictures select the epoch.

    ``said`` names the model in the line that is printed; empty prints nothing.
    """
    rng = np.random.default_rng(seed)
    pictures = rng.permutation(np.unique(image_of[rows]))
    held = np.isin(image_of[rows], pictures[: max(2, min(LARGEST, len(pictures) // VALIDATION))])
    _, first = np.unique(image_of[rows[held]], return_index=True)  # a caption of each picture

    def split(name: str, chosen: NDArray[np.int64]) -> Split:
        """Return pairs as a split with one caption per picture, whose pictures may repeat."""
        return Split(name, x[image_of[chosen]], tokens.take(chosen), np.arange(len(chosen)), 1)

    train, val = split("train", rows[~held]), split("val", rows[held][first])
    batch = int(np.clip(len(train.images) // 8, 2, 128))
    steps = STEPS if len(train.images) > 10_000 else max(500, STEPS * len(train.images) // 10_000)
    schedule = PairSchedule(
        batch_size=batch,
        warmup_epochs=0,
        epochs=max(EPOCHS // 2, min(EPOCHS * 2, steps * batch // len(train.images))),
        lr=2e-3,
        decay_every=EPOCHS,
    )
    method = METHODS["plain"].factory(METHODS.options("plain")(loss="gce"))
    torch.manual_seed(seed)
    network = build(
        "bow",
        feature_dim=x.shape[2],
        vocab_size=tokens.vocabulary.size,
        n_regions=1,
        embed_dim=WIDTH,
        word_dim=WIDTH,
    )
    stamp = digest([x, tokens.tokens, tokens.offsets, image_of, rows, repr((schedule, method.options, seed))])
    pairs = NoisyPairs(train, Mismatch.draw(train.image_of, 0.0, seed=0), truth_is_known=False)
    identity = {"fingerprint": stamp, "noise": pairs.noise.checksum, "data": stamp}
    place = Place(seed, torch.device(device), folder / f"model-{stamp[:12]}", identity)
    trainer = PairTrainer(method, [network], pairs, val, schedule, place)
    if said:
        print(f"{'reading' if trainer.finished else 'training'} {said}", flush=True)
    trainer.fit(bool(said) and len(train.images) > SOON)
    trainer.load_best()
    return trainer.networks[0]


@torch.inference_mode()
def _vectors(network: Any, items: Array | Captions, device: str, size: int = 1024) -> Array:
    """Return the vectors of pictures (N, 1, F) or of captions."""
    parts = []
    for first in range(0, len(items), size):
        if isinstance(items, Captions):
            batch = items.batch(np.arange(first, min(first + size, len(items)))).to(torch.device(device))
            found = network.encode_captions(batch)
        else:
            found = network.encode_images(torch.from_numpy(items[first : first + size]).to(device))
        parts.append(found.vectors.cpu().numpy())
    return np.concatenate(parts)
