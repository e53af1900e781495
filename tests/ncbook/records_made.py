"""Small made records, so that tables and verdicts can be checked against numbers known beforehand."""

import csv
import io

import nclib
from nclib.runs import append
from nclib.runs import record as records


def collect(folder):
    """Put the records in a folder into a table, as those of the book are."""
    append(folder / "made.csv", folder)
    for path in folder.glob("*.json"):
        path.unlink()


def lines(sheet):
    """Lines of the CSV file of a table."""
    return list(csv.DictReader(io.StringIO(sheet.file)))


def recalls(total):
    """Six equal recalls that sum to ``total``."""
    return {**dict.fromkeys(records.RECALLS, total / 6), "rsum": total}


def save(folder, method, total, *, dsl=0.0, single=None, best=0, images=500, curves=(), **settings):
    """Store a record of image-text retrieval with the given rSum, tested after its warm-up or at ``best``."""
    found = settings.pop("diagnostics", {})
    chosen = nclib.resolve(method, **settings).flat()
    alone = {} if single is None else {"single": recalls(single)}
    _save(
        folder,
        chosen,
        data={"val_images": 200, "test_images": images},
        noise={"true_rate": chosen["mrate"], "checksum": f"{chosen['mrate']} {chosen['seed']}"},
        metrics={"val": {"rsum": total}, "test": recalls(total), "test_dsl": recalls(total + dsl), **alone},
        curves=list(curves),
        diagnostics=found,
        best_epoch=best or len(curves) or chosen["warmup_epochs"] + 1,
    )


def _save(folder, settings, *, data, **parts):
    name = f"{len(list(folder.glob('*.json'))):04d}-{settings['method']}"
    data |= {"name": settings["dataset"], "checksum": "d"}
    parts |= {"cost": {"seconds": 1.0, "test_seconds": 1.0}, "environment": {"device": "CPU, made"}}
    made = records.Record(name=name, settings=settings, data=data, **parts)
    made.save(folder / f"{name}.json")


def save_category(folder, method, value, **settings):
    """Store a record of category retrieval with the given mean average precision."""
    found = settings.pop("diagnostics", {})
    chosen = nclib.resolve(method, **settings).flat()
    test = {"map_i2t": value + 0.01, "map_t2i": value - 0.01, "map_avg": value}
    _save(
        folder,
        chosen,
        data={"val_pairs": 200, "test_pairs": 500},
        noise={"true_rate": chosen["noise_rate"], "checksum": "n"},
        metrics={"val": test, "test": test, "last": test},
        curves=[],
        diagnostics=found,
        best_epoch=1,
    )
