"""The command ``ncbook`` says what the functions say, and refuses what they refuse."""

from __future__ import annotations

from unittest.mock import Mock

import ncbook
import pytest
from ncbook import cli, measurements, printed
from ncbook import runs as book_runs
from records_made import save

from nclib.cli import INTERRUPTED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table", "L2RM", "99"], "no table '99' of 'L2RM'"),
        (["rerun", "L2RM", "6", "--rate", "0.5"], "'0.2', '0.4', '0.6', '0.8'"),
        (["rerun", "L2RM", "6", "--seeds", "-2"], "seeds=-2: must be an integer, at least 1"),
        (["claims", "--folder", "/nothere"], "'/nothere': there is no such folder, table or record"),
        (["claims", "--folder", __file__], "test_commands.py is not a record"),
        (["table", "L2RM", "6", "--folder", "/nothere"], "'/nothere': there is no such folder"),
    ],
)
def test_wrong_calls_say_what_is_wrong(words, said, capsys):
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_a_table_shows_its_values(tmp_path, capsys):
    assert cli.main(["table", "UOT-RCL", "IV", "--csv", str(tmp_path / "table.csv")]) == 0
    shown = capsys.readouterr().out
    values = printed("category_map", paper="UOT-RCL", table="IV")
    assert all(value in shown for value in values["map"])
    assert len((tmp_path / "table.csv").read_text().splitlines()) == len(values) + 1
    assert cli.main(["table", "UOT-RCL", "IV", "--bundled", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "Not run: uot_rcl, uot_rcl (plc=off), " in shown.out
    assert "DataFrame" not in shown.out
    assert f"no record of a run below {tmp_path}" in shown.err
    assert cli.main(["table", "REPAIR", "VI", "--bundled"]) == 1
    assert "REPAIR, Table VI has no counterpart on the bundled data" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "goes_on"), [(["rerun", "L2RM", "6", "--run"], True), (["claims"], False)])
def test_only_runs_go_on_after_ctrl_c(words, goes_on, monkeypatch, capsys):
    for name in ("nclib.run", "ncbook.load_runs"):
        monkeypatch.setattr(name, Mock(side_effect=KeyboardInterrupt), raising=False)
    assert cli.main(words) == INTERRUPTED
    said = capsys.readouterr().err
    assert said.startswith("stopped")
    assert ("continues from the last finished epoch" in said) == goes_on


def test_records_are_collected_and_measurements_kept(tmp_path, monkeypatch, capsys):
    for module in (book_runs, ncbook):
        monkeypatch.setattr(module, "RECORDED", tmp_path / "results", raising=False)
    monkeypatch.setattr(measurements, "MEASURED", tmp_path / "measured")
    (tmp_path / "made").mkdir()
    save(tmp_path / "made", "plain", 300, model="vse", mrate=0.4)
    for said in ("1 records added", "0 records added"):
        assert cli.main(["collect", "mine", str(tmp_path / "made")]) == 0
        assert capsys.readouterr().out.startswith(said)
    assert ncbook.recorded()["rsum"].tolist() == [300]
    assert cli.main(["collect", "mine", "/nothere"]) == 2
    file, kept = tmp_path / "new.json", tmp_path / "measured" / "bench_new.json"
    file.write_text('{"rows": [1.0]}')
    assert cli.main(["keep", str(file), "--name", "bench_new"]) == 0
    assert ncbook.measurement("bench_new") == {"rows": [1.0]}
    kept.write_text(kept.read_text().replace("1.0", "2.0"))
    with pytest.raises(ValueError, match=r"bench_new\.json was changed: .*SHA256SUMS states another digest"):
        ncbook.measurement("bench_new")
    file.write_text("{")
    assert cli.main(["keep", str(file)]) == 2
    assert f"{file} is not a measurement in JSON" in capsys.readouterr().err
