"""The field's printed rows: nothing ranks across kinds of noise, and known values are where they belong."""

import pytest
from ncbook import field, printed


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


def test_sums_that_do_not_add_up_are_marked(rows):
    wrong = field.wrong_sums(rows)
    first = wrong.iloc[0]
    assert (first["paper"], first["method"], first["difference"]) == ("MGCS", "BiCro", 7.0)
    assert (wrong["difference"].abs() > field.ROUNDING).all()
    assert len(wrong[wrong["paper"] == "MGCS"]) == 8
    table = field.field_table(rows)
    assert "sum +7.0" in table.notes


def test_the_best_never_crosses_kinds_of_noise_or_features(rows):
    best = field.best_rows(rows)
    assert best.index.names == [*field.GROUP, "rate"]
    assert field.LEVELS[""] not in best.index.get_level_values("noise")
    at = ("Flickr30K", "regions")
    assert best.loc[(*at, field.LEVELS["captions"], "0.2"), "several"] == "IN2R 511.6 (IN2R 1)"
    assert best.loc[(*at, field.LEVELS["images"], "0.2"), "one"] == "L2RM-SGR 492.5 (L2RM 6)"
    assert "MGCS 515.4" not in best.to_string()  # its sum does not add up
    table = field.field_table(rows)
    assert set(table.apart) == set(field.GROUP) <= set(table.filters)
    first = [field.field_table(rows, rate=rate).filters["rate"] for rate in ("0.6", "0.3")]
    assert first == ["0.6", ""]


def test_reruns_stand_beside_what_they_repeat(rows):
    found = field.reruns(rows)
    at = ("Flickr30K", "regions", field.LEVELS["images"], "0.2", "L2RM-SGR")
    assert found.loc[at].to_list() == ["492.5 (L2RM)", "490.3 (L2RM repository)", "2.2"]
    crcl = found.loc[("Flickr30K", "regions", field.LEVELS["captions"], "0.8", "CRCL")]
    assert crcl["re-run by others"] == "401.2 (CRCL repository)"
    assert field.reruns(one(rows, paper="L2RM")).empty


def test_papers_that_mix_both_kinds_are_found(rows):
    assert {"IN2R, table 1", "UCPM, table I", "UGNCL, table 1", "REPAIR, table I"} <= set(
        field.mixing_papers(rows)
    )
    kinds = field.kinds_mixed(rows)
    assert kinds.loc[("Flickr30K", "regions", "0.6", "NCR"), field.LEVELS["images"]] == "184.6"
