"""Every method makes its record again, to the last digit on one machine; golden runs compare machines."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from ncbook import cli, verify
from small import SMALL, SMALL_LABELS

import nclib
from nclib import label_noise, methods
from nclib.runs import Record, identity
from nclib.runs.record import own_sum

PAIRS = SMALL | {
    "model": "vse",
    "warmup_epochs": 1,
    "batch_size": 20,
    "model_options": {"embed_dim": 16, "word_dim": 16},
    "data_options": {"n_train": 24, "n_val": 8, "n_test": 8},
}
METHODS = {
    **dict.fromkeys(methods.available(), PAIRS),
    "linear": {k: PAIRS[k] for k in ("dataset", "mrate", "data_options")},
    **dict.fromkeys(label_noise.available(), SMALL_LABELS),
}


def values_of(method: str) -> dict:
    own = {"uot_rcl": {"warmup_epochs": 1}, "crcl": {"epochs": 3}}
    own |= {method: {"warmup_epochs": 6} for method in ("crank", "crank_plus")}  # learns enough to count
    own["mscn"] = {"threshold": 0.0}  # near a threshold, rounding decides which of so few pairs train
    return {**METHODS[method], **own.get(method, {})}


FEW = ("plain", "mrl", "pls", "mcca", "gma", "mvda", "gss_regression")


def records_of(chosen: Iterable[str], folder: Path) -> dict[str, Record]:
    runs = {m: nclib.run(m, **values_of(m), out=folder, progress=False) for m in chosen}
    return {m: Record.load(Path(r.folder) / "record.json") for m, r in runs.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return records_of(FEW, tmp_path_factory.mktemp("records"))


@pytest.mark.exhaustive
def test_another_process_makes_every_record_again_to_the_last_digit(tmp_path):
    records_of(reversed(METHODS), tmp_path)
    command = [sys.executable, "-m", "ncbook", "verify", str(tmp_path), "--sample", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    *lines, last = done.stdout.splitlines()
    values = sum(int(re.search(r"(\d+) of \1 values are the same", line)[1]) for line in lines)
    n = len(METHODS)
    assert last == f"{n} same, of {n} records; {values:,} values compared", done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_what_differs_is_told_and_by_how_much(made, tmp_path, capsys):
    own = made["plain"]
    record = Record.load(shutil.copy(Path(own.folder) / "record.json", tmp_path / "r.json"))

    def said(status):
        record.save(tmp_path / "r.json")
        assert cli.main(["verify", str(tmp_path)]) == status
        return capsys.readouterr().out

    (loss,) = (name for name in record.curves[0] if name.startswith("loss_"))
    record.curves[0][loss] += 1.0
    record.curves[0]["seconds"] += 1.0
    found = said(1)
    assert f"curves.1.{loss} is {record.curves[0][loss]}, now " in found
    assert re.search(r"1 differs, of 1 records; \d+ values compared\n\Z", found)
    assert "made on" not in found  # the same machine
    record.environment["device"] = "CPU, of another make"
    for share, status, word in ((0.999, 0, "near"), (0.99, 1, "differs")):
        record.metrics["test"] = {k: v * share for k, v in own.metrics["test"].items()}
        found = said(status)
        assert found.startswith(word)
        assert re.search(r"metrics\.test\.rsum[\s\S]*\(made on CPU, of another make", found)
    assert set(verify.NEAR_OF) <= set(METHODS)
    moved = {"metrics.test.map_avg": (0.5, 0.51), "curves.1.loss": (1.0, 2.0), "data.checksum": ("a", "b")}
    assert list(verify.beyond(moved, "mrl")) == ["metrics.test.map_avg", "data.checksum"]
    assert list(verify.beyond(moved, "uot_rcl")) == ["data.checksum"]


def test_a_record_from_before_its_numbers_moved_is_counted_apart(made, monkeypatch, tmp_path, capsys):
    for method in ("plain", "mrl"):
        made[method].save(tmp_path / f"{method}.json")
    monkeypatch.setattr(identity, "MOVED", {"method mrl": identity.NUMERICS + 1})
    assert cli.main(["verify", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    numbers = f"numerics {identity.NUMERICS}, its numbers moved at {identity.NUMERICS + 1}"
    assert re.search(rf"older     mrl\.json .*: {numbers}\n", said)
    assert "\n1 same, 1 older, of 2 records; " in said


def test_the_sample_is_drawn_by_its_seed(made, monkeypatch, capsys):
    chosen = []
    monkeypatch.setattr(verify, "make_again", lambda record, *_: chosen.append(record.name) or record)
    folder = str(Path(next(iter(made.values())).folder).parent)
    for seed in ("0", "0", "1"):
        assert cli.main(["verify", folder, "--sample", "5", "--seed", seed]) == 0
    assert chosen[:5] == chosen[5:10] != chosen[10:]
    assert f"5 same, of {len(FEW)} records" in capsys.readouterr().out
    with pytest.raises(ValueError, match="holds no record with 'nothing' in its path"):
        verify.verify(Path(folder), match="nothing")


def test_values_that_one_side_lacks_are_named_and_times_are_not_compared(made):
    one = made["plain"]
    other = Record.load(Path(one.folder) / "record.json")
    other.metrics["test"] = {**other.metrics["test"], "new": 1.0}
    other.curves[0]["seconds"] = -1.0
    found = verify.compare(one, other)
    assert (found.differs, found.lacking, found.state) == ({}, ["metrics.test.new"], "partly")
    assert str(found).endswith("not compared, since the record lacks them: metrics.test.new")
    assert list(verify.compare(other, one).differs) == ["metrics.test.new"]
    assert str(verify.compare(other, one)).endswith("metrics.test.new is 1.0, now missing")


def test_what_cannot_be_compared_is_named_and_the_others_are_verified(made, monkeypatch, tmp_path, capsys):
    """Faults in records whose digests are right, and one without: each has a line, none ends the command."""
    content = made["plain"].content()
    settings, metrics = content["settings"], content["metrics"]
    options = settings["method_options"] | {"rho": 1}
    edits = {
        "lost": {"metrics": {k: metrics[k] for k in ("val", "test")}, "curves": content["curves"][:1]},
        "option": {"settings": settings | {"method_options": options, "rounds": 3, "epochs": "1"}},
        "hollow": {"metrics": {"val": {}}},
        "fails": {"settings": settings | {"seed": 4}},
    }
    for name, edit in edits.items():
        own = content | edit
        (tmp_path / f"{name}.json").write_text(json.dumps(own | {"sha256": own_sum(own)}))
    bare = {"sha256": "", **{k: v for k, v in content.items() if k != "settings"}}
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    again = verify.make_again
    failing = lambda r, *rest: again(r, *rest) if r.settings["seed"] != 4 else {}["key"]  # noqa: E731
    monkeypatch.setattr(verify, "make_again", failing)
    assert cli.main(["verify", str(tmp_path), "--sample", "0"]) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    expected = (
        r"partly    lost.json .* metrics.test_dsl.* and \d+ more$",
        "not made  option.json .*epochs='1': must be.*'rounds'.*'rho'",
        "not made  fails.json .*: KeyError: 'key'$",
        "broken    .*hollow.json .*: metrics.test$",
        "broken    .*bare.json .* lacks schema or settings",
    )
    for pattern in expected:
        assert sum(bool(re.match(pattern, line)) for line in lines) == 1, (pattern, lines)
    assert total.startswith("1 partly, 2 not made, 2 broken, of 5 records; ")
