"""Folders of generated files: built once, never used when damaged, safe when built twice at a time."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nclib.data.cache import MANIFEST, from_cache, read_facts


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "somewhere"))
    return tmp_path / "somewhere" / "kind"


class Builder:
    """Writes one file and counts its calls."""

    calls = 0

    def __call__(self, folder):
        self.calls += 1
        (folder / "file.txt").write_text("content")
        return {"note": 7}


def no_files(folder):
    facts = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**facts, "files": {}}))
    (folder / "file.txt").write_text("changed")


DAMAGES = {
    "cut": lambda folder: (folder / "file.txt").write_text("conten"),
    "flip": lambda folder: (folder / "file.txt").write_text("c0ntent"),
    "remove": lambda folder: (folder / "file.txt").unlink(),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "bad manifest": lambda folder: (folder / MANIFEST).write_text("[1]"),
    "no files": no_files,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_built_again(home, damage):
    build = Builder()
    folder, _ = from_cache("kind", "k", build)
    DAMAGES[damage](folder)
    assert read_facts(folder) is None
    folder, _ = from_cache("kind", "k", build)
    assert build.calls == 2
    assert (folder / "file.txt").read_text() == "content"
    assert sorted(p.name for p in home.iterdir()) == ["k"]


def test_of_two_builders_at_once_one_builds_and_both_use_it(home):
    build = Builder()

    def slow(folder):
        time.sleep(0.3)  # the other one starts meanwhile
        return build(folder)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: from_cache("kind", "k", slow), range(2)))
    assert results[0] == results[1]
    assert build.calls == 1
    assert (home / "k" / "file.txt").read_text() == "content"
    assert sorted(p.name for p in home.iterdir()) == ["k"]


def test_a_failed_build_leaves_nothing(home):
    def build(folder):
        (folder / "half.txt").write_text("x")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        from_cache("kind", "k", build)
    assert [p.name for p in home.iterdir()] == [".k.lock"]
    assert from_cache("kind", "k", Builder())[0] == home / "k"


def test_leftovers_of_a_killed_process_are_swept(home):
    (home / ".k.part").mkdir(parents=True)
    (home / ".k.part" / "half.txt").write_text("x")
    folder, _ = from_cache("kind", "k", Builder())
    assert sorted(p.name for p in folder.iterdir()) == ["file.txt", MANIFEST]
    assert sorted(p.name for p in home.iterdir()) == ["k"]
