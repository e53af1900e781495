"""Damaged files for :mod:`fuzz`: a bit turned round, or an end cut off, and what is read then.

What nclib wrote must come back as it was, or with an error or a warning that names the file. Files of the
user's own may say anything, as long as they can be read, or are refused by an error that is meant for this.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies
from PIL import Image

import nclib
from nclib.common.files import SETTLED, SMALL, cache_folder, content_digest, digest
from nclib.data.readers import list_pairs
from nclib.data.row_writer import ConvertError
from nclib.runs import checkpoint, store

WORDS = ["a red teapot", "two small boats", "a dog runs", "nobody sits there", "the green hill at noon"]


def fact(value: Any) -> Any:
    """Return what is compared of a value: arrays and tensors by their digests, without times."""
    if hasattr(value, "detach"):
        return checkpoint.digest({"": value})
    if isinstance(value, np.ndarray):
        return digest(value)
    if isinstance(value, dict):
        return {str(k): fact(v) for k, v in value.items() if k != "seconds"}
    return [fact(v) for v in value] if isinstance(value, (list, tuple)) else repr(value)


def _pairs(folder: Path, **given: Any) -> Any:
    options = {"dataset": "planted", "model": "vse", "mrate": 0.4, "epochs": 1, "warmup_epochs": 1, **given}
    return nclib.run("ncr", out=str(folder), progress=False, **{"data_options": {"n_train": 32}, **options})


def _read_run(folder: Path) -> Any:
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return fact([store.load(run / "record.json").content(), _model(run)])


def _model(folder: Path) -> Any:
    model = nclib.load(folder)
    images = np.random.default_rng(0).normal(size=(3, 12, 32)).astype(np.float32)
    words = [" ".join(model.vocabulary.words[4:9]), " ".join(model.vocabulary.words[-5:])]
    return [model.score(images, words), model.pairs().to_csv(), model.settings]


def _table(folder: Path) -> None:
    records = [_pairs(folder.with_name("runs"), seed=seed) for seed in (0, 1)]
    nclib.runs.append(folder / "grid.csv", records)


def _saved(folder: Path) -> None:
    nclib.load(_pairs(folder.with_name("runs"))).save(folder)


def _noise(folder: Path) -> None:
    nclib.noise.Mismatch.draw(np.repeat(np.arange(40), 5), 0.4, seed=0).save(folder / "noise.npy")


def _read_noise(folder: Path) -> Any:
    return fact(nclib.noise.Mismatch.from_file(folder / "noise.npy", np.repeat(np.arange(40), 5)).image_of)


def _words(folder: Path) -> None:
    nclib.data.Vocabulary.from_texts(WORDS).to_json(folder / "words.json")


def _data(data: Any) -> Any:
    return fact([[s.features(np.arange(s.n_images)), s.captions.tokens] for s in data.splits.values()])


def _emoji(folder: Path) -> Any:
    return _data(nclib.data.load("emoji", size="small", n_train=16, n_val=4, n_test=4))


def _own_data(folder: Path) -> Any:
    return _data(nclib.data.load("own", pairs=folder / "pairs.csv", image_emb=folder / "x.npy"))


def _large(folder: Path) -> None:
    (folder / "large.bin").write_bytes(bytes(SMALL + 1))
    os.utime(folder / "large.bin", (0, 0))
    time.sleep(SETTLED)  # digests of files that changed a moment ago are not kept


def _audit(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 8)).astype(np.float32)
    captions = images + rng.normal(size=(60, 8)).astype(np.float32)
    return fact(nclib.audit(images=images, captions=captions, work=folder, progress=False).table.to_csv())


def _own_table(folder: Path) -> None:
    rows = [f"{i}.png,{WORDS[i % 5]} number {i}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["image,caption", *rows]) + "\n", "utf8")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32))


def _own_tar(folder: Path) -> None:
    with tarfile.open(folder / "0.tar", "w") as file:
        for i in range(4):
            picture = io.BytesIO()
            Image.new("RGB", (4, 4), (40 * i, 0, 0)).save(picture, "PNG")
            for name, data in ((f"{i}.png", picture.getvalue()), (f"{i}.txt", WORDS[i].encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))


def _list(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        found = list_pairs(folder / name, image_emb=folder / "x.npy" if name == "pairs.csv" else None)
        return fact([found.ids, found.texts, np.asarray(found.image_of), found.problems])

    return read


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


KEPT = {
    "records": Kept(lambda at: fact([one.record().content() for one in store.stored(at)]), _table),
    "run": Kept(_read_run, _pairs),
    "saved model": Kept(lambda at: fact(_model(at)), _saved),
    "noise": Kept(_read_noise, _noise),
    "vocabulary": Kept(lambda at: nclib.data.Vocabulary.from_json(at / "words.json").words, _words),
    "generated data": Kept(_emoji, cache="emoji"),
    "features made": Kept(_own_data, _own_table, cache="own"),
    "digests": Kept(lambda at: content_digest(at / "large.bin"), _large, cache="digests"),
    "audit's work": Kept(_audit),
    "own table": Kept(_list("pairs.csv"), _own_table, given=True),
    "own tar": Kept(_list("0.tar"), _own_tar, given=True),
}


@dataclass
class Shelf:
    """What was made: the folder of each kind, and what reading it gave. The copy lies beside the folder."""

    root: Path = Path()
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
            shutil.copytree(_damaged(kept, folder), folder.with_name("copy"))
            self.known[kind] = folder, result
        return self.known[kind]


SHELF = Shelf()


def begin(root: Path) -> None:
    """Make files below a new folder from now on."""
    SHELF.root, SHELF.known = root, {}


def _damaged(kept: Kept, folder: Path) -> Path:
    return cache_folder() / kept.cache if kept.cache else folder


def damages() -> Any:
    """Draw kind and number of a file, whether it is cut or a bit of it turned round, and the place."""
    number = strategies.sampled_from(range(2**20))  # evenly, unlike integers
    return strategies.fixed_dictionaries(
        {
            "kind": strategies.sampled_from(list(KEPT)),
            "file": number,
            "cut": strategies.booleans(),
            "at": number,
        }
    )


def damage_case(case: dict[str, Any]) -> str:
    """Damage a file and read it, then put everything back."""
    kind, kept = case["kind"], KEPT[case["kind"]]
    folder, wanted = SHELF.of(kind)
    copy, place = folder.with_name("copy"), _damaged(kept, folder)
    files = sorted(
        p for p in copy.rglob("*") if p.is_file() and p.stat().st_size and not p.name.endswith("lock")
    )
    file = files[case["file"] % len(files)].relative_to(copy)
    data = bytearray((copy / file).read_bytes())
    byte, bit = divmod(case["at"] * 8 * len(data) >> 20, 8)
    if case["cut"]:
        del data[byte:]
    else:
        data[byte] ^= 1 << bit
    (place / file).write_bytes(data)
    what = f"{kind}, {file.name}"
    try:
        with warnings.catch_warnings(record=True) as said, redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            found = kept.read(folder)
        if found == wanted:
            return f"{kind}: the same is read"
        if kept.given:
            return f"{kind}: read as it is"
        assert any(issubclass(w.category, UserWarning) for w in said), f"{what}: another content in silence"
        return f"{kind}: warned"
    except (ValueError, OSError, ConvertError) as error:
        text = str(error)
        assert kept.given or file.name in text or str(place) in text, (
            f"{what}: an error without its name: {text}"
        )
        return f"{kind}: named"
    except AssertionError as error:
        error.add_note(f"{file}: {'cut at' if case['cut'] else f'bit {bit} of'} byte {byte} of {len(data)}")
        raise
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(place)
        shutil.copytree(copy, place)
