"""The field's feature files: Wikipedia, NUS-WIDE (ten classes) and XMediaNet, in every published layout.

A folder (or one file) is searched for, in this order: the exchange format ``.npz`` of this package; the HDF5
files of MRL and SDML; the MATLAB files of ELRCMR, one per array; a MATLAB file with ``tr_*`` and ``te_*``
arrays; and, for Wikipedia, the original raw features with their lists. Classes of all arrays are shifted by
one common minimum, so that they start at 0, and image and text classes of a pair must agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import digest
from nclib.data.category import CategoryData, CategorySplit, category_datasets
from nclib.data.registry import check_choice

PathLike = str | os.PathLike[str]
Arrays = dict[str, np.ndarray]
SPLITS = ("train", "val", "test")
LICENCE = "as given by the publishers of the features"
WIKIPEDIA = (
    "art", "biology", "geography", "history", "literature", "media", "music", "royalty", "sport", "warfare",
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """What a published set holds: file name, pairs per split, classes."""

    name: str
    hdf5: str
    train: int
    val: int
    test: int
    n_classes: int
    label_names: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Pairs per split, as printed in the papers."""
        return self.train, self.val, self.test


SETS = {
    "wikipedia": Published(
        "wikipedia", "wiki/wiki_deep_doc2vec_data_corr_ae.h5py", 2173, 231, 462, 10, WIKIPEDIA
    ),
    "nuswide": Published("nuswide", "NUS-WIDE/nus_wide_deep_doc2vec_data_42941.h5py", 42941, 5000, 23661, 10),
    "xmedianet": Published("xmedianet", "XMediaNet/xmedianet_deep_doc2vec_data.h5py", 32000, 4000, 4000, 200),
}


# -- one reader per layout: from a path to arrays called {split}_{image,text,label,text_label} ---------


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file whatever a parser says of it: damaged ones make them raise errors of any kind."""
    try:
        yield
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} cannot be read ({said}); get it again, or let your user read it (chmod u+r)"
        ) from error


def _from_npz(path: Path) -> Arrays:
    # Opened here, since NumPy leaves a damaged archive open.
    with _reading(path), open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
        return {key.replace("valid_", "val_"): file[key] for key in file.files}


def _from_hdf5(path: Path) -> Arrays:
    h5py = _h5py()
    with _reading(path), h5py.File(path, "r") as file:
        return _deep_keys({key: file[key][()] for key in file if isinstance(file[key], h5py.Dataset)})


def _deep_keys(found: Arrays) -> Arrays:
    """Rename the arrays of MRL's files."""
    arrays: Arrays = {}
    for published, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        # The first text array wins where a file holds both spellings.
        for ours, names in (
            ("image", ("imgs_deep",)),
            ("text", ("text", "texts")),
            ("label", ("imgs_labels",)),
            ("text_label", ("texts_labels",)),
        ):
            there = [f"{published}_{name}" for name in names if f"{published}_{name}" in found]
            if there:
                arrays[f"{split}_{ours}"] = found[there[0]]
    return arrays


def _mat(path: Path) -> Arrays:
    """Read every numeric array of a MATLAB file, of either format."""
    from scipy.io import loadmat

    with _reading(path):
        try:
            content = loadmat(path)
        except NotImplementedError:  # version 7.3 is HDF5, with its axes reversed
            h5py = _h5py()
            with h5py.File(path, "r") as file:
                return {k: file[k][()].T for k in file if isinstance(file[k], h5py.Dataset)}
    return {k: v for k, v in content.items() if isinstance(v, np.ndarray)}


def _from_folder_of_mat(folder: Path) -> Arrays:
    """Six files of one variable each, and three of labels."""
    arrays = {}
    for published, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        for published_part, part in (("img", "image"), ("text", "text"), ("label", "label")):
            path = folder / f"{published}_{published_part}.mat"
            values = list(_mat(path).values())
            if len(values) != 1:
                raise ValueError(f"{path}: must hold one variable, found {len(values)}")
            arrays[f"{split}_{part}"] = values[0]
    return arrays


MAT_NAMES = {
    "image": ("fc7", "img"),
    "text": ("txt", "text"),
    "label": ("img_lab", "label"),
    "text_label": ("txt_lab",),
}


def _from_mat(path: Path) -> Arrays:
    """One file with ``tr_``, ``val_`` and ``te_`` arrays."""
    found = _mat(path)
    arrays = {}
    for published, split in (("tr", "train"), ("val", "val"), ("te", "test")):
        for ours, names in MAT_NAMES.items():
            there = [f"{published}_{name}" for name in names if f"{published}_{name}" in found]
            if there:
                arrays[f"{split}_{ours}"] = found[there[0]]
    return arrays


def _from_raw_wikipedia(path: Path) -> Arrays:
    """``raw_features.mat`` (SIFT words and topics) with the lists beside it."""
    found = _mat(path)
    arrays: Arrays = {}
    for published, split, list_name in (("tr", "train", "trainset"), ("te", "test", "testset")):
        lacks = [key for key in (f"I_{published}", f"T_{published}") if key not in found]
        if lacks:
            raise ValueError(f"{path}: there is no array {' and no '.join(lacks)}; found {', '.join(found)}")
        arrays[f"{split}_image"] = found[f"I_{published}"]
        arrays[f"{split}_text"] = found[f"T_{published}"]
        listing = path.with_name(f"{list_name}_txt_img_cat.list")
        with _reading(listing):
            lines = listing.read_text("utf8").split("\n")
            arrays[f"{split}_label"] = np.array([int(line.split()[-1]) for line in lines if line.strip()])
    return arrays


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("files in HDF5 need the package h5py; install it, or convert to .npz") from error
    return h5py


# -- finding the files ------------------------------------------------------------------------------------


def _candidates(root: Path, known: Published | None) -> Iterable[tuple[Path, Callable[[Path], Arrays]]]:
    """Yield what could hold the data below ``root``, in order of preference, with its reader."""
    if known is None:
        return
    folder, file = known.hdf5.split("/")
    yield root / f"{known.name}.npz", _from_npz
    for place in (root / file, root / folder / file, root / "data" / folder / file):
        yield place, _from_hdf5
    for place in (root, root / known.name, root / folder):
        yield place / "train_img.mat", lambda path: _from_folder_of_mat(path.parent)
    yield root / f"{known.name}.mat", _from_mat
    if known.name == "wikipedia":
        yield root / "raw_features.mat", _from_raw_wikipedia


BY_SUFFIX: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _from_npz, ".h5py": _from_hdf5, ".h5": _from_hdf5, ".hdf5": _from_hdf5, ".mat": _from_mat,
}  # fmt: skip


def _read(root: Path, known: Published | None) -> tuple[Arrays, Path]:
    if root.is_file():
        if root.name == "raw_features.mat":
            return _from_raw_wikipedia(root), root
        if root.suffix not in BY_SUFFIX:
            raise ValueError(f"{root}: must end in one of {', '.join(BY_SUFFIX)}")
        return BY_SUFFIX[root.suffix](root), root
    looked = []
    for path, reader in _candidates(root, known):
        if path.is_file():
            return reader(path), path
        looked.append(str(path.relative_to(root)))
    wanted = f"a folder with one of: {', '.join(dict.fromkeys(looked))}" if looked else "a file"
    raise FileNotFoundError(f"root={str(root)!r}: must be {wanted}, or the file itself")


def _features(arrays: Arrays, key: str, path: Path) -> np.ndarray:
    if key not in arrays:
        raise ValueError(f"{path}: there is no array for {key}; found {', '.join(sorted(arrays)) or 'none'}")
    return np.ascontiguousarray(arrays[key], np.float32)


def _whole(values: np.ndarray, what: str) -> np.ndarray:
    flat = np.asarray(values).reshape(-1)
    whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat):
        raise ValueError(f"{what}: classes must be whole numbers")
    return whole


def _labels(arrays: Arrays, path: Path) -> Arrays:
    """Return one class per pair for every split, shifted by the common minimum."""
    found = {key: _whole(values, f"{path}: {key}") for key, values in arrays.items() if key.endswith("label")}
    if not found:
        raise ValueError(f"{path}: there are no labels; found {', '.join(sorted(arrays)) or 'nothing'}")
    low = min(int(values.min()) for values in found.values() if values.size)
    labels = {}
    for split in SPLITS:
        own = found.get(f"{split}_label", found.get(f"{split}_text_label"))
        if own is None:
            continue
        other = found.get(f"{split}_text_label", own)
        if not np.array_equal(own, other):
            raise ValueError(f"{path}: image and text labels of split {split!r} differ; a pair has one class")
        labels[split] = own - low
    return labels


def _assemble(
    name: str, root: PathLike, known: Published | None, n_val: int | None, sizes: str
) -> CategoryData:
    check_choice("sizes", sizes, ("published", "any"))
    arrays, path = _read(Path(root).expanduser(), known)
    labels = _labels(arrays, path)
    parts: dict[str, tuple[np.ndarray, ...]] = {}
    for split in SPLITS:
        if f"{split}_image" in arrays or split != "val":
            if split not in labels:
                raise ValueError(f"{path}: there are no labels of split {split!r}")
            values = _features(arrays, f"{split}_image", path), _features(arrays, f"{split}_text", path)
            parts[split] = (*values, labels[split])
    if "val" not in parts:
        # As published: the first rows of the test arrays validate, the others test.
        n = n_val if n_val is not None else (known.val if known else 0)
        if not 0 < n < len(parts["test"][2]):
            raise ValueError(
                f"{path}: there are no validation arrays, so n_val must be in "
                f"1..{len(parts['test'][2]) - 1} to split the test arrays, got {n}"
            )
        parts["val"] = tuple(x[:n] for x in parts["test"])
        parts["test"] = tuple(x[n:] for x in parts["test"])
    found = tuple(len(parts[split][2]) for split in SPLITS)
    if known and sizes == "published" and found != known.sizes:
        raise ValueError(
            f"{path}: holds {found} training, validation and test pairs, published are {known.sizes}; "
            "sizes='any' accepts other numbers"
        )
    most = 1 + max(int(part[2].max()) for part in parts.values())
    n_classes = max(most, known.n_classes if known else 0)
    names = known.label_names if known and len(known.label_names) == n_classes else ()
    splits = {split: CategorySplit(split, x[0], x[1], x[2]) for split, x in parts.items()}
    content = [part for split in SPLITS for part in (split, *parts[split])]
    return CategoryData(
        name=name,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        label_names=names or tuple(f"class {k}" for k in range(n_classes)),
        checksum=digest(content),
        licence=LICENCE,
        details={"file": path.name},
    )


@category_datasets.register(
    "wikipedia", summary="Wikipedia, 10 classes; needs root=", paper="published feature files"
)
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
        Whether other numbers of pairs than the published ones are refused.

    Raises
    ------
    FileNotFoundError
        When no known file is found; all places looked at are listed.
    ValueError
        When arrays are missing or do not fit together.
    """
    return _assemble("wikipedia", root, SETS["wikipedia"], n_val, sizes)


@category_datasets.register(
    "nuswide", summary="NUS-WIDE, 10 classes; needs root=", paper="published feature files"
)
def nuswide(*, root: PathLike, n_val: int | None = None, sizes: str = "published") -> CategoryData:
    """Load NUS-WIDE features (42,941 / 5,000 / 23,661 pairs, 10 classes).

    Parameters
    ----------
    root, n_val, sizes
        As for :func:`wikipedia`; default 5,000 validation pairs.

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`wikipedia`.
    """
    return _assemble("nuswide", root, SETS["nuswide"], n_val, sizes)


@category_datasets.register(
    "xmedianet", summary="XMediaNet, 200 classes; needs root=", paper="published feature files"
)
def xmedianet(*, root: PathLike, n_val: int | None = None, sizes: str = "published") -> CategoryData:
    """Load XMediaNet features (32,000 / 4,000 / 4,000 pairs, 200 classes).

    Parameters
    ----------
    root, n_val, sizes
        As for :func:`wikipedia`; default 4,000 validation pairs. The features that ELRCMR published differ
        from those of MRL: results on the two cannot be compared.

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`wikipedia`.
    """
    return _assemble("xmedianet", root, SETS["xmedianet"], n_val, sizes)


@category_datasets.register("category_file", summary="features of your own, in one .npz file; needs root=")
def category_file(*, root: PathLike, n_val: int | None = None) -> CategoryData:
    """Load features from one file: the way in for CLIP features or data of one's own.

    Parameters
    ----------
    root : path
        ``.npz`` with ``train_image, train_text, train_label``, likewise ``valid_*`` and ``test_*`` (float32
        features with a row per pair, whole numbers as classes); HDF5 and MATLAB files as published work too.
    n_val : int, optional
        Without ``valid_*`` arrays, the first ``n_val`` test pairs validate.

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`wikipedia`.
    """
    return _assemble("category_file", root, None, n_val, "any")
