"""The field's printed rows: nothing ranks across kinds of noise, and known values are where they belong."""

import pytest
from ncbook import field, listed, printed
from pages import cells


@pytest.fixture(scope="module")
def rows():
    return field.field_rows()


def one(rows, **where):
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def test_every_line_has_known_words_and_whole_numbers_of_recalls():
    table = printed("field")
    assert set(table["level"]) <= {"images", "captions", ""}
    assert set(table["ensemble"]) <= {"true", "false", ""}
    assert set(table["source"]) <= {"measured", "reported", ""}
    values = table[[*field.RECALLS, "rsum"]]
    assert (values != "").any(axis=1).all()
    numbers = values.where(values != "").astype(float)
    assert ((numbers >= 0) & (numbers <= 600) | numbers.isna()).all(axis=None)
    assert not table[[c for c in table if c not in values]].duplicated().any()
    assert not (table[table["noise_kind"] != "mismatch"]["level"] != "").any()


def test_known_rows_keep_their_numbers_and_kind(rows):
    at = {"data": "Flickr30K", "rate": "0.6", "method": "NCR"}
    found = {(r["paper"], r["noise"]): r["value"] for _, r in one(rows, **at).iterrows()}
    assert found["L2RM", field.LEVELS["images"]] == 184.6
    assert found["REPAIR", field.LEVELS["captions"]] == 467.7
    (ours,) = one(rows, data="Flickr30K", rate="0.2", method="IN2R", paper="IN2R", table="1")["value"]
    assert ours == 511.6
    copied = one(rows, level_from="equals a row of L2RM")
    assert set(copied["noise"]) == {field.LEVELS["images"]}
    assert "L2RM" not in set(copied["paper"])


@pytest.fixture(scope="module")
def page():
    return cells("field", "load", "table", "best", "kinds-figure", "kinds", "reruns", "sums")


def test_sums_that_do_not_add_up_are_marked(page):
    wrong = page["wrong"]
    first = wrong.iloc[0]
    assert (first["paper"], first["method"], first["difference"]) == ("MGCS", "BiCro", 7.0)
    assert (wrong["difference"].abs() > field.ROUNDING).all()
    assert len(wrong[wrong["paper"] == "MGCS"]) == 8
    notes = page["shown"].set_index(["paper", "method", "off"])["notes"]
    assert "sum +7.0" in notes["MGCS", "BiCro", 7.0]


def test_the_best_never_crosses_kinds_of_noise_or_features(page):
    best = page["best"]
    assert best.index.names == [*field.GROUP, "rate"]
    assert "kind not stated" not in best.index.get_level_values("noise")
    at = ("Flickr30K", "regions")
    assert best.loc[(*at, "captions exchanged", "0.2"), "several"] == "IN2R 511.6 (IN2R 1)"
    assert best.loc[(*at, "images exchanged", "0.2"), "one"] == "L2RM-SGR 492.5 (L2RM 6)"
    assert "MGCS 515.4" not in best.to_string()  # its sum does not add up


def test_the_list_shows_one_kind_at_a_time(rows):
    given = {"title": "t", "slug": "t", "apart": field.GROUP}
    wide = rows.set_index("method")
    for rate, first in (("0.6", "0.6"), ("0.3", "")):
        table = listed(wide, ["rate", *field.GROUP], filters={"rate": rate}, **given)
        assert table.filters == {"rate": first}
        assert table.apart == field.GROUP
        assert len(table.rows) == len(rows) == len(table.file.splitlines()) - 1


def test_reruns_stand_beside_what_they_repeat(page):
    found = page["again"]
    at = ("Flickr30K", "regions", "images exchanged", "0.2", "L2RM-SGR")
    assert found.loc[at, ["printed", "re-run by others"]].to_list() == [
        "492.5 (L2RM)",
        "490.3 (L2RM repository)",
    ]
    assert found.loc[at, "range"] == pytest.approx(2.2)
    crcl = found.loc[("Flickr30K", "regions", "captions exchanged", "0.8", "CRCL")]
    assert crcl["re-run by others"] == "401.2 (CRCL repository)"


def test_papers_that_mix_both_kinds_are_found(page):
    assert {"IN2R, table 1", "UCPM, table I", "UGNCL, table 1", "REPAIR, table I"} <= set(page["mixing"])
    assert page["spans"].loc[("Flickr30K", "regions", "0.6", "NCR"), "images exchanged"] == "184.6"


def test_a_rate_may_be_a_number_as_papermill_gives_it():
    assert cells("field", rate=0.6)["rate"] == "0.6"
    with pytest.raises(ValueError, match="rate=1: must be text"):
        cells("field", rate=1)
