"""Mutation testing of the golden runs: of changes that alter their numbers at all, how many fail them?

    python tools/mutate_golden.py --sample 200 --seed 0

A mutant counts when it changes the bits of an entry, or stops it; it is noticed when an entry then differs by
more than its tolerance. Only entries that call the changed function are run, quick ones first, until one
notices or ``--entries`` of them have run; a mutant of what an import makes is passed over. A survivor may be
noticed by further entries, so the share is a lower bound.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import random
import signal
import sys
import time
from pathlib import Path

import mutants

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "golden")]

import torch  # noqa: E402
from cases import entries  # noqa: E402
from golden import differences, stored, trace_of  # noqa: E402

PATTERNS = (
    *(f"nclib/{folder}/*.py" for folder in ("methods", "label_noise", "models", "losses", "noise")),
    "nclib/methods/parts/*.py",
    "nclib/label_noise/parts/*.py",
    "nclib/ot/[!_]*.py",  # without the kernels, which need a GPU
)
LIMIT = 20.0  # seconds of computing for one entry; what runs for ever is noticed
SAME, CHANGED, NOTICED = 0, 1, 2  # exit statuses of a fork


def judged(mutant: mutants.Mutant, name: str, known: dict[str, str], references: dict) -> int:
    """Run an entry under a mutant, in a fork; return SAME, CHANGED or NOTICED."""
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status if status in (SAME, CHANGED) else NOTICED  # a signal, an error
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        mutant.apply(mutants.imported_from(ROOT / "nclib"))
        trace = trace_of(name, EVERY[name])
        said, _ = differences(references[name], trace.values)
        os._exit(NOTICED if said else SAME if trace.bits.hexdigest() == known[name] else CHANGED)
    except BaseException:
        os._exit(NOTICED)


EVERY = entries()


def main() -> None:
    """Draw mutants until so many change something, and print those that no entry notices."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=200, help="mutants that change the bits of an entry")
    parser.add_argument("--entries", type=int, default=8, help="entries that are run for one mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="only files with this text in their path")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mutants.AREAS["golden"] = PATTERNS, ()
    references, seconds, known = stored()["entries"], {}, {}
    called: dict[str, list[str]] = {}
    for name, entry in EVERY.items():
        profile, started = cProfile.Profile(subcalls=False, builtins=False), time.process_time()
        profile.enable()
        known[name] = trace_of(name, entry).bits.hexdigest()
        profile.disable()
        seconds[name] = time.process_time() - started
        for function in set(mutants.called(profile, ROOT, ("nclib",))):
            called.setdefault(function, []).append(name)
    every = [m for m in mutants.mutants("golden") if options.match in str(m.path)]
    random.Random(options.seed).shuffle(every)
    counted = noticed = drawn = 0
    for mutant in every:
        if counted == options.sample:
            break
        drawn += 1
        if not (found := called.get(mutant.function(), [])):
            continue  # no entry calls it
        found = sorted(found, key=lambda name: (mutant.path.stem not in name, seconds[name]))
        results: list[int] = []
        for name in found[: options.entries]:
            results.append(judged(mutant, name, known, references))
            if results[-1] == NOTICED:
                break
        if max(results) == SAME:
            continue
        counted += 1
        noticed += max(results) == NOTICED
        if max(results) != NOTICED:
            changed = [name for name, result in zip(found, results, strict=False) if result == CHANGED]
            print(f"survived  {mutant.path}:{mutant.line}  {mutant.change}  {changed[:3]}", flush=True)
        if counted % 20 == 0:
            print(f"{noticed} of {counted}, {drawn} drawn", flush=True)
    share = 100 * noticed / max(counted, 1)
    print(f"{noticed} of {counted} mutants that change a golden run fail it ({share:.1f} %)")


if __name__ == "__main__":
    main()
