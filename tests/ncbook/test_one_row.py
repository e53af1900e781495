"""A printed row and its run stand in one row, with the difference of what both gain."""

import re

import ncbook
import pytest
from ncbook.effects import STUDIES, measured_effects
from ncbook.match import printed_sums
from records_made import collect, lines, save

PLACE = {"dataset": "f8k", "model": "bow", "preset": "standard", "data_options": {"root": "."}}


def loaded(folder):
    collect(folder)
    return ncbook.load_runs(folder)


def printed(method, rate):
    table = printed_sums("L2RM", "6")
    row = table[(table["dataset"] == "Flickr30K") & (table["model"] == "sgr") & (table["rate"] == rate)]
    return float(row.loc[row["method"] == method, "value"].item())


def test_a_row_holds_print_measure_and_the_difference_of_gains(tmp_path):
    for seed, (low, own) in enumerate([(100, 150), (110, 170), (105, 160)]):
        save(tmp_path, "plain", low, **PLACE, mrate=0.6, seed=seed)
        save(tmp_path, "l2rm", own, **PLACE, mrate=0.6, seed=seed)
    sheet = ncbook.compared_table("L2RM", "6", loaded(tmp_path))
    rows = {(line["rate"], line["row"]): line for line in lines(sheet)}
    assert set(rows) == {("0.6", "triplet"), ("0.6", "L2RM")}
    row, gain = rows["0.6", "L2RM"], printed("l2rm", 0.6) - printed("plain", 0.6)
    assert float(row["printed rSum"]) == printed("l2rm", 0.6)
    assert float(row["printed − plain"]) == pytest.approx(gain)
    assert (row["measured rSum"], row["measured − plain"].split()[0]) == ("160.0", "+55.0")
    assert float(row["difference of effects"]) == pytest.approx(55 - gain)
    assert rows["0.6", "triplet"]["printed − plain"] == "reference"
    (alone,) = [line for line in sheet.lines if line.startswith("Printed, without a run here:")]
    assert "NCR" in alone
    assert "L2RM (0.2,0.4,0.8)" in alone
    assert "not run" not in sheet.text()


def test_a_table_without_any_run_has_no_rows(nothing):
    assert ncbook.compared_table("L2RM", "2", nothing) is None
    assert ncbook.compared_table("L2RM", "6", nothing) is None


@pytest.mark.parametrize("key", [("L2RM", "3"), ("OMIT", "4"), ("UOT-RCL", "IV")])
def test_ablations_have_the_printed_names_of_their_rows(key):
    sheet = ncbook.compared_table(*key, ncbook.load_runs())
    named = {name for _, names in ncbook.regime.groups_of(ncbook.LAYOUTS[key]).values() for name in names}
    assert {line["row"] for line in lines(sheet)} <= named


def test_a_citation_names_the_table_and_changes_with_its_values(tmp_path):
    sheets = []
    for total in (150, 151):
        (folder := tmp_path / str(total)).mkdir()
        save(folder, "plain", 100, **PLACE, mrate=0.6)
        save(folder, "l2rm", total, **PLACE, mrate=0.6)
        sheets.append(ncbook.compared_table("L2RM", "6", loaded(folder)))
    a, b = (sheet.citation for sheet in sheets)
    assert a.startswith("@misc{nclib-l2rm-table-6-rows,")
    assert a != b
    assert re.sub("CSV [0-9a-f]{8}", "", a) == re.sub("CSV [0-9a-f]{8}", "", b)
    assert a.splitlines()[0] in sheets[0]._repr_html_()


def test_simple_rows_have_shares_and_their_losses_no_warm_up_mark(tmp_path):
    save(tmp_path, "plain", 300, **PLACE, mrate=0.0)
    save(tmp_path, "plain", 100, **PLACE, mrate=0.6)
    save(tmp_path, "plain", 200, **PLACE, mrate=0.6, loss="gce", best=1)
    save(tmp_path, "plain", 250, **PLACE, mrate=0.6, loss="gce", tau=0.2)
    (row,) = measured_effects("L2RM", loaded(tmp_path)).itertuples()
    assert (row.method, row.share.values, row.share.marks) == ("plain (gce)", (0.5,), ())
    assert row.method in STUDIES["L2RM"].rows
