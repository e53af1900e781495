"""Suspicion of pairs by LEMoN and cleanlab, for ``detection.py``; needs torch and these alone.

    python detection_outside.py FOLDER CACHE LEMON

``FOLDER`` has unit vectors of pairs, ``CACHE`` gets the scores; ``LEMON`` may be empty.
"""

from __future__ import annotations

import pickle
import runpy
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

#: LEMoN's fixed weights.
LEMON = {"beta": 5, "gamma": 5, "tau_1_n": 0.1, "tau_2_n": 5, "tau_1_m": 0.1, "tau_2_m": 5}
CLUSTERS = 20


def worker(given: str, found: str, lemon: str) -> None:
    """Read unit vectors of pairs, write suspicion: larger is more likely wrong."""
    for path in sorted(Path(given).glob("*.npz")):
        arrays = np.load(path)
        images, captions = (torch.from_numpy(arrays[name]) for name in ("images", "captions"))
        scores = {"cleanlab, outliers": cleanlab_outliers(images, captions)}
        scores["cleanlab, labels"] = cleanlab_labels(images.numpy(), captions.numpy())
        if lemon:
            scores["LEMoN"] = lemon_scores(Path(lemon), images, captions)
        part = Path(found) / f"{path.stem}-outside.part.npz"
        np.savez(part, **scores)
        part.rename(Path(found) / f"{path.stem}-outside.npz")


def cleanlab_outliers(images: Any, captions: Any) -> Any:
    """Score pairs by cleanlab's distance to neighbours of both vectors side by side."""
    from cleanlab.outlier import OutOfDistribution

    both = torch.cat([images, captions], 1).numpy()
    return -OutOfDistribution().fit_score(features=both, verbose=False)


def cleanlab_labels(images: Any, captions: Any) -> Any:
    """Score pairs by cleanlab's label quality, the group of the caption being the class of the picture."""
    from cleanlab.rank import get_label_quality_scores
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    labels = KMeans(CLUSTERS, n_init=1, random_state=0).fit_predict(captions)
    model = LogisticRegression(C=10.0, max_iter=60, tol=1e-2)
    p = cross_val_predict(model, images, labels, cv=3, method="predict_proba")
    return -get_label_quality_scores(labels, p, method="self_confidence")


def lemon_scores(folder: Path, images: Any, captions: Any) -> Any:
    """Run the authors' script on vectors in place of its own data sets and models."""
    # What the script imports but the vectors replace: data sets, networks, tokenisers, a calibration measure.
    pairs = [(x, str(i), str(i)) for i, x in enumerate(images)]
    model = SimpleNamespace(encode_image=lambda x: x, encode_text=lambda rows: captions[rows])
    model.eval = model.to = lambda *a: model
    stubs: dict[str, dict[str, Any]] = {
        "lib.datasets.utils": {
            "get_dataset": lambda *a, **k: (pairs, pairs[:1], pairs[:1]),
            **dict.fromkeys(
                ("cifar10_labels", "cifar100_labels", "mini_imagenet_labels", "stanford_cars_labels")
            ),
        },
        "lib.models.utils": {
            "get_img_base": None,
            "algorithm_class_from_scratch": lambda *a, **k: (
                model,
                lambda texts: torch.tensor([int(text) for text in texts]),
            ),
        },
        "transformers": {"AutoTokenizer": None},
        "torchvision": {},
        "PIL": {},
        "netcal.metrics": {"ECE": None},
    }
    for name, content in stubs.items():
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(content)
    sys.path.insert(0, str(folder))
    loader, standard = torch.utils.data.DataLoader, (sys.stdout, sys.stderr)
    with tempfile.TemporaryDirectory() as out:
        sys.argv = ["run_lemon.py", "--output_dir", out, "--dataset", "mscoco", "--clip_model", "biomed_clip"]
        sys.argv.append("--skip_hparam_optim")
        # No worker processes; and the script copies what it prints into files.
        torch.utils.data.DataLoader = lambda dataset, batch_size, num_workers: loader(dataset, batch_size)  # type: ignore[assignment,misc]
        try:
            runpy.run_path(str(folder / "run_lemon.py"), run_name="__main__")
        finally:
            torch.utils.data.DataLoader = loader  # type: ignore[misc]
            sys.stdout, sys.stderr = standard
        with open(Path(out) / "res.pkl", "rb") as file:
            frame = pickle.load(file)["df"]
    from lib.metrics.utils import calc_scores_given_hparams_vectorized

    return np.asarray(calc_scores_given_hparams_vectorized(frame[frame["sset"] == "train"], LEMON))


if __name__ == "__main__":
    torch.set_num_threads(1)
    worker(*sys.argv[1:])
