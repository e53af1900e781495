"""The page on Wikipedia: rows, differences and sentences against records whose values are known."""

import pandas as pd
import pytest
from ncbook import runs as book_runs
from ncbook.chapters import wikipedia as page
from records_made import collect, save_category

WIKIPEDIA = {"dataset": "wikipedia", "preset": "standard", "data_options": {"root": "somewhere"}}
MACHINE = {"device": "CPU", "preset": "standard", "dataset": "wikipedia"}
ACCURACY = {
    "given_accuracy": 0.64,
    "corrected_accuracy": 0.59,
    "predicted_accuracy_image": 0.31,
    "predicted_accuracy_text": 0.63,
}


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


def test_records_are_read_without_the_place_of_the_data(tmp_path, monkeypatch):
    def save(method, value, **given):
        save_category(tmp_path, method, value, **{**WIKIPEDIA, "noise_rate": 0.4, **given})

    save("uot_rcl", 0.2)
    save("uot_rcl", 0.3, lam=0.0)
    save("uot_rcl", 0.4, plc="ce", relation="instance")
    save("uot_rcl", 0.5, gamma=0.5)  # no row of the page
    save("mrl", 0.6)
    save("mrl", 0.7, epochs=30)
    save("mrl", 0.8, preset="quick")
    collect(tmp_path)
    monkeypatch.setattr(book_runs, "RECORDED", tmp_path)
    assert page.wikipedia_runs("quick")["map_avg"].to_list() == [0.8]
    found = page.wikipedia_runs().set_index("label")["map_avg"]
    assert found.to_dict() == {"uot_rcl": 0.2, page.CORRECTION: 0.3, page.CONTRAST: 0.4, "mrl": 0.6}


def test_tables_hold_the_means_in_the_order_of_the_page(runs):
    shown = page.rate_table(runs)
    rates = shown.data
    assert list(rates.index) == ["uot_rcl", "mrl", "elrcmr", "deep_sm"]
    assert rates.loc["uot_rcl", "0.4"] == "0.200 ± 0.010"
    assert ", 3 seeds unless a number is given;" in shown.caption
    assert rates.loc["deep_sm", "0.2"] == "no record"
    parts = page.part_table(runs).data
    assert list(parts.columns) == ["0.4"]
    assert list(parts.index) == ["uot_rcl", page.CORRECTION, "deep_sm", "mrl", "elrcmr"]
    assert len(page.rate_curves(runs).axes[0].get_lines()) >= 4


def test_differences_are_of_equal_seeds(runs):
    lead = page.lead_table(runs).data
    assert lead.loc["mrl", "0.2"] == "+0.010 (1)"
    assert lead.loc["mrl", "0.4"].startswith("-0.107 [")
    assert lead.loc["elrcmr", "0.2"] == "no record"
    correction = page.correction_table(runs).data
    assert correction.loc["cross entropy", "0.4"].startswith("+0.103 [")
    assert page.CONTRAST not in correction.index  # no runs
    assert page.correction_table(runs).caption.startswith("Measured on Wikipedia, preset standard")
    drawn = page.correction_table(runs.assign(dataset="emoji_category", preset="quick"))
    assert drawn.caption.startswith("Measured on drawn objects, preset quick")


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


def test_some_records_make_part_of_the_page():
    runs = made("mrl", [0.3], rate=0.8)
    assert list(page.rate_table(runs).data.columns) == ["0.8"]
    assert page.lead_table(runs) is None
    assert "no recorded" not in page.summary(runs)
    assert page.sentences(runs).data == "No records here."
