"""Mutation testing: change one operator or constant at a time, and see whether the fast tests notice.

    python tools/mutate.py --sample 15                     # fifteen of every area
    python tools/mutate.py --area loop --quick             # without the tests marked slow
    python tools/mutate.py --area ot --sample 30 --list    # show the changes, run nothing
    python tools/mutate.py --matrix m.jsonl --sample 1500  # which test notices which change, methods aside
    python tools/mutate.py --read m.jsonl                  # tests without which no mutant would survive

A mutant that no test notices (it *survives*) is a missing test, or a change without effect. Each mutant runs
those tests of its area that `make test` runs, in a copy of the package; the working tree stays as it is. The
tests are collected once, and a first fork runs those that are not marked slow, unchanged, to see which
functions each calls, and for how long. Each mutant is a fork in which the changed function gets its new code:
first the tests that may call it, quick ones before slow ones, then the others, up to the first failure. A
change of what an import makes (a default, a module's constant) starts from before the import. At the end the
tests that noticed something must pass without a change.

The matrix has one line a mutant: the tests that noticed it among those that call the changed function and
are not marked slow. Those that call least run first, for :data:`ENOUGH` seconds and then up to the first that
fails, at most for :data:`LONGEST` seconds.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import gc
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in the tests; read when NumPy and torch are imported

import numpy as np  # noqa: F401 - these three are imported once, before any fork
import pytest
import torch  # noqa: F401
from mutants import AREAS, ROOT, WHOLE, Mutant, called, imported_from, mutants

ENOUGH, LONGEST = 0.5, 4.0  # seconds of tests for one mutant that is noticed, that is not
LIMIT = 10.0  # a test may compute for ten seconds and ten times its usual time: what runs for ever is noticed
IMPORTED = 99  # exit status of a fork that found no function to change


def status(child: int) -> int:
    """Wait for a process; return its exit status, below zero for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Judge:
    """Plugin of pytest: runs the tests in a fork for each mutant and writes number and status to a pipe."""

    def __init__(self, folder: Path, chosen: list[Mutant], pipe: int, cores: int) -> None:
        self.folder, self.chosen, self.pipe, self.cores = folder, chosen, pipe, cores
        self.seen: dict[str, tuple[float, list[str]]] = {}  # by test: seconds, and functions that it calls
        self.watching = False
        self.noticed: list[str] | None = None  # of the mutant of this fork, for the matrix
        self.ran = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self.session = session
        if not self.chosen:
            return None
        parts = [self.folder / f"seen_{core}.json" for core in range(self.cores)]
        files = sorted({item.path for item in session.items})
        children = []
        for core, self.watched in enumerate([] if parts[0].exists() else parts):
            if not (child := os.fork()):
                self.watching = True
                session.items = [
                    item
                    for item in session.items
                    if item.get_closest_marker("slow") is None and files.index(item.path) % self.cores == core
                ]
                return None  # on to the tests
            children.append(child)
        for child in children:
            status(child)
        imported = imported_from(self.folder)
        gc.freeze()  # what a fork does not touch, it need not copy
        for part in parts:
            if part.exists():
                self.seen |= json.loads(part.read_text("utf8"))
        session.items.sort(key=lambda item: self.seen.get(item.nodeid, (math.inf,))[0])
        running: dict[int, int] = {}
        for number, mutant in enumerate(self.chosen):
            if len(running) == self.cores:
                self.wait(running)
            if not (child := os.fork()):
                if not mutant.apply(imported):
                    os._exit(IMPORTED)
                name = mutant.function()
                if mutant.area == WHOLE:
                    calls = [i for i in session.items if name in self.seen.get(i.nodeid, (0, []))[1]]
                    calls.sort(key=lambda item: len(self.seen[item.nodeid][1]))  # those of little else first
                    session.items, self.noticed = calls, []
                    self.mutant = mutant
                    return None
                own = AREAS[mutant.area][1]
                session.items = [item for item in session.items if item.nodeid.startswith(own)]
                session.items.sort(key=lambda item: name not in self.seen.get(item.nodeid, (0, [name]))[1])
                return None
            running[child] = number
        while running:
            self.wait(running)
        return True

    def wait(self, running: dict[int, int]) -> None:
        """Wait for the next fork that ends, and write its mutant's number and its status."""
        child, code = os.wait()
        os.write(self.pipe, f"{running.pop(child)} {os.waitstatus_to_exitcode(code)}\n".encode())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if not self.watching:
            return (yield)
        started = time.process_time()
        profile = cProfile.Profile(subcalls=False, builtins=False)
        profile.enable()
        try:
            return (yield)
        finally:
            profile.disable()
            self.seen[item.nodeid] = time.process_time() - started, called(profile, self.folder)

    def pytest_sessionfinish(self) -> None:
        if self.noticed is not None:
            m = self.mutant
            row = {"file": str(m.path), "line": m.line, "change": m.change, "place": m.place}
            with (self.folder / "matrix").open("a") as file:
                print(json.dumps({**row, "noticed_by": self.noticed}), file=file)
        if self.watching:
            self.watched.write_text(json.dumps(self.seen), "utf8")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        usual = self.seen.get(nodeid, (6.0,))[0]  # seconds; nothing is known of those marked slow
        signal.setitimer(signal.ITIMER_PROF, LIMIT * (1 + usual))  # its signal ends the process

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.ran += self.seen.get(nodeid, (0.0,))[0]
        if self.noticed is not None and self.ran > (ENOUGH if self.noticed else LONGEST):
            self.session.shouldstop = "long enough"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.noticed is not None:
            self.noticed.append(report.nodeid)
        elif report.failed:
            with (self.folder / "noticed_by").open("a") as file:
                print(report.nodeid, file=file)


def run_tests(
    folder: Path,
    tests: Iterable[str],
    chosen: list[Mutant],
    quick: bool,
    every: bool = False,
    cores: int = 1,
) -> Iterator[tuple[int, int]]:
    """Yield number and exit status of each mutant's tests, and at last -1 and that of pytest itself."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
        for stream in (1, 2):
            os.dup2(os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        marks = "not notebook and not exhaustive" + (" and not slow" if quick else "")
        command = [*([] if every else ["-x"]), "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marks]
        os._exit(pytest.main([*command, *tests], [Judge(folder, chosen, writing, cores)]))
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            number, code = map(int, line.split())
            yield number, code
    yield -1, status(child)


def matrix(chosen: list[Mutant], out: Path, cores: int) -> None:
    """Write which tests notice which mutant, and beside it what each test calls, with its seconds.

    A second call for the same code goes on where the first was stopped.
    """
    beside = out.with_suffix(".calls.json")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copy_to(folder)
        texts = [
            p.read_bytes() for room in ("nclib", "book", "tests") for p in folder.rglob(f"{room}/**/*.py")
        ]
        code = hashlib.sha256(b"".join(sorted(texts))).hexdigest()
        known = json.loads(beside.read_text("utf8")) if beside.exists() else {}
        if known.get("code") == code:
            (folder / "seen_0.json").write_text(json.dumps(known["tests"]), "utf8")
            shutil.copy(out, folder / "matrix")
            done = [json.loads(line) for line in out.read_text("utf8").splitlines()]
            there = {(row["file"], row["place"]) for row in done}
            chosen = [m for m in chosen if (str(m.path), m.place) not in there]
        for n, _ in enumerate(run_tests(folder, ["tests"], chosen, True, every=True, cores=cores), 1):
            if n == 1:
                parts = [json.loads(p.read_text("utf8")) for p in sorted(folder.glob("seen_*.json"))]
                tests = {test: seen for part in parts for test, seen in part.items()}
                beside.write_text(json.dumps({"code": code, "tests": tests}), "utf8")
            if (folder / "matrix").exists() and (n % 20 == 0 or n > len(chosen)):
                shutil.copy(folder / "matrix", out)
                print(f"{min(n, len(chosen))} of {len(chosen)}", flush=True)


def read_matrix(paths: Iterable[Path]) -> None:
    """Print how many mutants were noticed, and the tests whose absence would let no noticed mutant survive.

    Tests are kept greedily: first those that alone notice one, then the one that notices most of the rest.
    """
    rows = [json.loads(line) for path in paths for line in path.read_text("utf8").splitlines()]
    left = [set(row["noticed_by"]) for row in rows if row["noticed_by"]]
    every, kept = set().union(*left), {next(iter(tests)) for tests in left if len(tests) == 1}
    while left := [tests for tests in left if not tests & kept]:
        kept.add(max(sorted(set().union(*left)), key=lambda test: sum(test in tests for tests in left)))
    print(
        f"{len(rows)} mutants, {sum(bool(row['noticed_by']) for row in rows)} noticed by {len(every)} tests"
    )
    print(f"kept: {len(kept)}", *sorted(kept), sep="\n")


def copy_to(folder: Path) -> None:
    """Copy the working tree without what git ignores."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\0"
    ):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def main() -> None:
    """Parse the command line, run a sample of the mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--area", choices=AREAS, action="append", help="all areas by default")
    parser.add_argument("--sample", type=int, default=15, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="without the tests marked slow: a lower bound")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--matrix", type=Path, help="write which test notices which mutant, a line each")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="of the matrix")
    parser.add_argument("--read", type=Path, nargs="+", help="files of the matrix: which tests suffice")
    options = parser.parse_args()
    if options.read:
        read_matrix(options.read)
        return
    if options.matrix:
        found = list(mutants(WHOLE))
        drawn = random.Random(options.seed).sample(found, min(len(found), options.sample))
        matrix(drawn, options.matrix, options.cores)
        return
    areas, draw, quick = options.area or list(AREAS), random.Random(options.seed), options.quick
    if find_spec("triton") is None:
        if options.area and "kernels" in areas:
            parser.error("the area kernels needs triton, whose interpreter its tests run in")
        areas = [area for area in areas if area != "kernels"]
    chosen: list[Mutant] = []
    for area in areas:
        found = list(mutants(area))
        chosen += draw.sample(found, min(len(found), options.sample))
    if options.list:
        print("\n".join(f"{m.path}:{m.line}  {m.change}" for m in chosen))
        return
    results = {area: [0, 0] for area in areas}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def note(mutant: Mutant, code: int) -> None:
            if code > 2:  # neither a failed test (1) nor a failed import (2)
                sys.exit(f"pytest could not judge {mutant}:\n{(folder / 'output').read_text('utf8')[-5000:]}")
            result = "survived" if code == 0 else "killed" if code > 0 else "ended by a signal"
            print(f"{result}  {mutant.path}:{mutant.line}  {mutant.change}", flush=True)
            results[mutant.area][0] += code != 0
            results[mutant.area][1] += 1

        copy_to(folder)
        tests, imported = [file for area in areas for file in AREAS[area][1]], []
        for number, code in run_tests(folder, tests, chosen, quick):
            if number >= 0 and code == IMPORTED:
                imported.append(chosen[number])
            elif number >= 0:
                note(chosen[number], code)
        for mutant in imported:  # after all forks, which may still import from the folder
            original = (folder / mutant.path).read_bytes()
            (folder / mutant.path).write_text(ast.unparse(mutant.tree()), "utf8")
            ((_, code),) = run_tests(folder, AREAS[mutant.area][1], [], quick)
            (folder / mutant.path).write_bytes(original)
            note(mutant, code)
        noticed_by = folder / "noticed_by"
        witnesses = sorted(set(noticed_by.read_text("utf8").splitlines())) if noticed_by.exists() else []
        if witnesses and any(code for _, code in run_tests(folder, witnesses, [], quick)):
            sys.exit(f"these tests fail without a change:\n{(folder / 'output').read_text('utf8')[-5000:]}")
    for area, (noticed, of) in results.items():
        print(f"{area}: {noticed} of {of}")
    noticed, of = map(sum, zip(*results.values(), strict=True))
    print(f"{noticed} of {of} mutants were noticed ({100 * noticed / of:.1f} %)")


if __name__ == "__main__":
    main()
