"""Flickr8K as :mod:`nclib.data.prepare` makes it: photographs, human captions, official splits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from nclib.common.files import digest
from nclib.data.dataset import Dataset
from nclib.data.feature_files import LAYOUTS, MANIFEST, PathLike, Reading, find_folder, read_manifest
from nclib.data.region_features import load_files
from nclib.data.registry import register
from nclib.evaluation import Judgements

# Root mean square on the first axes, per split, of the features that the recorded runs used.
RECORDED = {
    "train": (6.02, 3.718, 3.125, 2.826, 2.641, 2.634, 2.421, 2.332),
    "dev": (6.012, 3.775, 3.065, 2.82, 2.653, 2.531, 2.43, 2.357),
    "test": (6.014, 3.729, 3.022, 2.841, 2.673, 2.628, 2.414, 2.324),
}
TOLERANCE = 0.01  # relative; rounding moves these numbers by 1e-5, the choice of photographs by up to 4 %
EACH = 5  # captions of a photograph
# File of each source of judgements, and the least rating of a pair that fits.
JUDGED = {"experts": ("ExpertAnnotations.txt", 2.5), "crowd": ("CrowdFlowerAnnotations.txt", 0.5)}


@register(
    "f8k",
    summary="Flickr8K, 4 x 4 cells of photographs; needs root=",
    paper="Hodosh et al., JAIR 2013",
)
def f8k(*, root: PathLike) -> Dataset:
    """Load Flickr8K from features that ``nclib data prepare f8k`` made (6,000 / 1,000 / 1,000 photographs).

    Where the published files of judgements (:func:`read_judgements`) lie beside the features,
    ``test.details["judgements"]`` holds them.

    Two machines prepare features that differ by rounding. The checksum covers the recipe, the names of the
    photographs and the captions, so that it is the same on both; features of another size (made from
    other files, or by another recipe) have another checksum. Every file must have the digest that the
    preparation noted.

    Parameters
    ----------
    root : path
        The folder that was prepared, or a folder that holds it as ``f8k_precomp``.

    Returns
    -------
    Dataset
        Five captions per photograph, 16 cells of 256 numbers; images stay on disk.

    Raises
    ------
    FileNotFoundError
        When files are missing; all of them are listed.
    ValueError
        When the preparation was not finished, or files were changed after it.
    """
    layout, reading = LAYOUTS["f8k"], Reading()
    folder = find_folder(layout, Path(root).expanduser(), reading.splits.values())
    dataset = load_files(layout, root, reading)
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(
            f"{folder} holds no finished {MANIFEST}; give the command nclib data prepare f8k again"
        )
    if judged := read_judgements(folder):
        details = {**dataset.test.details, "judgements": judged}
        dataset = dataclasses.replace(dataset, test=dataclasses.replace(dataset.test, details=details))
    summary = [value for name in ("train", "dev", "test") for value in manifest["summary"][name]]
    recorded = [value for values in RECORDED.values() for value in values]
    same = len(summary) == len(recorded) and np.allclose(summary, recorded, rtol=TOLERANCE)
    parts = [manifest["recipe"], manifest["content"], "" if same else json.dumps(manifest["summary"])]
    details = {**dataset.details, "content": dataset.checksum}  # of these very files
    return dataclasses.replace(dataset, checksum=digest("\n".join(parts)), details=details)


def read_judgements(folder: Path) -> dict[str, Judgements]:
    """Read the published judgements of test pairs from a prepared folder.

    Parameters
    ----------
    folder : path
        With ``test_ids.txt``, and ``ExpertAnnotations.txt`` or ``CrowdFlowerAnnotations.txt`` as published.

    Returns
    -------
    dict of str to Judgements
        ``experts``: mean of three ratings from 1 to 4, a pair fits from 2.5 on; ``crowd``: share of yes, a
        pair fits from one half on. A source without its file is left out.

    Raises
    ------
    ValueError
        When a line cannot be read, or names a picture or caption outside the test split.
    """
    there = {s: values for s, values in JUDGED.items() if (folder / values[0]).is_file()}
    names = (folder / "test_ids.txt").read_text("utf8").splitlines() if there else []
    row_of = {name: row for row, name in enumerate(names)}
    judged = {}
    for source, (file, fits_from) in there.items():
        image, caption, rating = [], [], []
        for number, line in enumerate((folder / file).read_text("utf8").splitlines(), 1):
            try:
                picture, text, *votes = line.split("\t")
                of, k = text.rsplit("#", 1)
                image.append(row_of[picture])
                caption.append(row_of[of] * EACH + range(EACH).index(int(k)))
                one, two, three = map(float, votes)
                rating.append((one + two + three) / 3 if source == "experts" else one)
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{folder / file}, line {number}: not a judgement of a test pair ({error}); copy the "
                    "published file again, or take it out of the folder"
                ) from None
        judged[source] = Judgements(np.array(image), np.array(caption), np.array(rating), fits_from)
    return judged


def summarise(features: np.ndarray) -> list[float]:
    """Return the root mean square of features on each of their first eight axes.

    Parameters
    ----------
    features : ndarray, (N, R, D)

    Returns
    -------
    list of float
        They do not depend on the signs of the axes.
    """
    first = np.asarray(features[:, :, :8], np.float64)
    return [round(float(value), 6) for value in np.sqrt(np.square(first).mean((0, 1)))]
