"""A bit turned round, or an end cut off, in any file that is read again.

What nclib wrote must come back as it was, or with an error or a warning that names the file. Files of the
user's own may say anything, as long as they can be read, or are refused by an error that is meant for this.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from small import fact

import nclib
from nclib.common.files import SETTLED, SMALL, cache_folder, content_digest
from nclib.common.row_writer import ConvertError
from nclib.readers import list_pairs
from nclib.runs import store

WORDS = ["a red teapot", "two small boats", "a dog runs", "nobody sits there", "the green hill at noon"]


def run(folder: Path, **given: Any) -> Any:
    options = {"dataset": "planted", "model": "vse", "mrate": 0.4, "epochs": 1, "warmup_epochs": 1, **given}
    return nclib.run("ncr", out=str(folder), progress=False, **{"data_options": {"n_train": 32}, **options})


def read_run(folder: Path) -> Any:
    (one,) = (path for path in folder.iterdir() if path.is_dir())
    return fact([store.load(one / "record.json").content(), read_model(one)])


def read_model(folder: Path) -> Any:
    model = nclib.load(folder)
    images = np.random.default_rng(0).normal(size=(3, 12, 32)).astype(np.float32)
    words = [" ".join(model.vocabulary.words[4:9]), " ".join(model.vocabulary.words[-5:])]
    return fact([model.score(images, words), model.pairs().to_csv()])


def make_table(folder: Path) -> None:
    records = [run(folder.with_name("runs"), seed=seed) for seed in (0, 1)]
    nclib.runs.append(folder / "grid.csv", records)


def make_noise(folder: Path) -> None:
    nclib.noise.Mismatch.draw(np.repeat(np.arange(40), 5), 0.4, seed=0).save(folder / "noise.npy")


def read_noise(folder: Path) -> Any:
    return fact(nclib.noise.Mismatch.from_file(folder / "noise.npy", np.repeat(np.arange(40), 5)).image_of)


def make_words(folder: Path) -> None:
    nclib.data.Vocabulary.from_texts(WORDS).to_json(folder / "words.json")


def read_data(name: str, **options: Any) -> Any:
    splits = nclib.data.load(name, **options).splits.values()
    return fact([[s.features(np.arange(s.n_images)), s.captions.tokens] for s in splits])


def make_large(folder: Path) -> None:
    (folder / "large.bin").write_bytes(bytes(SMALL + 1))
    os.utime(folder / "large.bin", (0, 0))
    time.sleep(SETTLED)  # digests of files that changed a moment ago are not kept


def read_audit(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 8)).astype(np.float32)
    captions = images + rng.normal(size=(60, 8)).astype(np.float32)
    return fact(nclib.audit(images=images, captions=captions, work=folder, progress=False).table.to_csv())


def make_own(folder: Path) -> None:
    rows = [f"{i}.png,{WORDS[i % 5]} number {i}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["image,caption", *rows]) + "\n", "utf8")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32))


def read_list(folder: Path) -> Any:
    found = list_pairs(folder / "pairs.csv", image_emb=folder / "x.npy")
    return fact([found.ids, found.texts, np.asarray(found.image_of), found.problems])


@dataclass(frozen=True)
class Kept:
    """Files, and what is read from them.

    Parameters
    ----------
    read : callable
        Of the folder in which they were made; the result is compared.
    make : callable, optional
        Writes files into a folder; without it, reading does.
    given : bool
        Whether they are the user's own, and may say anything.
    cache : str
        Part of the cache folder that is damaged in place of that folder.
    """

    read: Callable[[Path], Any]
    make: Callable[[Path], Any] | None = None
    given: bool = False
    cache: str = ""

    def place(self, folder: Path) -> Path:
        """Return the folder whose files are damaged."""
        return cache_folder() / self.cache if self.cache else folder


KEPT = {
    "records": Kept(lambda at: fact([r.record().content() for r in store.stored_records(at)]), make_table),
    "run": Kept(read_run, run),
    "noise": Kept(read_noise, make_noise),
    "vocabulary": Kept(lambda at: nclib.data.Vocabulary.from_json(at / "words.json").words, make_words),
    "generated data": Kept(
        lambda at: read_data("emoji", size="small", n_train=16, n_val=4, n_test=4), cache="emoji"
    ),
    "features made": Kept(
        lambda at: read_data("own", pairs=at / "pairs.csv", image_emb=at / "x.npy"), make_own, cache="own"
    ),
    "digests": Kept(lambda at: content_digest(at / "large.bin"), make_large, cache="digests"),
    "audit's work": Kept(read_audit),
    "own table": Kept(read_list, make_own, given=True),
}


@dataclass
class Shelf:
    """What was made: the folder of each kind, and what reading it gave. A copy lies beside the folder."""

    root: Path
    known: dict[str, tuple[Path, Any]] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[Path, Any]:
        """Return folder and result of a kind of files, made when they are first asked for."""
        if kind not in self.known:
            kept, folder = KEPT[kind], self.root / re.sub(r"\W+", "-", kind) / "live"
            folder.mkdir(parents=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if kept.make:
                    kept.make(folder)
                kept.read(folder)
                result = kept.read(folder)
            shutil.copytree(kept.place(folder), folder.with_name("copy"))
            self.known[kind] = folder, result
        return self.known[kind]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    root = tmp_path_factory.mktemp("shelf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_CACHE", str(root / "cache"))
        yield Shelf(root)


NUMBERS = st.sampled_from(range(2**20))  # evenly, unlike integers


@pytest.mark.slow
@given(kind=st.sampled_from(list(KEPT)), number=NUMBERS, at=NUMBERS, cut=st.booleans())
def test_a_damaged_file_is_noticed_and_named(
    shelf: Shelf, kind: str, number: int, at: int, cut: bool
) -> None:
    kept, (folder, wanted) = KEPT[kind], shelf.of(kind)
    copy, place = folder.with_name("copy"), kept.place(folder)
    files = sorted(
        p for p in copy.rglob("*") if p.is_file() and p.stat().st_size and not p.name.endswith("lock")
    )
    file = files[number % len(files)].relative_to(copy)
    data = bytearray((copy / file).read_bytes())
    byte, bit = divmod(at * 8 * len(data) >> 20, 8)
    if cut:
        del data[byte:]
    else:
        data[byte] ^= 1 << bit
    note(f"{kind}, {file}: {'cut at' if cut else f'bit {bit} of'} byte {byte}")
    (place / file).write_bytes(data)
    try:
        with warnings.catch_warnings(record=True) as said, redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            found = kept.read(folder)
        noticed = found == wanted or any(issubclass(w.category, UserWarning) for w in said)
    except (ValueError, OSError, ConvertError) as error:
        noticed = file.name in str(error) or str(place) in str(error)
    finally:
        shutil.rmtree(place)
        shutil.copytree(copy, place)
    assert noticed or kept.given
