"""Golden verdicts: what the book concludes from its records, to compare with what was stored.

    python tests/ncbook/verdicts.py            # compare with verdicts.json
    python tests/ncbook/verdicts.py --write    # store; the commit says why they moved

Of each of the papers' claims the verdict and, by place, what its least favourable comparison measured; of the
headlines of README and pages which methods stand above, level with and below the rows to beat, and the
signs of the differences of three methods, judged as on *What holds*.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("verdicts.json")
DIGITS = 4  # stored; a number counts as equal up to one of the last digit
SETS, RATES = ("f8k", "fashion44k"), (0.0, 0.4, 0.6)


def content() -> dict[str, Any]:
    """Return claims, standings and differences, computed from the records now."""
    from ncbook import load_runs

    every, standard = load_runs(), load_runs(preset="standard")
    return {
        "claims": _claims(every),
        "standings": _standings(standard),
        "differences": {dataset: _differences(dataset) for dataset in SETS},
    }


def _claims(runs: Any) -> dict[str, Any]:
    from ncbook import ledger

    found: dict[str, Any] = {}
    for row in ledger(runs).to_dict("records"):
        lines = {}
        for line in row["lines"]:
            lines[line.place] = [line.says, line.n]
            if line.tested:
                d = line.weakest
                lines[line.place] += [*_rounded([d.mean, d.visible]), " ".join(d.marks)]
        found[row["id"]] = {"verdict": row["verdict"], "n": row["n"], "lines": lines}
    return found


def standing(runs: Any, dataset: str, rate: float, *, gce: bool) -> dict[str, list[str]]:
    """Return the methods with two networks that are above an averaged pair, level with it, and below.

    The pair is that of GCE, or that of each method's own loss; see :func:`ncbook.averaged.against_averaged`.
    """
    from ncbook.averaged import against_averaged
    from ncbook.statistics import judged

    groups: dict[str, list[str]] = {"above": [], "level": [], "below": [], "fewer than three seeds": []}
    verdicts = judged({m: both[gce] for m, both in against_averaged(runs, dataset, rate).items()})
    for method, one in verdicts.items():
        groups[one.sign.replace("not judged", "fewer than three seeds")].append(method)
    return groups


def _standings(runs: Any) -> dict[str, Any]:
    sides = {"its own loss, averaged": False, "GCE, averaged": True}
    return {
        f"{dataset} at {rate:g}, beside {name}": standing(runs, dataset, rate, gce=gce)
        for dataset in SETS
        for rate in RATES
        for name, gce in sides.items()
    }


def _differences(dataset: str) -> dict[str, Any]:
    from ncbook import differences, named, recorded

    where = {"dataset": dataset, "preset": "standard", "model": "bow", "protocol": "images"}
    runs = named(recorded(**where, networks=[1, 2]))
    return {
        f"{ours} minus {row['label']}, rate {row['mrate']:g}": [
            *_rounded([row["mean"]]),
            row["n"],
            row["sign"],
        ]
        for ours in ("L2RM", "GCE", "CRANK+")
        for row in differences(runs, ours).to_dict("records")
    }


def _rounded(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else round(float(value), DIGITS) for value in values]


def moved(stored: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield what differs between two contents: the path to it, what was stored and what is computed now."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*stored, *now]):
            yield from moved(stored.get(key), now.get(key), f"{where}/{key}")
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for place, pair in enumerate(zip(stored, now, strict=True)):
            yield from moved(*pair, f"{where}[{place}]")
    elif isinstance(stored, float) and isinstance(now, float):
        if abs(stored - now) > 1.5 * 10**-DIGITS:
            yield f"{where}: {stored} -> {now}"
    elif stored != now:
        yield f"{where}: {stored!r} -> {now!r}"


def _text(content: Any) -> str:
    """Return JSON with each list on one line, so that a difference in git is one of a line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+[^][{}]*\]", lambda lines: re.sub(r"\s*\n\s*", " ", lines[0]), text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="store what is computed now")
    args = parser.parse_args()
    now = json.loads(json.dumps(content()))
    lines = list(moved(json.loads(FILE.read_text("utf8")), now)) if FILE.exists() else []
    print("\n".join(lines) or "nothing moved")
    if args.write:
        FILE.write_text(_text(now) + "\n", "utf8")
    return bool(lines) and not args.write


if __name__ == "__main__":
    sys.exit(main())
