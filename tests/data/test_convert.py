"""Converters into the field's layout: the right files, named errors, and nothing lost when stopped."""

import base64
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import data_convert as convert
import numpy as np
import pytest
from data_check import check
from data_convert import ConvertError, main

import nclib
from nclib.common import row_writer
from nclib.data import load
from nclib.data.vocabulary import Vocabulary

REGIONS, FEATURES = 3, 4


def numbers(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, REGIONS, FEATURES)).astype(np.float32)


def names(n):
    return [f"img_{i:03d}" for i in range(n)]


@pytest.fixture
def given(tmp_path):
    """Ten images as single files, with ids and captions."""
    (tmp_path / "single").mkdir()
    for name, row in zip(names(10), numbers(10), strict=True):
        np.save(tmp_path / "single" / f"{name}.npy", row)
    (tmp_path / "ids.txt").write_text("\n".join(names(10)) + "\n")
    (tmp_path / "caps.txt").write_text("".join(f"a dog, seen {i}\n" for i in range(50)))
    return tmp_path


def line(name, row, *, count=REGIONS):
    cells = [name.encode(), b"640", b"480", str(count).encode(), b"", base64.b64encode(row.tobytes())]
    return b"\t".join(cells) + b"\n"


def arguments(given, kind="folder", name="f30k", split="train", **more):
    features = {"folder": given / "single", "bottom-up": given / "all.tsv"}[kind]
    options = {"ids": given / "ids.txt", "captions": given / "caps.txt", "out": given / "out", **more}
    named = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    return [kind, name, split, "--features", str(features), *named]


@pytest.fixture
def converted(given):
    """The folder of three splits of the same ten images, with its vocabulary."""
    for split in ("train", "dev", "test"):
        assert main(arguments(given, split=split)) == 0
    assert main(["vocabulary", "f30k", str(given / "out")]) == 0
    return given / "out"


def test_what_is_converted_loads(converted):
    assert check("f30k", converted).complete(any_size=True)
    data = load("f30k", root=converted)
    assert np.array_equal(data.train.images, numbers(10))
    assert data.train.captions.text(7) == "a dog, seen 7"


def test_a_float16_copy_is_read_in_the_place_of_the_original(converted):
    with pytest.raises(FileNotFoundError, match=r"train_ims\.f16\.npy \(half=True; make it with: python"):
        load("f30k", root=converted, half=True)
    assert main(["half", str(converted)]) == 0
    assert check("f30k", converted).complete(any_size=True)
    full, half = load("f30k", root=converted), load("f30k", root=converted, half=True)
    assert half.train.images.dtype == np.float16
    found = half.train.features([4, 1])
    assert np.array_equal(found, numbers(10)[[4, 1]].astype(np.float16).astype(np.float32))
    assert half.checksum != full.checksum


def test_the_vocabulary_is_the_one_that_loading_builds(converted, capsys):
    file, command = converted / "f30k_precomp_vocab.json", ["vocabulary", "f30k", str(converted)]
    made = file.read_bytes()
    file.unlink()
    built = load("f30k", root=converted, build_vocabulary=True).vocabulary
    assert file.read_bytes() == made
    assert main(command) == 0  # the same words: nothing is lost
    assert f"{built.size:,} words" in capsys.readouterr().out
    Vocabulary.from_texts(["other"]).to_json(file)
    assert main(command) == 1
    assert main([*command, "--replace"]) == 0
    assert file.read_bytes() == made


def resave(given, i, array):
    np.save(given / "single" / f"img_{i:03d}.npy", array)


SPOILT = {
    "no file": (lambda g: (g / "single" / "img_004.npy").unlink(), "no .npy or .npz file for img_004"),
    "shape": (lambda g: resave(g, 2, np.zeros((4, 4), "f4")), r"in shape: img_000.npy \(3, 4\), img_002"),
    "axes": (lambda g: resave(g, 2, np.zeros(4, "f4")), r"not float32 .*img_002.npy \(float32 \(4,\)\)"),
    "type": (lambda g: resave(g, 3, np.zeros((3, 4))), r"not float32 .*img_003.npy \(float64"),
    "cut": (lambda g: os.truncate(g / "single" / "img_005.npy", 150), r"img_005.npy \(it is cut short"),
    "nan": (lambda g: resave(g, 6, np.full((3, 4), np.nan, "f4")), r"NaN or infinite values: .*img_006.npy"),
    "no folder": (lambda g: (g / "single").rename(g / "elsewhere"), "No such file .*single"),
    "id twice": (lambda g: (g / "ids.txt").write_text("img_001\nimg_002\nimg_001\n"), "than once: img_001"),
    "id path": (lambda g: (g / "ids.txt").write_text("../x\n"), "line 1: '../x'"),
    "no ids": (lambda g: (g / "ids.txt").write_text(""), "it is empty"),
    "ids gone": (lambda g: (g / "ids.txt").unlink(), "ids.txt cannot be read"),
    "captions": (lambda g: (g / "caps.txt").write_text("a\n" * 49), "49 lines; 10 images with 5 captions"),
    "empty": (lambda g: (g / "caps.txt").write_text("a\n" * 13 + "\n" + "a\n" * 36), "caption 4 of img_002"),
    "latin": (lambda g: (g / "caps.txt").write_bytes(b"caf\xe9\n" * 50), "is not UTF-8"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_bad_input_is_named_and_nothing_is_believed(given, name, capsys):
    change, words = SPOILT[name]
    change(given)
    assert main(arguments(given)) == 1
    assert re.search(f"^error: .*{words}", capsys.readouterr().err, re.MULTILINE)
    assert not (given / "out" / "train_ims.npy").exists()


TSV = {
    "twice": (line("img_003", numbers(1)[0]), "several lines for img_003; --take-first"),
    "count": (line("img_003", numbers(1)[0], count=10), "must have 3 boxes; other counts: img_003: 10"),
    "columns": (b"img_003\t1\t1\n", r"lack columns .*: img_003 \(all.tsv, byte"),
    "width": (line("img_009", np.zeros((3, 5), "f4")), "found img_000: 4, img_009: 5"),
    "nan": (line("img_009", np.full((3, 4), np.inf, "f4")), "NaN or infinite values: img_009"),
    "missing": (b"", "all.tsv: no line for img_009"),
    "not base64": (
        line("img_009", numbers(1)[0])[:-12] + b"!!!!!!!!!!!\n",
        "image img_009 cannot be decoded",
    ),
}


@pytest.mark.parametrize("name", TSV)
def test_bad_lines_are_named(given, name, capsys):
    extra, words = TSV[name]
    n = 10 if name in ("twice", "count", "columns") else 9  # nothing else is wrong
    rows = [line(*of) for of in zip(names(n), numbers(10)[:n], strict=True)]
    (given / "all.tsv").write_bytes(b"".join([*rows, extra]))
    command = arguments(given, "bottom-up", regions=REGIONS)
    assert main(command) == 1
    assert re.search(words, capsys.readouterr().err)
    assert not (given / "out" / "train_ims.npy").exists()
    if name == "twice":
        assert main([*command, "--take-first"]) == 0
        assert np.array_equal(np.load(given / "out" / "train_ims.npy"), numbers(10))


@pytest.mark.parametrize(("value", "said"), [(7e4, "beyond 65,504.* row 5"), (np.nan, "NaN or .* row 5")])
def test_numbers_that_float16_cannot_hold(tmp_path, value, said):
    rows = numbers(9)
    rows[5, 1, 1] = value
    np.save(tmp_path / "train_ims.npy", rows)
    with pytest.raises(ConvertError, match=said):
        convert.half(tmp_path / "train_ims.npy")
    assert not (tmp_path / "train_ims.f16.npy").exists()


def test_files_that_are_there_are_kept_unless_asked(given, capsys):
    assert main(arguments(given)) == 0
    assert main(arguments(given)) == 1
    assert "train_ims.npy is there already" in capsys.readouterr().err
    (given / "caps.txt").write_text("another dog\n" * 50)
    assert main(arguments(given)) == 1
    assert "with other content" in capsys.readouterr().err
    assert main([*arguments(given), "--replace"]) == 0
    assert (given / "out" / "train_caps.txt").read_text() == "another dog\n" * 50


def test_captions_never_stand_beside_features_of_other_images(given, monkeypatch, capsys):
    """Replacing fails, or is killed, at any moment: all old, all new, or no features."""
    assert main(arguments(given)) == 0
    out = given / "out"
    old = {path.name: path.read_bytes() for path in out.iterdir()}
    (given / "ids.txt").write_text("\n".join(reversed(names(10))) + "\n")
    (given / "caps.txt").write_text("another dog\n" * 50)
    resave(given, 0, np.full((3, 4), np.nan, "f4"))
    assert main([*arguments(given), "--replace"]) == 1
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.name in old} == old

    resave(given, 0, numbers(10)[0])

    def stopped(path, text):
        if path.name == "train_ids.txt":
            raise KeyboardInterrupt
        write_text(path, text)

    write_text = row_writer.write_atomically
    monkeypatch.setattr(row_writer, "write_atomically", stopped)
    assert main([*arguments(given), "--replace"]) == 130
    assert (out / "train_ids.txt").read_bytes() == old["train_ids.txt"]
    assert not (out / "train_ims.npy").exists()
    monkeypatch.undo()
    assert main([*arguments(given), "--replace"]) == 0
    assert "10 of 10 rows are there from an earlier attempt" in capsys.readouterr().err
    assert (out / "train_ids.txt").read_text().split() == names(10)[::-1]
    assert np.array_equal(np.load(out / "train_ims.npy"), numbers(10)[::-1])


# -- faults -------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path):
    """5.9 MB of features, which are copied in 80 blocks."""
    rows = np.random.default_rng(0).normal(size=(5120, 36, 8)).astype(np.float32)
    np.save(tmp_path / "train_ims.npy", rows)
    np.save(tmp_path / "expected.npy", rows.astype(np.float16))
    return tmp_path


SLOW = """
import sys, time
import data_convert
from nclib.common import row_writer
count = row_writer._count
row_writer._count = lambda *words: (time.sleep(0.02), count(*words))
print("ready", flush=True)
sys.exit(data_convert.main(sys.argv[1:]))
"""


def start(*words, code=SLOW, limit=None):
    root = Path(nclib.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tools'}"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit,
    )  # fmt: skip


def finished(folder):
    """Rows that are counted as finished."""
    counter = folder / "train_ims.f16.npy.progress"
    text = counter.read_text() if counter.exists() else ""
    return json.loads(text)["rows"] if text.endswith("}") else 0


@pytest.mark.slow
def test_killed_at_any_moment_it_continues_and_ends_with_the_same_bytes(large):
    copy, rng, reached = large / "train_ims.f16.npy", random.Random(0), [0]
    for _ in range(3):
        process = start("half", large / "train_ims.npy")
        assert process.stdout.readline() == "ready\n"
        aim = reached[-1] + rng.randint(300, 1200)
        while finished(large) < aim and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not copy.exists()
        reached.append(finished(large))
    assert reached == sorted(reached)
    assert reached[1] > 0
    (large / ".train_ims.f16.npy.progress.0123456789ab.part").touch()  # killed while it counted
    assert main(["half", str(large / "train_ims.npy")]) == 0
    assert copy.read_bytes() == (large / "expected.npy").read_bytes()
    assert sorted(p.name for p in large.iterdir()) == ["expected.npy", "train_ims.f16.npy", "train_ims.npy"]


@pytest.mark.parametrize("damage", ["none", "source", "counter", "part", "shorter"])
def test_rows_are_kept_when_source_and_file_are_as_before(large, monkeypatch, damage, capsys):
    real, source, part = row_writer._count, large / "train_ims.npy", large / "train_ims.f16.npy.part"
    counting = Mock(side_effect=[DEFAULT] * 8 + [KeyboardInterrupt], wraps=real)
    monkeypatch.setattr(row_writer, "_count", counting)
    assert main(["half", str(source)]) == 130
    if damage == "source":
        rows = np.load(source) + 1
        np.save(source, rows)
        np.save(large / "expected.npy", rows.astype(np.float16))
    elif damage == "counter":
        (large / "train_ims.f16.npy.progress").write_text('{"rows": 5')  # not finished
    elif damage == "part":
        part.unlink()
    elif damage == "shorter":
        os.truncate(part, 128 + 100 * 36 * 8 * 2 + 7)
    monkeypatch.setattr(row_writer, "_count", real)
    capsys.readouterr()
    assert main(["half", str(source)]) == 0
    kept = re.findall(r"(\d+) of 5,120 rows are there from an earlier attempt", capsys.readouterr().err)
    assert kept == {"none": ["512"], "shorter": ["100"]}.get(damage, [])
    assert (large / "train_ims.f16.npy").read_bytes() == (large / "expected.npy").read_bytes()


@pytest.mark.parametrize("done", [False, True])
def test_stopped_while_the_file_gets_its_name_no_row_is_read_again(large, monkeypatch, done):
    real = os.replace

    def stops(part, path):
        if str(path).endswith(".npy"):
            if done:
                real(part, path)
            raise KeyboardInterrupt
        real(part, path)

    monkeypatch.setattr(row_writer.os, "replace", stops)
    assert main(["half", str(large / "train_ims.npy")]) == 130
    monkeypatch.setattr(row_writer.os, "replace", real)
    monkeypatch.setattr(row_writer, "_count", None)  # is called for rows that are read
    assert main(["half", str(large / "train_ims.npy")]) == 0
    assert (large / "train_ims.f16.npy").read_bytes() == (large / "expected.npy").read_bytes()


@pytest.mark.slow
def test_a_full_disk_says_so_and_loses_nothing(large):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    process = start("half", large / "train_ims.npy", limit=limit)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "writing stopped after 1,728 of 5,120 rows (File too large; " in said
    assert "the same command continues there" in said
    assert not (large / "train_ims.f16.npy").exists()
    assert main(["half", str(large / "train_ims.npy")]) == 0
    assert (large / "train_ims.f16.npy").read_bytes() == (large / "expected.npy").read_bytes()


@pytest.mark.slow
def test_two_at_once_are_refused(large, capsys):
    process = start("half", large / "train_ims.npy")
    while finished(large) == 0 and process.poll() is None:
        time.sleep(0.01)
    assert main(["half", str(large / "train_ims.npy")]) == 1
    assert "another process is writing" in capsys.readouterr().err
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert (large / "train_ims.f16.npy").read_bytes() == (large / "expected.npy").read_bytes()
