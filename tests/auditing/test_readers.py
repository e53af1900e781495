"""Readers of pairs: every layout, and what becomes of wrong rows and hostile files."""

import io
import json
import sys
import tarfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from nclib.auditing.embed import read_pairs
from nclib.data.readers import UnreadableError, hub, list_pairs
from nclib.data.readers.listing import Hints
from nclib.data.row_writer import ConvertError

HOSTILE = [
    "<script>alert(1)</script> & <b>bold</b>",
    "שלום עולם, picture from the right",
    "👩‍👩‍👧 a family 🏳️‍🌈",
    "x" * 10_000,
    "'; DROP TABLE pairs; --",
]


def picture(path=None, colour=(200, 10, 10), size=(12, 9)):
    """Bytes of a small PNG picture, also written to ``path``."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def write_table(path, rows, header="image,caption"):
    path.write_text("\n".join([header, *rows]) + "\n", "utf8")
    return path


def tar(path, members):
    with tarfile.open(path, "w") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


# -- tables and folders -------------------------------------------------------------------------------------


def test_a_table_names_pictures_beside_it(tmp_path):
    picture(tmp_path / "a.png", (255, 0, 0))
    picture(tmp_path / "sub" / "b.png", (0, 255, 0))
    table = write_table(tmp_path / "t.csv", ["a.png,red", "sub/b.png,green", "a.png,a red one"])
    found = list_pairs(table)
    assert found.ids == ["a.png#0", "sub/b.png", "a.png#1"]
    assert found.texts == ["red", "green", "a red one"]
    assert found.image_of.tolist() == [0, 1, 0]
    again = write_table(tmp_path / "t.csv", ["a.png,red", "./sub/../a.png,one picture", "sub/b.png,two"])
    assert list_pairs(again).image_of.tolist() == [0, 0, 1]
    assert found.pictures == [str(tmp_path / "a.png"), str(tmp_path / "sub/b.png")]
    assert found.open(1).getpixel((0, 0)) == (0, 255, 0)
    assert found.problems == {}


@pytest.mark.parametrize(
    "text",
    [
        "ID;File Name;Caption\n7;a.png;one, two\n8;b.png;three\n",
        "id|image|caption\n7|a.png|one, two\n8|b.png|three\n",
        'uid\tfilename\ttext\n7\ta.png\t"one, two"\n8\tb.png\tthree\n',
        '\ufeff"key","photo","sentence"\r\n7,a.png,"one, two"\r\n8,b.png,three\r\n',
    ],
)
def test_names_of_columns_and_separators(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, "utf8")
    found = list_pairs(tmp_path / "t.csv", folder=tmp_path)
    assert (found.ids, found.texts) == (["7", "8"], ["one, two", "three"])


def test_utf_16_is_read_by_its_mark(tmp_path):
    (tmp_path / "t.csv").write_text("image,caption\na.png,Käse\n", "utf-16")
    assert list_pairs(tmp_path / "t.csv").texts == ["Käse"]


def test_wrong_rows_are_kept_with_their_reason(tmp_path):
    rows = [
        "a.png,fine",
        "a.png,",
        ",no picture",
        "a.png,two, commas",
        'a.png,"open" quote',
        "b.png,fine too",
    ]
    found = list_pairs(write_table(tmp_path / "t.csv", rows))
    assert len(found.ids) == len(set(found.ids)) == 6
    assert found.problems == {
        1: "the caption is empty",
        2: "no picture is named",
        3: "line 5: 3 cells in 2 columns; put captions that contain ',' into quotation marks",
        4: "line 6: misplaced quotation mark",
    }


def test_bytes_that_are_no_text_spoil_their_row_only(tmp_path):
    (tmp_path / "t.csv").write_bytes("image,caption\na.png,fine\nb.png,Käse\n".encode("latin-1"))
    assert list_pairs(tmp_path / "t.csv").problems == {1: "line 3: bytes that are not UTF-8"}


def test_an_open_quotation_mark_is_an_error(tmp_path):
    with pytest.raises(ConvertError, match="line 3: a quotation mark is left open"):
        list_pairs(write_table(tmp_path / "t.csv", ["a.png,fine", 'b.png,"open', "c.png,lost"]))


def test_hostile_captions_arrive_as_they_are(tmp_path):
    rows = [f'{i}.png,"{text}"' for i, text in enumerate(HOSTILE)]
    assert list_pairs(write_table(tmp_path / "t.csv", rows)).texts == HOSTILE


def test_ids_that_stand_for_several_pictures(tmp_path):
    rows = ["7,a.png,one", "7,b.png,two", "7#0,c.png,three", "8,d.png,four"]
    table = write_table(tmp_path / "t.csv", rows, "id,image,caption")
    with pytest.warns(UserWarning, match="1 ids belong to several pictures, such as '7'"):
        assert list_pairs(table).ids == ["7#1", "7#2", "7#0", "8"]


def test_several_captions_of_one_id_need_no_warning(tmp_path):
    table = write_table(tmp_path / "t.csv", ["7,a.png,one", "7,a.png,two"], "id,image,caption")
    assert list_pairs(table).ids == ["7#0", "7#1"]


def test_a_data_frame(tmp_path):
    import pandas as pd

    picture(tmp_path / "a.png")
    frame = pd.DataFrame({"image": ["a.png", "b.png"], "caption": ["one", None]})
    found = list_pairs(frame, folder=tmp_path)
    assert (found.texts, found.problems) == (["one", ""], {1: "the caption is empty"})
    assert found.open(0).size == (12, 9)


def test_captions_in_numbered_columns(tmp_path):
    table = write_table(tmp_path / "t.csv", ["a.png,one,two"], "image,caption_0,caption_1")
    assert list_pairs(table).texts == ["one", "two"]


def test_pictures_stay_in_their_folder(tmp_path):
    picture(tmp_path / "secret.png")
    inside = tmp_path / "photos"
    inside.mkdir()
    rows = [
        "../secret.png,one",
        f"{tmp_path / 'secret.png'},two",
        "photos/../../secret.png,three",
        "x.png,four",
    ]
    found = list_pairs(write_table(tmp_path / "t.csv", rows), folder=inside)
    for row in range(3):
        with pytest.raises(UnreadableError, match="outside the folder"):
            found.open(row)
    with pytest.raises(UnreadableError, match="missing"):
        found.open(3)


def test_damaged_pictures_say_why(tmp_path):
    whole = picture(tmp_path / "a.png", size=(200, 200))
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "b.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "b.jpg").read_bytes()[:700])
    (tmp_path / "c.png").write_bytes(b"")
    (tmp_path / "d.png").write_text("<html>404</html>")
    (tmp_path / "e.png").write_bytes(whole[:40])
    rows = ["b.jpg,cut", "c.png,empty", "d.png,page", "e.png,header", "https://example.org/x.jpg,url"]
    found = list_pairs(write_table(tmp_path / "t.csv", rows))
    reasons = []
    for row in range(len(rows)):
        with pytest.raises(UnreadableError) as error:
            found.open(row)
        reasons.append(str(error.value))
    assert reasons[0].startswith("the picture cannot be read (image file is truncated")
    assert reasons[1:3] == ["the file is not a picture"] * 2
    assert reasons[4].startswith("a URL: pictures are not downloaded")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    picture(tmp_path / "a.png")
    found = list_pairs(write_table(tmp_path / "t.csv", ["a.png,one"]))
    with pytest.raises(UnreadableError, match="more than 50 pixels"):
        found.open(0)


def test_a_folder_with_its_table(tmp_path):
    picture(tmp_path / "a.png")
    write_table(tmp_path / "captions.csv", ["a.png,one"])
    write_table(tmp_path / "prices.csv", ["a.png,9"])
    assert list_pairs(tmp_path).texts == ["one"]


def test_a_folder_with_a_text_beside_each_picture(tmp_path):
    for name in "ab":
        picture(tmp_path / "00000" / f"{name}.png")
    (tmp_path / "00000" / "a.txt").write_text("one\n")
    found = list_pairs(tmp_path)
    assert (found.ids, found.texts) == (["00000/a.png", "00000/b.png"], ["one", ""])
    assert found.problems == {1: "the caption is empty"}


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, ValueError, "neither a table of captions nor pictures"),
        (
            {"a.csv": "image,caption\na,b\n", "b.csv": "image,caption\na,b\n"},
            ValueError,
            "several tables, a.csv",
        ),
        ({"captions.csv": ""}, ValueError, "line 1: expected .picture<TAB>caption., or a header"),
        ({"captions.csv": "image,caption\n"}, ValueError, "holds no pairs"),
        ({"captions.csv": "image,price\na,b\n"}, ConvertError, "no column of captions"),
        ({"captions.csv": "name,caption\na,b\n"}, ValueError, "no column of pictures: call it 'image'"),
        (
            {"captions.csv": "image,caption\na,\nb,\n"},
            ValueError,
            r"none of the 2 pairs .*\(2\): the caption is",
        ),
    ],
)
def test_folders_without_pairs(tmp_path, files, error, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        list_pairs(tmp_path)


@pytest.mark.parametrize("source", ["/nowhere/t.csv", "nowhere.parquet", 7, None])
def test_what_cannot_be_read_is_said(source):
    with pytest.raises((FileNotFoundError, ValueError), match=r"give a \.npy, \.npz, \.csv"):
        list_pairs(source)


# -- arrays -------------------------------------------------------------------------------------------------


def test_npz_stays_on_disk(tmp_path):
    rng = np.random.default_rng(0)
    images, captions = rng.normal(size=(3, 4)).astype(np.float16), rng.normal(size=(5, 4)).astype(np.float16)
    of = np.array([0, 0, 1, 2, 2])
    np.savez(tmp_path / "e.npz", images=images, captions=captions, image_of=of, ids=list("abcde"))
    pairs = read_pairs(tmp_path / "e.npz")
    assert isinstance(pairs.images, np.memmap)
    assert np.array_equal(pairs.images, images)
    assert np.array_equal(pairs.captions, captions)
    assert (pairs.ids, pairs.image_of.tolist()) == (list("abcde"), of.tolist())


def test_compressed_npz_and_datacomp_names(tmp_path):
    x = np.eye(3, dtype=np.float32)
    np.savez_compressed(tmp_path / "e.npz", b32_img=-x, b32_txt=x, l14_img=x, l14_txt=x)
    assert np.array_equal(read_pairs(tmp_path / "e.npz").images, x)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_of_an_npz_is_noticed(tmp_path, save):
    x = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    save(tmp_path / "e.npz", images=x, captions=x)
    whole = (tmp_path / "e.npz").read_bytes()
    for place in (300, 500, 1100):  # among the numbers of the first array
        (tmp_path / "e.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"e\.npz is not a readable \.npz file"):
            list_pairs(tmp_path / "e.npz")


def test_npy_with_the_captions_apart(tmp_path):
    x = np.eye(3, dtype=np.float32)
    np.save(tmp_path / "i.npy", x)
    np.save(tmp_path / "t.npy", 2 * x)
    pairs = read_pairs(tmp_path / "i.npy", text_emb=tmp_path / "t.npy")
    assert isinstance(pairs.captions, np.memmap)
    assert pairs.ids == ["0", "1", "2"]
    with pytest.raises(ValueError, match="text_emb"):
        list_pairs(tmp_path / "i.npy")


def test_bad_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(2))
    np.savez(tmp_path / "b.npz", images=np.eye(2), captions=np.ones((3, 2)))
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04 nothing")
    np.save(tmp_path / "d.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, message in [
        ("a.npz", "holds x; two arrays must be called images, captions"),
        ("b.npz", "2 pictures and 3 captions"),
        ("c.npz", "not a readable .npz"),
        ("d.npy", "pickled objects, which are never loaded"),
    ]:
        with pytest.raises(ValueError, match=message):
            list_pairs(tmp_path / name, text_emb=None)


@pytest.mark.parametrize("array", [np.float32(3), np.ones(3), np.array([["a"], ["b"], ["c"]])])
def test_arrays_that_are_no_rows_of_numbers(tmp_path, array):
    table = write_table(tmp_path / "t.csv", ["a.png,one", "b.png,two", "c.png,three"])
    np.save(tmp_path / "i.npy", array)
    message = r"i\.npy (must be numbers \(rows, D\), got|.* holds <U1, not real numbers)"
    with pytest.raises(ValueError, match=message):
        list_pairs(table, image_emb=tmp_path / "i.npy")


def test_embeddings_beside_a_table(tmp_path):
    table = write_table(tmp_path / "t.csv", ["a.png,one", "b.png,two", "a.png,three"])
    per_pair = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    pairs = read_pairs(table, image_emb=per_pair, text_emb=per_pair)
    assert pairs.images.tolist() == [[1, 2], [3, 4]]
    assert pairs.captions.tolist() == per_pair.tolist()
    assert read_pairs(table, image_emb=per_pair[:2], text_emb=per_pair).images.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"image_emb must have 2 \(pictures\) or 3 \(pairs\) rows, got 5"):
        list_pairs(table, image_emb=np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"text_emb must have 3 \(captions\) rows, got 2"):
        list_pairs(table, image_emb=per_pair, text_emb=per_pair[:2])
    with pytest.raises(ValueError, match="text_emb needs image_emb"):
        list_pairs(table, text_emb=per_pair)


def test_embeddings_in_cells(tmp_path):
    rows = ['a.png,one,"[1, 0]","[0, 1]"', 'b.png,two,,"[1, 1]"']
    pairs = read_pairs(write_table(tmp_path / "t.csv", rows, "image,caption,image_embedding,text_embedding"))
    assert pairs.captions.tolist() == [[0, 1], [1, 1]]
    assert pairs.problems == {1: "picture embedding is NaN"}


# -- parquet ------------------------------------------------------------------------------------------------


def parquet(path, **columns):
    import pyarrow
    from pyarrow import parquet as file

    path.parent.mkdir(exist_ok=True)
    file.write_table(pyarrow.table(columns), path)
    return path


def test_metadata_of_laion(tmp_path):
    path = parquet(
        tmp_path / "m.parquet",
        SAMPLE_ID=[11, 12],
        URL=["https://x.org/1.jpg", "https://x.org/2.jpg"],
        TEXT=["one", None],
        similarity=[0.3, 0.4],
    )
    found = list_pairs(path)
    assert (found.ids, found.texts) == (["11", "12"], ["one", ""])
    assert found.pictures == ["https://x.org/1.jpg", "https://x.org/2.jpg"]
    assert found.problems == {1: "the caption is empty"}


def test_metadata_of_datacomp_with_embeddings(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float16)
    for part in range(2):
        rows = slice(2 * part, 2 * part + 2)
        parquet(
            tmp_path / f"{part}.parquet", uid=[f"{part}a", f"{part}b"], url=["u", "v"], text=["one", "two"]
        )
        np.savez(
            tmp_path / f"{part}.npz", l14_img=x[rows], l14_txt=-x[rows], b32_img=x[rows], b32_txt=x[rows]
        )
    pairs = read_pairs(tmp_path)
    assert pairs.ids == ["0a", "0b", "1a", "1b"]
    assert np.array_equal(pairs.captions, -x)


def test_embeddings_in_parquet(tmp_path):
    path = parquet(
        tmp_path / "t.parquet",
        image=["a", "b", "a"],
        caption=["one", "two", "three"],
        img_emb=[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]],
        text_emb=[[1.0, 0.0], None, [0.0, 1.0]],
    )
    pairs = read_pairs(path)
    assert pairs.images.tolist() == [[1, 0], [0, 1]]
    assert pairs.problems == {1: "caption embedding is NaN"}


def test_parquet_is_read_in_blocks(tmp_path, monkeypatch):
    import pyarrow

    monkeypatch.setattr("nclib.data.readers.tables.BLOCK", 3)
    x = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    lists = [None, None, None, *x[3:].tolist()]  # nothing in the first block tells the width
    kinds = pyarrow.list_(pyarrow.float32(), 4), pyarrow.large_list(pyarrow.float16())
    for kind in kinds:
        path = parquet(
            tmp_path / "t.parquet",
            image=[f"{i}.png" for i in range(10)],
            caption=[f"number {i}" for i in range(10)],
            img_emb=pyarrow.array(lists, kind),
            text_emb=[json.dumps(row) for row in x.tolist()],
        )
        found = list_pairs(path)
        assert np.isnan(found.images[:3]).all()
        assert np.allclose(found.images[3:], x[3:], atol=2e-3)
        assert np.allclose(found.captions, x)
    lists[8] = [1.0]
    path = parquet(
        tmp_path / "t.parquet", image=["a"] * 10, caption=["b"] * 10, img_emb=lists, text_emb=lists
    )
    with pytest.raises(ValueError, match=r"column img_emb, row 9: 1 numbers, the first row has 4"):
        list_pairs(path)


def test_damaged_parquet(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        list_pairs(tmp_path / "t.parquet")


# -- WebDataset ---------------------------------------------------------------------------------------------


def test_tars(tmp_path):
    red, green = picture(), picture(colour=(0, 255, 0))
    tar(tmp_path / "0.tar", [("a.png", red), ("a.txt", b"one"), ("b.txt", b"two"), ("b.png", green)])
    facts = json.dumps({"uid": "u1", "caption": ["three", "four"]}).encode()
    tar(tmp_path / "1.tar", [("deep/a.json", facts), ("deep/a.png", red)])
    found = list_pairs(tmp_path)
    assert found.ids == ["a", "b", "u1#0", "u1#1"]
    assert found.texts == ["one", "two", "three", "four"]
    assert found.image_of.tolist() == [0, 1, 2, 2]
    assert found.open(1).getpixel((0, 0)) == (0, 255, 0)
    assert found.pictures[2].endswith("1.tar/deep/a")


def test_hostile_tars_write_and_follow_nothing(tmp_path):
    inside = tmp_path / "data"
    inside.mkdir()
    path = tar(
        inside / "0.tar",
        [
            ("../../escape.png", picture()),
            ("../../escape.txt", b"one"),
            ("/etc/passwd.txt", b"two"),
            ("c.json", b"[1, 2"),
            ("c.png", b"no picture"),
            ("d.txt", b"\xff\xfe broken"),
            ("d.png", picture()),
            ("e.txt", b"x" * (1 << 21)),
            ("e.png", picture()),
            ("f.json", json.dumps({"caption": "half \ud800"}).encode()),
            ("f.png", picture()),
        ],
    )
    with tarfile.open(path, "a") as file:
        for name, kind in (
            ("link.png", tarfile.SYMTYPE),
            ("hard.png", tarfile.LNKTYPE),
            ("dev.png", tarfile.CHRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    found = list_pairs(path)
    assert found.texts[:2] == ["one", "two"]
    reasons = [found.problems.get(row, "") for row in range(len(found.ids))]
    assert reasons == [
        "",
        "no picture has this key",
        "the .json is damaged",
        "the caption is not UTF-8",
        ".txt has 2,097,152 bytes, too many for a caption",
        "",
    ]
    found.texts[5].encode("utf8")
    assert found.open(0).size == (12, 9)
    with pytest.raises(UnreadableError, match="not a picture"):
        found.open(2)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_cut_and_compressed_tars(tmp_path):
    members = [
        (f"{i}.{kind}", content) for i in range(4) for kind, content in (("txt", b"one"), ("png", picture()))
    ]
    whole = tar(tmp_path / "0.tar", members).read_bytes()
    (tmp_path / "0.tar").write_bytes(whole[: 1024 * 5 + 100])
    with pytest.warns(UserWarning, match="damaged or cut off"):
        found = list_pairs(tmp_path / "0.tar")
    assert 1 <= len(found.ids) < 4
    (tmp_path / "0.tar").write_bytes(whole[:4096] + b"x" * 512 + whole[4608:])
    with pytest.warns(UserWarning, match="no end is marked at byte 4,096"):
        assert list_pairs(tmp_path / "0.tar").ids == ["0", "1"]
    with tarfile.open(tmp_path / "1.tar", "w:gz") as file:
        file.addfile(tarfile.TarInfo("a.txt"))
    for content in (None, b"", b"no tar" * 200):
        if content is not None:
            (tmp_path / "1.tar").write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot be read as a tar file|holds no pairs"):
            list_pairs(tmp_path / "1.tar")


# -- objects of the library datasets ------------------------------------------------------------------------


class Table:
    """Stands in for ``datasets.Dataset``: columns by name, rows by number, pictures decoded when asked."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        row = {name: values[key] for name, values in self.columns.items()}
        if row.get("image") == b"broken":
            raise OSError("cannot identify image file")
        return row


def test_a_data_set_object_with_several_captions():
    red = Image.new("L", (4, 4))
    found = list_pairs(Table(image=[red, b"broken"], caption=[["one", "two"], ["three"]], id=[5, 6]))
    assert (found.ids, found.texts) == (["5#0", "5#1", "6"], ["one", "two", "three"])
    assert found.image_of.tolist() == [0, 0, 1]
    assert found.open(0).mode == "RGB"
    with pytest.raises(UnreadableError, match="cannot identify"):
        found.open(1)


def test_a_data_set_object_with_paths_and_bytes(tmp_path):
    picture(tmp_path / "a.png")
    found = list_pairs(Table(image=["a.png", "a.png"], caption=["one", "two"]), folder=tmp_path)
    assert found.image_of.tolist() == [0, 0]
    assert found.open(0).size == (12, 9)
    found = list_pairs(Table(image=[{"bytes": picture(), "path": None}], caption=["one"]))
    assert found.open(0).size == (12, 9)


def test_splits_must_be_chosen():
    class Splits(dict):
        column_names = {}  # noqa: RUF012

    parts = Splits(train=Table(image=["a"], caption=["one"]), test=Table(image=["b"], caption=["two"]))
    assert list_pairs(parts, split="test").texts == ["two"]
    with pytest.raises(ValueError, match="train, test; choose one"):
        list_pairs(parts)
    with pytest.raises(ValueError, match=r"split=.*: must be one of 'train', 'test'"):
        list_pairs(parts, split="dev")
    with pytest.raises(ValueError, match=r"no column of captions|no column of pictures"):
        list_pairs(Table(image=["a"], label=[1]))


def test_a_library_that_runs_the_script_of_a_data_set_is_refused(monkeypatch):
    monkeypatch.setattr(hub, "no_package", lambda: False)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(__version__="3.6.0"))
    with pytest.raises(ImportError, match=r"owner/name needs datasets 4 or later, 3.6.0 is installed"):
        hub.read_hub(Path("owner/name"), Hints())


def test_no_reader_leaves_files_open(tmp_path):
    tar(tmp_path / "0.tar", [("a.png", picture()), ("a.txt", b"one")])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        list_pairs(tmp_path).open(0)
