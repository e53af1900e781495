"""How well scores find wrong pairs, beside LEMoN and cleanlab, on drawn noise and on people's judgements.

    python book/bench/detection.py --out detection.json                       # scenes, small: about a minute
    python book/bench/detection.py --out exchange.json --full --f8k DATA --wikipedia WIKI --cache CACHE \\
        --outside PYTHON --lemon LEMON                                        # half an hour of a core
    python book/bench/detection.py --out judged.json --part judged --f8k DATA --judgements RAW --cache CACHE
    python book/bench/detection.py --out posteriors.json --part posteriors --f8k DATA --cache CACHE

The stored results are ``book/measured/audit_{exchange,judged,posteriors}.json``. ``DATA`` holds Flickr8K as
``nclib data prepare f8k`` leaves it, ``WIKI`` the raw Wikipedia features, ``RAW`` the publisher's judgements
and lists of names; ``CACHE`` keeps embeddings between calls. ``LEMON`` is a checkout of MLforHealth/LEMoN and
``PYTHON`` an interpreter with torch, faiss and cleanlab; without them their rows are missing.

``exchange``: pairs of each data set are made wrong in one way (see ``detection_pairs.NOISES``), embedded, and
audited with every score and with ``auto``. ``f8k`` and ``emoji`` have five captions per picture,
``wikipedia`` one; their embeddings come from linear models of the wrong pairs themselves, cross-fitted (by
the package's own ``crossfit``; ridge regression for ``wikipedia``, whose captions are ten numbers).
``f8k, given`` has one caption per picture and a linear model that was fitted to other photographs with right
captions, as embeddings from elsewhere are. The row ``standardised`` is the smallest audit: each
cosine against those of its caption and of its picture with random others, calibrated as the others are. LEMoN
is ``run_lemon.py`` of its authors, unchanged, with the fixed weights of its notebooks (5, 5, 0.1, 5), fed
with the same vectors. cleanlab has no issue type for pairs: its out-of-distribution score sees picture and
caption vector side by side, its label check (self-confidence) takes one of twenty groups of captions as the
class of a picture.

``judged``: linear models fitted to the training split, clean or with exchanged pictures, judge test pairs
that people judged. ``posteriors``: the audit of the very pairs on which recorded runs of robust methods
computed P(matched); those numbers are in the records, only the audit's are made here.

Measures: ``detection_pairs.measures``; ``share_error`` is the estimated minus the true share of wrong pairs,
``share_covered`` whether the interval holds it; ``partner`` the share of the ``proposed`` partners that are
right, ``partner_stated`` the probability that the audit states for them, ``partner_recall`` the share of the
wrong pairs with a right picture here that get it proposed.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_common import command, write_json
from detection_pairs import (
    NOISES,
    Noisy,
    articles,
    cross_fitted,
    encode,
    everything,
    fitted,
    measures,
    photographs,
    scenes,
)
from sklearn.mixture import GaussianMixture

import nclib
from nclib import data
from nclib.auditing import SCORES
from nclib.noise import Mismatch, mismatch

Row = dict[str, Any]
RATE, SEEDS = 0.2, 3
GIVEN = "f8k, given"


# ---------------------------------------------------------------------------------- other people's programs


def outsiders(options: argparse.Namespace, pairs: dict[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    """Return suspicion by LEMoN and cleanlab, (M,) each, by the name of the pairs; a process of its own.

    ``pairs`` holds unit vectors of the claimed pictures and of the captions.
    """
    if not options.outside:
        return {name: {} for name in pairs}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.cache or made)
        missing = [name for name in pairs if not (folder / f"{name}-outside.npz").is_file()]
        for name in missing:
            np.savez(Path(made) / f"{name}.npz", images=pairs[name][0], captions=pairs[name][1])
        if missing:
            file, lemon = Path(__file__).with_name("detection_outside.py"), options.lemon or ""
            words = [options.outside, file, made, folder.resolve(), lemon]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=made)
        found = {}
        for name in pairs:
            with np.load(folder / f"{name}-outside.npz") as arrays:
                found[name] = dict(arrays)
    return found


# ---------------------------------------------------------------------------------------------- the audit


def audited(images: Any, captions: Any, noisy: Any, seed: int) -> list[Row]:
    """Return a row of measures for every score, and the audit's own of ``cosine`` and ``auto``."""
    wrong = noisy.wrong
    rows: list[Row] = []
    calls: dict[str, Row] = {name: {"score": name} for name in ("cosine", "standardised", "auto")}
    if noisy.type is not None:
        calls["auto, by its type"] = {"by": noisy.type}
    for name, options in calls.items():
        began = time.process_time()
        found = nclib.audit(
            images=images, captions=captions, image_of=noisy.image_of, seed=seed, progress=False, **options
        )
        seconds = time.process_time() - began
        table = found.table
        checked = found.check(wrong, noisy.right)
        row: Row = {"score": name, **measures(-table["rank"].to_numpy(), wrong, table["p_wrong"])}
        row |= {
            "share": found.share.value,
            "share_error": found.share.value - wrong.mean(),
            "share_covered": float(found.share.low <= wrong.mean() <= found.share.high),
            "share_width": found.share.high - found.share.low,
            "warned": float(found.ask_first),
            "partner": checked["partner_accuracy"],
            "partner_stated": checked["partner_stated"],
            "partner_recall": checked["partner_recall"],
            "proposed": checked["n_proposed"],
            "seconds": seconds,
        }
        if name == "auto":
            row |= {"picked": found.score, "patterns": patterns(found, wrong)}
        rows.append(row)
    given = found.belief.context, np.arange(len(wrong)), noisy.image_of
    rows.append({"score": "two Gaussians", **two_gaussians(SCORES["cosine"](*given), wrong)})
    for score, function in SCORES.items():
        if score not in calls:
            rows.append({"score": score, **measures(-function(*given), wrong)})
    return rows


def two_gaussians(cosine: Any, wrong: Any) -> Row:
    """Return measures of a mixture of two normal distributions of the cosine."""
    mixture = GaussianMixture(2, random_state=0).fit(cosine[:, None])
    p = mixture.predict_proba(cosine[:, None])[:, int(mixture.means_[:, 0].argmin())]
    of_share = {"share": p.mean(), "share_error": p.mean() - wrong.mean()}
    return {**measures(p, wrong, p), **of_share}


def patterns(found: Any, wrong: Any) -> Row:
    """Return by kind of pattern how many wrong and how many right pairs it holds."""
    row_of = {name: k for k, name in enumerate(found.pairs.ids)}
    by_kind: Row = {}
    for pattern in found.patterns:
        rows = [row_of[name] for name in pattern["ids"]]
        count = by_kind.setdefault(pattern["kind"], {"found": 0, "wrong": 0, "right": 0})
        count["found"] += 1
        count["wrong"] += int(wrong[rows].sum())
        count["right"] += int((~wrong[rows]).sum())
    return by_kind


def cached(options: argparse.Namespace, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return named arrays from the cache, or make and keep them."""
    if not options.cache:
        return make()
    path = Path(options.cache) / f"{name}.npz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, **make())
        part.rename(path)
    with np.load(path) as arrays:
        return dict(arrays)


def exchange(options: argparse.Namespace) -> list[Row]:
    """Audit every data set with every kind of noise."""
    rows: list[Row] = []
    for name, seed in itertools.product(cases(options), range(options.seeds)):
        found = material(options, name, seed)
        made: dict[str, tuple[Row, Any, Any, Any]] = {}
        for noise, rate in cases(options)[name]:
            noisy = NOISES[noise](found, rate, np.random.default_rng([seed, 4]))
            key = f"{name}-{noise}-{rate}-{seed}-{options.pictures}".replace(", ", "_")
            make = partial(embedded, options, name, found, noisy, seed)
            about = {"data": name, "noise": noise, "rate": rate, "seed": seed, "pairs": len(noisy.wrong)}
            made[key] = (about, noisy, *cached(options, key, make).values())
        vectors = {key: (images[n.image_of], captions) for key, (_, n, images, captions) in made.items()}
        others = outsiders(options, vectors)
        for key, (about, noisy, images, captions) in made.items():
            new = audited(images, captions, noisy, seed)
            for score, value in others[key].items():
                new.append({"score": score, **measures(value, noisy.wrong)})
            rows += [about | row for row in new]
            print(about, {row["score"]: round(row["auroc"], 3) for row in new}, flush=True)
    return rows


def cases(options: argparse.Namespace) -> dict[str, list[tuple[str, float]]]:
    """Return noise and rate of every data set that is there."""
    each = [(noise, RATE) for noise in NOISES]
    found = {GIVEN: [*each, *(("random", rate) for rate in (0.05, 0.4, 0.6))], "f8k": each[:2]}
    found = found if options.f8k else {}
    found |= {"wikipedia": each} if options.wikipedia else {}
    return found | {"emoji": each}


def material(options: argparse.Namespace, name: str, seed: int) -> Any:
    """Return the right pairs of a data set."""
    n = options.pictures
    if name == GIVEN:
        return photographs(options.f8k, seed, 2000, 1, 1000)
    if name == "f8k":
        return photographs(options.f8k, seed, 2 * n, 5, n)
    if name == "wikipedia":
        return articles(options.wikipedia, seed)
    return scenes(seed, n, 5, n)


def embedded(options: argparse.Namespace, name: str, found: Any, noisy: Any, seed: int) -> dict[str, Any]:
    """Return vectors of the pictures and captions of a case."""
    if name != GIVEN:
        return named(cross_fitted(found, noisy, seed=seed))
    return named(encode(elsewhere(options.f8k, seed), found, noisy.caption))


@cache
def elsewhere(root: Path, seed: int) -> Any:
    """Return encoders that were fitted to photographs that are not audited, with right captions."""
    other = photographs(root, seed, 3000, 5, 0, first=3000)
    return fitted(other, other.image_of, np.arange(len(other.image_of)))


def named(vectors: tuple[Any, Any]) -> dict[str, Any]:
    """Return vectors of pictures and captions under their names."""
    return dict(zip(("images", "captions"), vectors, strict=True))


def judged(options: argparse.Namespace) -> list[Row]:
    """Audit test pairs that people judged, with encoders of the training split.

    ``of`` is "crowd" or "experts": every judged pair, ranked by a score; "mixed": all pairs that the crowd
    accepts and so many that it rejects that 40 % are wrong, audited as a set of its own; "published": the
    published pairs with caption #2, the only caption that was judged.
    """
    whole = data.load("f8k", root=options.f8k)
    found, test = everything(whole.train), everything(whole.test)
    rows: list[Row] = []
    for rate, seed in itertools.product((0.0, 0.4, 0.6), range(options.seeds)):

        def encoded(rate: float = rate, seed: int = seed) -> dict[str, Any]:
            claimed = mismatch(found.image_of, rate, seed=seed, protocol="images")
            encoders = fitted(found, claimed, np.arange(len(claimed)))
            return named(encode(encoders, test, np.arange(len(test.image_of))))

        images, captions = cached(options, f"test-{rate}-{seed}", encoded).values()
        new = by_people(options.judgements, images, captions[2::5], seed, rate == 0)
        rows += [{"trained_at": rate, "seed": seed, **row} for row in new]
        print(rate, seed, [(row["of"], row["score"], row.get("auroc")) for row in new], flush=True)
    return rows


def by_people(folder: Path, images: Any, captions: Any, seed: int, clean: bool) -> list[Row]:
    """Return rows of measures against people's judgements of caption #2 of the test photographs."""
    names = (folder / "test_names.txt").read_text("utf8").split()
    place = {name: row for row, name in enumerate(names)}
    ids = [f"{name}#2" for name in names]
    published = nclib.audit(images=images, captions=captions, ids=ids, seed=seed, progress=False)
    truth: dict[str, tuple[Any, Any, Any]] = {}
    for of, file in (("crowd", "CrowdFlowerAnnotations.txt"), ("experts", "ExpertAnnotations.txt")):
        lines = [line.split() for line in (folder / file).read_text("utf8").splitlines()]
        picture = np.array([place[line[0]] for line in lines])
        caption = np.array([place[line[1].split("#")[0]] for line in lines])
        votes = np.array([line[2:] for line in lines], float)
        # The crowd says yes or no; experts 1 (does not describe at all) to 4 (without errors).
        wrong = votes[:, 0] < 0.5 if of == "crowd" else np.median(votes, 1) <= 2
        truth[of] = picture, caption, wrong
    rows: list[Row] = []
    for of, (picture, caption, wrong) in truth.items():
        for score, function in SCORES.items():
            fit = function(published.belief.context, caption, picture)
            rows.append({"of": of, "score": score, "pairs": len(wrong), **measures(-fit, wrong)})
    picture, caption, wrong = truth["crowd"]
    accepted = np.flatnonzero(~wrong)
    rejected = np.random.default_rng([seed, 5]).permutation(np.flatnonzero(wrong))[: len(accepted) * 2 // 3]
    mixed = np.sort(np.concatenate([accepted, rejected]))
    # Captions of rejected pairs count as describing no picture that is here: their own may be missing.
    noisy = Noisy(picture[mixed], caption[mixed], np.where(wrong[mixed], -1, picture[mixed]))
    about = {"of": "mixed", "pairs": len(mixed)}
    rows += [about | row for row in audited(images, captions[noisy.caption], noisy, seed)]
    if clean:
        rows.append(first_hundred(published, ids, *truth["crowd"]))
    return rows


def first_hundred(published: Any, ids: list[str], picture: Any, caption: Any, wrong: Any) -> Row:
    """Return what the crowd says of the 100 most suspicious published pairs, and of all."""
    own = picture == caption
    said = {ids[row]: bool(rejected) for row, rejected in zip(picture[own], wrong[own], strict=True)}
    ranked = published.table.sort_values("rank")
    first = list(ranked["id"][:100])
    judged = [name for name in first if name in said]
    every = np.array([said[name] for name in ranked["id"] if name in said])
    return {
        "of": "published", "score": published.score, "pairs": len(ids), "share": published.share.value,
        "share_low": published.share.low, "share_high": published.share.high,
        "called_wrong": int((ranked["p_wrong"] >= 0.5).sum()),
        "judged": len(said), "rejected": sum(said.values()), "first_judged": len(judged),
        "first_rejected": sum(said[name] for name in judged),
        "half": int(every[: len(every) // 2].sum()),
    }  # fmt: skip


def posteriors(options: argparse.Namespace) -> list[Row]:
    """Audit the training pairs of Flickr8K with the exchanges of the recorded runs."""
    found = everything(data.load("f8k", root=options.f8k).train)
    rows: list[Row] = []
    for rate in (0.4, 0.6):
        drawn = Mismatch.draw(found.image_of, rate, seed=0, protocol="images")
        noisy = Noisy(drawn.image_of, np.arange(len(drawn)), found.image_of)
        make = partial(cross_fitted, found, noisy, seed=0)
        images, captions = cached(options, f"images-{rate}", lambda make=make: named(make())).values()
        about = {"rate": rate, "checksum": drawn.checksum, "pairs": len(drawn)}
        new = audited(images, captions, noisy, 0)
        rows += [about | row for row in new]
        print(about, {row["score"]: round(row["auroc"], 3) for row in new}, flush=True)
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "exchange": exchange,
    "judged": judged,
    "posteriors": posteriors,
}


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--part", choices=PARTS, default="exchange")
    parser.add_argument(
        "--full", action="store_true", help="1,000 scenes and three seeds in place of 300, one"
    )
    parser.add_argument("--f8k", type=Path, help="folder of prepared Flickr8K")
    parser.add_argument("--judgements", type=Path, help="folder of Flickr8K's judgements and names")
    parser.add_argument("--wikipedia", type=Path, help="folder of the raw Wikipedia features")
    parser.add_argument("--cache", type=Path, help="folder that keeps embeddings")
    parser.add_argument("--outside", help="interpreter with torch, faiss and cleanlab")
    parser.add_argument("--lemon", help="checkout of LEMoN")
    options = parser.parse_args()
    options.pictures, options.seeds = (1000, SEEDS) if options.full else (300, 1)
    began = time.time(), time.process_time()
    rows = PARTS[options.part](options)
    made = {name: getattr(options, name) for name in ("pictures", "seeds", "full")}
    spent = {"seconds": round(time.time() - began[0]), "cpu_seconds": round(time.process_time() - began[1])}
    write_json(options.out, rows=columns(rows), settings={**made, "rate": RATE}, **spent)


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    """Return rows as columns, floats rounded to five decimals, missing values None."""
    names = dict.fromkeys(name for row in rows for name in row)
    short = lambda v: round(float(v), 5) if isinstance(v, (float, np.floating)) else v  # noqa: E731
    return {name: [short(row.get(name)) for row in rows] for name in names}


if __name__ == "__main__":
    main()
