"""Feature files of category retrieval: Wikipedia, NUS-WIDE (ten classes), XMediaNet, and files of one's own.

A folder (or one file) is searched for, in this order: the exchange format ``.npz`` of this package; the HDF5
files of MRL and SDML; and, for Wikipedia, the original raw features with their lists. Classes of all arrays
are shifted by one common minimum, so that they start at 0, and image and text classes of a pair must agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nclib.common.checks import check_choice, check_count, check_squares
from nclib.common.files import digest
from nclib.data.category_data import CategoryData, CategorySplit
from nclib.data.registry import register

PathLike = str | os.PathLike[str]
Arrays = dict[str, np.ndarray]
Pairs = tuple[np.ndarray, ...]  # image features, text features, classes
SPLITS = ("train", "val", "test")
PARTS = ("image", "text", "label", "text_label")
IN_HDF5 = {  # behind {train,valid,test}_
    "imgs_deep": "image",
    "text": "text",
    "texts": "text",
    "imgs_labels": "label",
    "texts_labels": "text_label",
}
SOURCE = "feature files of the official codes"
WIKIPEDIA = (
    "art", "biology", "geography", "history", "literature", "media", "music", "royalty", "sport", "warfare",
)  # fmt: skip


@dataclass(frozen=True)
class FeatureSet:
    """Feature set of the papers."""

    name: str
    hdf5: str
    sizes: tuple[int, int, int]
    n_classes: int
    label_names: tuple[str, ...] = ()


SETS = {
    known.name: known
    for known in (
        FeatureSet("wikipedia", "wiki/wiki_deep_doc2vec_data_corr_ae.h5py", (2173, 231, 462), 10, WIKIPEDIA),
        FeatureSet("nuswide", "NUS-WIDE/nus_wide_deep_doc2vec_data_42941.h5py", (42941, 5000, 23661), 10),
        FeatureSet("xmedianet", "XMediaNet/xmedianet_deep_doc2vec_data.h5py", (32000, 4000, 4000), 200),
    )
}


# One reader per layout: from a path to arrays called {split}_{image,text,label,text_label}.


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in every error: damaged files make parsers raise errors of any kind."""
    try:
        yield
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:
        # Only the first line and sentence: NumPy goes on to advise loading with less care.
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        said = said.splitlines()[0].split(". ")[0]
        raise ValueError(
            f"{path} cannot be read ({said}); get it again, or let your user read it (chmod u+r)"
        ) from None


def _from_npz(path: Path) -> Arrays:
    # Opened here, since NumPy leaves a damaged archive open.
    with _reading(path), open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
        return {key.replace("valid_", "val_"): file[key] for key in file.files}


def _from_hdf5(path: Path) -> Arrays:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("files in HDF5 need the package h5py; install it, or convert to .npz") from error
    arrays: Arrays = {}
    with _reading(path), h5py.File(path, "r") as file:
        for key in file:
            split, _, part = key.replace("valid_", "val_").partition("_")
            if part in IN_HDF5:
                arrays[f"{split}_{IN_HDF5[part]}"] = file[key][()]
    return arrays


def _from_raw_wikipedia(path: Path) -> Arrays:
    """Read ``raw_features.mat`` (SIFT words and topics) with the lists beside it."""
    from scipy.io import loadmat

    with _reading(path):
        raw = loadmat(path)
    arrays: Arrays = {}
    for theirs, split, list_name in (("tr", "train", "trainset"), ("te", "test", "testset")):
        names = {f"I_{theirs}": f"{split}_image", f"T_{theirs}": f"{split}_text"}
        arrays |= {own: raw[name] for name, own in names.items() if name in raw}
        listing = path.with_name(f"{list_name}_txt_img_cat.list")
        with _reading(listing):
            lines = listing.read_text("utf8").split("\n")
            arrays[f"{split}_label"] = np.array([int(line.split()[-1]) for line in lines if line.strip()])
    return arrays


Reader = Callable[[Path], Arrays]
BY_SUFFIX: dict[str, Reader] = {
    ".npz": _from_npz,
    **dict.fromkeys((".h5py", ".h5", ".hdf5"), _from_hdf5),
}


def _read(root: Path, known: FeatureSet | None) -> tuple[Arrays, Path]:
    if root.is_file():
        if root.name == "raw_features.mat":
            return _from_raw_wikipedia(root), root
        if root.suffix not in BY_SUFFIX:
            raise ValueError(
                f"{root}: must end in one of {', '.join(BY_SUFFIX)}; save arrays of other files by np.savez"
            )
        return BY_SUFFIX[root.suffix](root), root
    candidates: dict[Path, Reader] = {}  # in order of preference
    if known:
        folder, file = known.hdf5.split("/")
        candidates[root / f"{known.name}.npz"] = _from_npz
        for place in (root, root / folder, root / "data" / folder):
            candidates[place / file] = _from_hdf5
        if known.name == "wikipedia":
            candidates[root / "raw_features.mat"] = _from_raw_wikipedia
    for path, reader in candidates.items():
        if path.is_file():
            return reader(path), path
    looked = ", ".join(str(path.relative_to(root)) for path in candidates)
    wanted = f"a folder with one of: {looked}" if looked else "a file"
    raise FileNotFoundError(f"root={str(root)!r}: must be {wanted}, or the file itself")


def _pairs(arrays: Arrays, path: Path) -> dict[str, Pairs]:
    """Return the pairs of each split; a file may lack validation arrays, but no others."""
    classes = {key: np.asarray(a).reshape(-1) for key, a in arrays.items() if key.endswith("label")}
    for key, values in classes.items():
        if not np.array_equal(values, values.astype(np.int64)):
            raise ValueError(f"{path}: {key}: classes must be whole numbers")
    low = min((values.min() for values in classes.values() if values.size), default=0)
    pairs: dict[str, Pairs] = {}
    for split in SPLITS:
        if split == "val" and "val_image" not in arrays:
            continue
        image, text, own, other = (f"{split}_{part}" for part in PARTS)
        own = own if own in arrays or other not in arrays else other
        if lacks := [key for key in (image, text, own) if key not in arrays]:
            there = ", ".join(sorted(arrays)) or "nothing"
            raise ValueError(f"{path}: there is no array for {' and no '.join(lacks)}; found {there}")
        if not np.array_equal(classes[own], classes.get(other, classes[own])):
            raise ValueError(f"{path}: image and text labels of split {split!r} differ; a pair has one class")
        with np.errstate(over="ignore"):  # of float64; the check names what became infinite
            features = [np.ascontiguousarray(arrays[key], np.float32) for key in (image, text)]
        for key, values in zip((image, text), features, strict=True):
            check_squares(f"{path}: {key}, row", values)
        pairs[split] = (*features, classes[own].astype(np.int64) - int(low))
    return pairs


def _load(name: str, root: PathLike, n_val: int | None, sizes: str = "any") -> CategoryData:
    # 1. find the file and read its arrays, whatever its layout; 2. join them to pairs per split;
    # 3. cut validation pairs off the test pairs where the file has none; 4. compare with the papers.
    check_choice("sizes", sizes, ("published", "any"))
    known = SETS.get(name)
    arrays, path = _read(Path(root).expanduser(), known)
    pairs = _pairs(arrays, path)
    if "val" not in pairs:
        n, test = n_val if n_val is not None else (known.sizes[1] if known else 0), pairs["test"]
        check_count(f"{path} has no validation arrays, only test arrays: n_val", n, 1, len(test[2]) - 1)
        # as the official codes do: the first n rows validate, the others test
        pairs["val"], pairs["test"] = tuple(a[:n] for a in test), tuple(a[n:] for a in test)
    sizes_there = tuple(len(pairs[split][2]) for split in SPLITS)
    if known and sizes == "published" and sizes_there != known.sizes:
        raise ValueError(
            f"{path}: holds {sizes_there} training, validation and test pairs, published are {known.sizes}; "
            "sizes='any' accepts other numbers"
        )
    n_classes = max(known.n_classes if known else 0, *(1 + int(p[2].max()) for p in pairs.values()))
    names = known.label_names if known and len(known.label_names) == n_classes else ()
    splits = {s: CategorySplit(s, images, texts, labels) for s, (images, texts, labels) in pairs.items()}
    return CategoryData(
        name=name,
        **splits,
        label_names=names or tuple(f"class {k}" for k in range(n_classes)),
        checksum=digest(part for split in SPLITS for part in (split, *pairs[split])),
        details={"file": path.name},
    )


@register("wikipedia", task="categories", summary="Wikipedia, 10 classes; needs root=", paper=SOURCE)
def wikipedia(*, root: PathLike, n_val: int | None = None, sizes: str = "published") -> CategoryData:
    """Load Wikipedia features (2,173 / 231 / 462 pairs, 10 classes).

    Parameters
    ----------
    root : path
        The file, or a folder that holds it; see this module's documentation for the layouts. The original raw
        features (128 visual words, 10 topics) are read too, and are far weaker than VGG-19 and Doc2Vec.
    n_val : int, optional
        Without validation arrays, the first ``n_val`` test pairs validate and the others test; default 231.
    sizes : {"published", "any"}
        Whether other numbers of pairs than those of the papers are refused.

    Raises
    ------
    FileNotFoundError, ValueError
        When no known file is found (all places are listed), or arrays are missing or do not fit together.
    """
    return _load("wikipedia", root, n_val, sizes)


@register("nuswide", task="categories", summary="NUS-WIDE, 10 classes; needs root=", paper=SOURCE)
def nuswide(*, root: PathLike, n_val: int | None = None, sizes: str = "published") -> CategoryData:
    """Load NUS-WIDE features (42,941 / 5,000 / 23,661 pairs, 10 classes).

    Parameters, result and errors as for :func:`wikipedia`; default 5,000 validation pairs.
    """
    return _load("nuswide", root, n_val, sizes)


@register("xmedianet", task="categories", summary="XMediaNet, 200 classes; needs root=", paper=SOURCE)
def xmedianet(*, root: PathLike, n_val: int | None = None, sizes: str = "published") -> CategoryData:
    """Load XMediaNet features (32,000 / 4,000 / 4,000 pairs, 200 classes).

    Parameters, result and errors as for :func:`wikipedia`; default 4,000 validation pairs. The features of
    ELRCMR's official code differ from those of MRL: results on the two cannot be compared.
    """
    return _load("xmedianet", root, n_val, sizes)


@register("category_file", task="categories", summary="features of your own, in one .npz file; needs root=")
def category_file(*, root: PathLike, n_val: int | None = None) -> CategoryData:
    """Load features from one file, CLIP features or data of one's own; errors as :func:`wikipedia`.

    Parameters
    ----------
    root : path
        ``.npz`` with ``train_image, train_text, train_label``, likewise ``valid_*`` and ``test_*`` (float32
        features with a row per pair, whole numbers as classes); the HDF5 layout works too.
    n_val : int, optional
        Without ``valid_*`` arrays, the first ``n_val`` test pairs validate.
    """
    return _load("category_file", root, n_val)
