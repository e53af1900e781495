"""The page on Wikipedia: rows, differences and sentences against records whose values are known."""

import pandas as pd
import pytest
from ncbook import runs as book_runs
from ncbook.chapters import wikipedia as page
from records_made import save_category

import nclib

MACHINE = {"val_pairs": 231, "test_pairs": 462, "device": "CPU", "preset": "standard", "dataset": "wikipedia"}
MACHINE |= {"scope": "modality"}
ACCURACY = {"given_accuracy": 0.64, "corrected_accuracy": 0.59}
ACCURACY |= {"predicted_accuracy_image": 0.31, "predicted_accuracy_text": 0.63}


def made(label, values, rate=0.4, **columns):
    """Rows of one method, one seed per value."""
    same = {"label": label, "method": label, "noise_rate": rate, **MACHINE, **columns}
    return pd.DataFrame([{**same, "seed": k, "map_avg": v} for k, v in enumerate(values)])


@pytest.fixture
def runs():
    return pd.concat(
        [
            made("uot_rcl", [0.20, 0.21, 0.19], **ACCURACY),
            made("mrl", [0.30, 0.31, 0.31]),
            made("elrcmr", [0.31, 0.30, 0.30]),
            made("deep_sm", [0.25, 0.26, 0.24]),
            made(page.CORRECTION, [0.35, 0.36, 0.35]),
            made("mrl", [0.33], rate=0.2),
            made("uot_rcl", [0.34], rate=0.2, **ACCURACY),
        ]
    )


def test_sentences_follow_the_records(runs):
    said = page.sentences(runs).data
    assert "at 0.4 place 4 of 4 (best: `mrl`), printed 1 of 16" in said
    assert "against `mrl`**, same seeds: above, one seed at 0.2; behind at 0.4." in said
    assert "added to cross entropy**: ahead at 0.4." in said
    assert "(ELRCMR's correction)**: undecided at 0.4." in said
    assert "at 0.4 64% of the given labels are right and 59% of the corrected ones" in said
    assert "no labels" not in said
    level = pd.concat([runs, made(page.CONTRAST, [0.3]), made(page.BOTH, [0.3001]), made("pls", [0.28])])
    said = page.sentences(level).data
    assert "added to cross entropy + pair contrast**: level, one seed at 0.4." in said
    assert "no labels**: at 0.4 `pls`, place 3 of 5." in said
    better = runs.assign(map_avg=runs["map_avg"].where(runs["label"] != "uot_rcl", runs["map_avg"] + 0.3))
    said = page.sentences(better).data
    assert "at 0.4 place 1 of 4 (best: `uot_rcl`)" in said
    assert "against `mrl`**, same seeds: above, one seed at 0.2; ahead at 0.4." in said


def test_the_page_without_records(tmp_path, monkeypatch):
    monkeypatch.setattr(book_runs, "RECORDED", tmp_path)
    runs = page.wikipedia_runs()
    assert page.summary(runs).startswith("no recorded runs")
    drawn = (page.rate_table, page.part_table, page.lead_table, page.correction_table, page.rate_curves)
    assert [draw(runs) for draw in drawn] == [None] * 5
    assert page.sentences(runs).data == "No records here."


def test_noise_per_pair_has_a_table_of_its_own(tmp_path, monkeypatch):
    for scope, value in (("modality", 0.3), ("pair", 0.2)):
        where = {"dataset": "wikipedia", "preset": "standard", "scope": scope, "noise_rate": 0.4}
        save_category(tmp_path, "nirnl", value, **where, data_options={"root": str(tmp_path)})
    table = nclib.table(tmp_path, "labels")
    monkeypatch.setattr(page, "recorded", lambda _, **where: book_runs.select(table, **where))
    found = {scope: page.wikipedia_runs(scope=scope) for scope in page.NOISE}
    assert {scope: runs["map_avg"].tolist() for scope, runs in found.items()} == {
        "modality": [0.3],
        "pair": [0.2],
    }
    shown = page.rate_table(found["pair"], "per-pair")
    assert "once for both halves of a pair" in shown.to_html()
    assert shown.data["0.4"].to_dict() == {"nirnl": "0.200", "mrl": "not run", "deep_sm": "not run"}


def test_some_records_make_part_of_the_page():
    runs = made("mrl", [0.3], rate=0.8)
    shown = page.rate_table(runs).data
    assert (list(shown.columns), list(shown.index)) == (["0.8"], page.ORDER)
    assert shown.loc["uot_rcl", "0.8"] == "not run"
    assert page.lead_table(runs) is None
    assert "no recorded" not in page.summary(runs)
    assert page.sentences(runs).data == "No records here."
