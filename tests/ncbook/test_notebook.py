"""Tables and parameters of a notebook."""

import ncbook
import pandas as pd
import pytest
from ncbook.notebook import means, show
from ncbook.runs import load_runs
from records_made import save

from nclib import Record, Rule


def test_runs_tested_in_warmup_are_marked():
    columns = ("method", "rsum", "best_epoch", "epochs")
    rows = [("ncr", 100.0, 2, 3), ("ncr", 102.0, 3, 3), ("l2rm", 200.0, 3, 3)]
    rows += [("warm-up alone", 300.0, 1, 0), ("plain", 400.0, 1, 3)]
    table = means(pd.DataFrame(rows, columns=columns).assign(mrate=0.6, warmup_epochs=2), "method", "mrate")
    assert table.loc["ncr", "0.6"] == "101.0 ± 1.4 (2) †"
    assert "†" not in "".join(table.loc[["l2rm", "warm-up alone", "plain"], "0.6"])
    assert "tested at an epoch of its warm-up" in show(table, "marked", "rSum").to_html()
    assert "warm-up" not in show(table.drop("ncr"), "plain", "rSum").to_html().replace("warm-up alone", "")


def stored_as(folder, total, **environment):
    save(folder, "plain", total, mrate=0.4)
    path = sorted(folder.glob("*.json"))[-1]
    record = Record.load(path)
    record.environment |= environment
    record.save(path)


def test_runs_of_other_code_of_the_user_are_told_apart(tmp_path):
    for n, code in enumerate(("1111111111", "2222222222")):
        stored_as(tmp_path, 300.0 + n, own_code=code)
    assert sorted(load_runs(tmp_path).retrieval["variant"]) == ["code=11111111", "code=22222222"]


def test_the_number_of_seeds_is_said_once():
    cells = ["1.0 ± 0.1 (3)", "2.0 ± 0.1 (3) ‡", "+0.1 [-0.1, 0.3] (3)", "4.0 (1)", "no record", "(3)"]
    shown = show(pd.DataFrame({"a": cells}), "t", "rSum, mean ± standard deviation (seeds)")
    once = ["1.0 ± 0.1", "2.0 ± 0.1 ‡", "+0.1 [-0.1, 0.3]", "4.0 (1)", "no record", "(3)"]
    assert list(shown.data["a"]) == once
    assert shown.caption.startswith("rSum, mean ± standard deviation, 3 seeds unless a number is given. ‡ ")
    assert show(pd.DataFrame({"a": cells[:3]}), "t", "rSum").caption.startswith("rSum; 3 seeds each. ‡ ")
    for kept in (["1.0 (1)", "2.0 (1)", "3.0 ± 0.1 (2)"], ["1.0 ± 0.1 (2)", "2.0 ± 0.1 (3)"]):
        assert list(show(pd.DataFrame({"a": kept}), "t", "rSum").data["a"]) == kept


def test_the_check_of_a_notebook_takes_either_task():
    given = ncbook.check_parameters(
        {"noise_rate": 0.2, "scope": "pair", "live": "mrl"}, "mrl", live=Rule(str)
    )
    assert given == {"noise_rate": 0.2, "scope": "pair"}
    assert ncbook.check_parameters({"noise_rate": 0.2, "rho": None}, "l2rm") == {"mrate": 0.2}
    assert ncbook.check_parameters({"seed": 3}, None, seed=Rule(int, low=0)) == {}
    with pytest.raises(ValueError, match="seed=-1: must be a whole number, at least 0"):
        ncbook.check_parameters({"seed": -1}, None, seed=Rule(int, low=0))
