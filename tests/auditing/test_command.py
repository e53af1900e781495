"""The command ``nclib audit``: from a table to the page, and what it says about mistakes."""

import html
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import nclib
from nclib.cli import main
from nclib.common.lock import sole_writer

N = 120


@pytest.fixture
def material(tmp_path):
    """A table of 120 pairs of which ten are exchanged, hostile captions, and embeddings of both."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(N, 16)).astype(np.float32)
    captions = images + 0.3 * rng.normal(size=(N, 16)).astype(np.float32)
    captions[:10] = captions[9::-1]
    texts = [f"picture {i}" for i in range(N)]
    texts[0], texts[1] = "<script>alert(1)</script>", "\x1b[31mred\x1b[0m שלום 👩‍👧 " + "x" * 10_000
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(N):
        Image.new("RGB", (6, 6), (2 * i, 0, 0)).save(photos / f"{i}.png")
    frame = pd.DataFrame({"image": [f"{i}.png" for i in range(N)], "caption": texts})
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.save(tmp_path / "i.npy", images)
    np.save(tmp_path / "t.npy", captions)
    return tmp_path


def arguments(folder, *more, pairs="t.csv"):
    given = ["--image-emb", str(folder / "i.npy"), "--text-emb", str(folder / "t.npy")]
    photos = ["--images", str(folder / "photos")] if pairs == "t.csv" else []
    return ["audit", str(folder / pairs), "--out", str(folder / "report"), *photos, *given, *more]


def test_from_a_table_to_the_page(material, capsys):
    assert main(arguments(material)) == 0
    said = capsys.readouterr().out
    assert "120 pairs of 120 pictures" in said
    assert "the most suspicious pairs:" in said
    assert "are wrong (" in said
    assert "P(wrong)" in said
    assert "\x1b" not in said  # a caption gives no orders to the terminal
    assert said.splitlines()[-1] == str(material / "report" / "report.html")
    page = (material / "report" / "report.html").read_text("utf8")
    assert "<script>alert(1)" not in page
    command = shlex.join(["nclib", *arguments(material), "--labels", "checked.csv"])
    assert html.escape(command, quote=False) in page
    table = pd.read_csv(material / "report" / "pairs.csv", dtype={"id": str})
    assert len(table) == N
    suspects = set(table.sort_values("rank")["id"].head(10))
    assert len(suspects & {f"{i}.png" for i in range(10)}) >= 9
    settings = json.loads((material / "report" / "audit.json").read_text("utf8"))
    assert settings["seed"] == 0


def test_every_reason_is_told_and_labelled_pairs_are_not_shown_again(material, capsys):
    frame = pd.read_csv(material / "t.csv")
    frame.loc[[100, 101], "caption"] = ""
    frame.to_csv(material / "t.csv", index=False)
    captions = np.load(material / "t.npy")
    captions[102] = np.nan
    np.save(material / "t.npy", captions)
    (material / "checked.csv").write_text("id,label\n3.png,wrong\n4.png,wrong\n")
    assert main(arguments(material, "--labels", str(material / "checked.csv"))) == 0
    said = capsys.readouterr().out
    assert "3 could not be judged: the caption is empty (2); caption embedding is NaN (1)" in said
    suspects = said.partition("the most suspicious pairs without a label:")[2]
    assert suspects.count("P(wrong)") == 5
    assert "3.png" not in suspects
    assert "4.png" not in suspects


def test_a_picture_outside_the_folder_is_shown_to_those_who_follow_it(material):
    frame = pd.read_csv(material / "t.csv")
    for name in ("secret.png", "x" * 300 + ".png"):  # the first suspect, and a name that no file can have
        frame.loc[frame.index[0 if name == "secret.png" else 1], "image"] = str(material / name)
    Image.new("RGB", (6, 6), "white").save(material / "secret.png")
    frame.to_csv(material / "t.csv", index=False)
    pages = []
    for more in ([], ["--follow"]):
        assert main(arguments(material, *more)) == 0
        pages.append((material / "report" / "report.html").read_text("utf8"))
    assert pages[1].count("data:image/") == pages[0].count("data:image/") + 1


def test_what_a_spreadsheet_would_run_is_text_in_its_files(material):
    formula = '=HYPERLINK("http://example.org","x")'
    frame = pd.read_csv(material / "t.csv").assign(
        id=[*(f"{sign}1+1" for sign in "=+-@"), *map(str, range(4, N))]
    )
    frame["caption"] = [formula, "-5", *frame["caption"][2:]]
    frame.to_csv(material / "t.csv", index=False)
    (material / "checked.csv").write_text("id,label\n'=1+1,wrong\n+1+1,right\n")
    more = "--labels", str(material / "checked.csv"), "--keep", "cleanlab"
    assert main(arguments(material, *more)) == 0
    table = pd.read_csv(material / "report" / "pairs.csv", dtype=str)
    assert table["id"][:5].tolist() == ["'=1+1", "'+1+1", "'-1+1", "'@1+1", "4"]
    assert table["caption"][:2].tolist() == [f"'{formula}", "-5"]
    assert table["p_wrong"][:2].tolist() == ["1.0", "0.0"]
    assert "'@1+1," in (material / "report" / "cleanlab.csv").read_text()


def test_marks_and_edits_of_the_page_lead_to_kept_data(material, capsys):
    frame = pd.read_csv(material / "t.csv").assign(language=["de", "en"] * (N // 2))
    frame.rename(columns={"image": "photo_path", "caption": "words"}).to_csv(material / "t.csv", index=False)
    checked = material / "checked.csv"
    checked.write_text("id;label;new_caption\n3.png;wrong;a picture of mine\n40.png;wrong;\n")
    more = f"--image-column photo_path --caption-column words --by Language --labels {checked} --keep parquet"
    assert main(arguments(material, *more.split(), "--quiet")) == 0
    report = material / "report"
    assert capsys.readouterr().out.splitlines() == [str(report / "kept.parquet"), str(report / "report.html")]
    kept = pd.read_parquet(report / "kept.parquet").set_index("id")
    assert kept.loc["3.png", ["caption", "language"]].tolist() == ["a picture of mine", "en"]
    assert "40.png" not in kept.index
    settings = json.loads((report / "audit.json").read_text("utf8"))
    assert {one["value"]: one["pairs"] for one in settings["by"]} == {"de": 60, "en": 60}
    assert '"edits": [["3.png", "a picture of mine"]]' in (report / "report.html").read_text("utf8")
    assert nclib.readers.list_pairs(report / "kept.parquet").open(0).size == (6, 6)
    given = {"image_emb": material / "i.npy", "text_emb": material / "t.npy", "image_column": "photo_path"}
    one = nclib.audit(material / "t.csv", images=material / "photos", caption_column="words", **given)
    assert one.pairs.pictures[0] == str(material / "photos" / "0.png")


def test_the_second_audit_in_a_folder_stops(material, capsys):
    with sole_writer(material / "report"):
        assert main(arguments(material)) == 2
    assert "report is being written by process" in capsys.readouterr().err
    assert not (material / "report" / "report.html").exists()


def test_scores_that_tell_nothing_are_called_weak(material, capsys):
    rng = np.random.default_rng(1)
    np.save(material / "t.npy", rng.normal(size=(N, 16)).astype(np.float32))
    assert main(arguments(material)) == 0
    assert "hardly tells the given pairs from those exchanged" in capsys.readouterr().out
    assert "Weak score." in (material / "report" / "report.html").read_text("utf8")
    np.savez(material / "one.npz", images=np.eye(1, 4), captions=np.eye(1, 4))
    assert main(["audit", str(material / "one.npz"), "--out", str(material / "report")]) == 0
    said = capsys.readouterr().out
    assert "No probabilities: too few pairs" in said
    assert "nan" not in said
    assert "Weak score." not in (material / "report" / "report.html").read_text("utf8")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--score", "cosin"], "must be one of 'auto', .*cosine"),
        (["--labels", "/nowhere.csv"], "--labels /nowhere.csv: there is no such file"),
        (["--images", "/nowhere"], "/nowhere is not a folder"),
        (["--image-emb", "/nowhere.npy"], "image_emb: there is no file"),
        (["--model", "/nowhere"], "model='/nowhere' is neither a folder"),
        (["--model", "/nowhere", "--device", "gpu"], "device='gpu' cannot be used here"),
        (["--seed", "-1"], "--seed: '-1': must be a whole number, at least 0"),
    ],
)
def test_mistakes_end_in_one_line(material, capsys, more, message):
    try:
        status = main(arguments(material, *more))
    except SystemExit as end:  # of the parser
        status = end.code
    assert status == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, last)
    assert not (material / "report" / "report.html").exists()
