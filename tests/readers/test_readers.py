"""Readers of pairs: every layout, and what becomes of wrong rows and hostile files."""

import csv
import gzip
import io
import json
import os
import zipfile

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from nclib.auditing.embed import read_pairs
from nclib.auditing.pairs import from_arrays
from nclib.common.row_writer import ConvertError
from nclib.readers import UnreadableError, captions_table, list_pairs

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


# -- tables and folders -------------------------------------------------------------------------------------


def test_bytes_that_are_no_text_spoil_their_row_only(tmp_path):
    (tmp_path / "t.csv").write_bytes("image,caption\na.png,fine\nb.png,Käse\n".encode("latin-1"))
    said = "line 3: bytes that are not UTF-8; it looks like cp1252, give that as --encoding"
    assert list_pairs(tmp_path / "t.csv").problems == {1: said}
    assert list_pairs(tmp_path / "t.csv", encoding="cp1252").texts == ["fine", "Käse"]
    with pytest.raises(ValueError, match="encoding 'cp125' is not known; give utf-8, cp1252"):
        list_pairs(tmp_path / "t.csv", encoding="cp125")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("ein Käse und drei Brötchen für mich", "cp1252"),
        ("собака бежит по траве", "cp1251"),
        ("犬が公園の芝生を走っています", "shift_jis"),
        ("一只狗在公园的草地上奔跑", "gb18030"),
        ("개가 공원 잔디밭을 달리고 있다", "euc_kr"),
        ("a dog", "utf-16-le"),
        ("a dog", "utf-16-be"),
    ],
)
def test_the_likely_encoding_is_named_and_reads_the_table(tmp_path, text, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes(f"image,caption\na.png,{text}\n".encode(encoding))
    with pytest.raises((ValueError, ConvertError), match=f"looks like {encoding}, give that as --encoding"):
        list_pairs(path)
    assert list_pairs(path, encoding=encoding).texts == [text]


def test_columns_of_other_names_are_named_and_own_ones_are_carried_along(tmp_path):
    write_table(tmp_path / "t.csv", ["a.png,one,de,x", "a.png,two,en,y"], "Img Path,txt,language,caption")
    found = list_pairs(tmp_path / "t.csv", image_column="img path", caption_column="txt")
    assert (found.pictures, found.texts) == ([str(tmp_path / "a.png")], ["one", "two"])
    assert found.columns.to_dict("list") == {"language": ["de", "en"], "caption": ["x", "y"]}
    with pytest.raises(ValueError, match=r"has no column .txtt.; did you mean 'txt'.*columns: img_path, txt"):
        list_pairs(tmp_path / "t.csv", image_column="img_path", caption_column="txtt")
    with pytest.raises(ValueError, match=r"no column of pictures: call it .image., or .* as --image-column"):
        list_pairs(tmp_path / "t.csv")


def test_compressed_tables_and_line_ends_of_old_macs(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"image,caption\ra.png,one\rb.png,two\r"))
    assert list_pairs(tmp_path).texts == ["one", "two"]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"image,caption\na.png,one\n")[:-6])
    with pytest.raises(ConvertError, match=r"t\.csv\.gz cannot be read \(Compressed file ended"):
        list_pairs(tmp_path / "t.csv.gz")


def test_captions_of_coco(tmp_path):
    path = tmp_path / "captions_val.json"
    images = [{"id": 7, "file_name": "7.jpg", "width": 3}, {"id": 9, "file_name": "../9.jpg"}]
    told = {9: "nine ", 7: "seven", 8: "no picture"}
    notes = [{"id": n, "image_id": i, "caption": text} for n, (i, text) in enumerate(told.items(), 1)]
    path.write_text(json.dumps({"images": images, "annotations": [*notes, "broken"]}))
    found = list_pairs(path, folder=tmp_path)
    assert (found.ids[:3], found.texts[:3]) == (["1", "2", "3"], ["nine", "seven", "no picture"])
    assert found.problems == {2: "no picture is named", 3: "object 4 is not a JSON object"}
    assert found.columns["image_id"][:3].tolist() == [9, 7, 8]
    with pytest.raises(UnreadableError, match="outside the folder"):
        found.open(found.image_of[0])
    path.write_text('{"info": 1}')
    with pytest.raises(ValueError, match="holds neither COCO"):
        list_pairs(path)


def test_metadata_of_an_image_folder(tmp_path):
    picture(tmp_path / "0.png")
    first = '{"file_name": "0.png", "text": "one", "lang": "de", "box": {"a": [1]}}'
    (tmp_path / "metadata.jsonl").write_text(first + '\n\n{\n{"text": "x"}')
    found = list_pairs(tmp_path)
    assert (found.ids[0], found.texts) == ("0.png", ["one", "", "x"])
    assert found.problems == {1: "line 3 is not a JSON object", 2: "no picture is named"}
    assert list(found.columns) == ["lang"]
    lines = [json.dumps({"image": "0.png", "text": text}, ensure_ascii=False) for text in ("a\u2028b", [{}])]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), "utf8")
    found = list_pairs(tmp_path / "t.jsonl")
    assert (found.texts[0], found.problems) == ("a b", {1: "the caption is a dict, not text"})
    assert found.open(0).size == (12, 9)


def test_the_layouts_of_karpathy_and_llava(tmp_path):
    sentences = [{"raw": "one"}, {"tokens": ["two", "words"]}]
    pictures = [{"filepath": "val", "filename": "7.jpg", "sentences": sentences, "split": "val"}]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": pictures, "dataset": "coco"}))
    found = list_pairs(tmp_path / "dataset_coco.json")
    assert (found.texts, found.splits) == (["one", "two words"], ["val", "val"])
    assert found.pictures == [str(tmp_path / "val" / "7.jpg")]
    turns = [{"from": "human", "value": "<image>\nDescribe it."}, {"from": "gpt", "value": "a dog"}]
    (tmp_path / "l.json").write_text(json.dumps([{"id": 3, "image": "a.jpg", "conversations": turns}]))
    found = list_pairs(tmp_path / "l.json")
    assert (found.ids, found.texts) == (["3"], ["a dog"])


@pytest.mark.parametrize("header", ["filepath\ttitle", "url\talt_text", "img\tprompt", "path\tlabel"])
def test_headers_of_other_tools_are_no_pairs(tmp_path, header):
    found = list_pairs(write_table(tmp_path / "t.csv", ["a.png\tone", "b.png\ttwo"], header))
    assert found.texts == ["one", "two"]


def test_a_header_of_unknown_names_is_never_a_pair_without_a_word(tmp_path):
    table = write_table(tmp_path / "t.tsv", ["a.png\tone", "b.png\ttwo"], "datei\tbeschreibung")
    with pytest.raises(ConvertError, match="--caption-column"):
        list_pairs(table)
    assert list_pairs(table, image_column="datei", caption_column="beschreibung").texts == ["one", "two"]
    with pytest.warns(UserWarning, match="first line, 'datei.*--caption-column"):
        found = list_pairs(write_table(tmp_path / "t.tsv", ["17\tone", "18\ttwo"], "datei\tbeschreibung"))
    assert len(found.ids) == 3
    (tmp_path / "t.csv").write_bytes("dateiname,größe\na.png,Käse\n".encode("cp1252"))
    with pytest.raises(ConvertError, match="--encoding"):
        list_pairs(tmp_path / "t.csv")


def test_no_column_is_lost_to_another_of_its_name(tmp_path):
    table = write_table(tmp_path / "t.csv", ["a.png,one,two,,"], "image,caption,Caption,,")
    frame = pd.DataFrame([["a.png", "one", "two"]], columns=["image", "caption", "caption"])
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=list(frame)), tmp_path / "t.parquet"
    )
    for source in (table, frame, tmp_path / "t.parquet"):
        with pytest.raises(ConvertError, match="several columns 'caption'; rename all but one"):
            list_pairs(source)


def test_a_nul_is_no_other_encoding(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"image,caption\na.png,o\x00ne\n")
    assert list_pairs(tmp_path / "t.csv").texts == ["o\x00ne"]


def test_a_huge_cell_refuses_its_row_and_a_packed_bomb_the_file(tmp_path, monkeypatch):
    limit = csv.field_size_limit()
    rows = ["a.png,one", f"b.png,{'x' * 200_000}", "c.png,three"]
    found = list_pairs(write_table(tmp_path / "t.csv", rows))
    assert found.problems == {1: "line 3: a cell of more than 131,072 characters"}
    assert found.texts[2] == "three"
    assert csv.field_size_limit() == limit
    monkeypatch.setattr(captions_table, "LARGEST_TEXT", 1000)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"image,caption\n" + b"a.png,one\n" * 200))
    with pytest.raises(ConvertError, match="more than 1,000 bytes when unpacked"):
        list_pairs(tmp_path / "t.csv.gz")


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA])
def test_missing_values_are_missing_captions_and_no_words(missing):
    frame = pd.DataFrame({"image": ["a.png", "b.png"], "caption": pd.Series(["one", missing], dtype=object)})
    found = list_pairs(frame)
    assert (found.texts, found.problems) == (["one", ""], {1: "the caption is empty"})
    pairs = from_arrays(np.eye(3), np.eye(3), texts=["one", missing, "three"])
    assert (pairs.texts, pairs.problems) == (["one", "", "three"], {1: "the caption is empty"})


def test_hostile_captions_several_of_one_id_and_numbered_columns_arrive_as_they_are(tmp_path):
    rows = [f'{i}.png,"{text}"' for i, text in enumerate(HOSTILE)]
    assert list_pairs(write_table(tmp_path / "t.csv", rows)).texts == HOSTILE
    table = write_table(tmp_path / "t.csv", ["7,a.png,one,two"], "id,image,caption_0,caption_1")
    assert (list_pairs(table).ids, list_pairs(table).texts) == (["7#0", "7#1"], ["one", "two"])


@pytest.mark.parametrize("doubled", [False, True])
def test_names_may_begin_with_that_of_the_folder(tmp_path, doubled):
    folder = tmp_path / "pics"
    place = folder / "pics" if doubled else folder
    place.mkdir(parents=True)
    Image.new("RGB", (3, 4)).save(place / "a.png")
    (tmp_path / "t.csv").write_text("image,caption\npics/a.png,one\n./pics\\a.png,two\n")
    listing = list_pairs(tmp_path / "t.csv", folder=folder)
    assert listing.image_of.tolist() == [0, 0]
    assert listing.open(0).size == (3, 4)


def test_pictures_stay_in_their_folder(tmp_path):
    picture(tmp_path / "secret.png")
    (inside := tmp_path / "photos").mkdir()
    names = ("../secret.png", tmp_path / "secret.png", "photos/../../secret.png", "x.png")
    table = write_table(tmp_path / "t.csv", [f"{name},caption" for name in names])
    found = list_pairs(table, folder=inside)
    for row, said in enumerate(["outside the folder"] * 3 + ["missing"]):
        with pytest.raises(UnreadableError, match=said):
            found.open(row)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut.jpg", r"the picture cannot be read \(image file is truncated"),
        *((name, "is not a picture in JPEG, PNG") for name in ("empty.png", "page.png", "a.eps", "a.pdf")),
        ("bomb.png", "more than 5,000 pixels"),
        ("https://example.org/x.jpg", "a URL: pictures are not downloaded"),
    ],
)
def test_damaged_pictures_say_why(tmp_path, monkeypatch, name, reason):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.jpg")
    os.truncate(tmp_path / "cut.jpg", 700)
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "page.png").write_text("<html>404</html>")
    for kind in ("eps", "pdf"):  # of which some start a program
        Image.new("RGB", (8, 8)).save(tmp_path / f"a.{kind}")
    picture(tmp_path / "bomb.png", size=(200, 200))
    found = list_pairs(write_table(tmp_path / "t.csv", [f"{name},caption"]))
    with pytest.raises(UnreadableError, match=reason):
        found.open(0)


def test_pictures_are_read_as_a_person_sees_them(tmp_path):
    ramp = np.tile(np.arange(32, dtype=np.uint8) * 8, (16, 1))
    deep, clear = Image.fromarray(ramp.astype(np.uint16) * 256), np.zeros((16, 32, 4), np.uint8)
    clear[:, :8, 3] = 255  # black, of which three quarters are transparent
    (turned := Image.Exif())[0x0112] = 6
    deep.save(tmp_path / "deep.png")
    Image.fromarray(ramp.astype(np.float32) / 248).save(tmp_path / "float.tif")
    Image.fromarray(clear).save(tmp_path / "clear.png")
    Image.fromarray(ramp).save(tmp_path / "turned.png", exif=turned)
    names = ("deep.png", "float.tif", "clear.png", "turned.png")
    found = list_pairs(write_table(tmp_path / "t.csv", [f"{name},x" for name in names]))
    deep, float_, clear, turned = (np.asarray(found.open(row)) for row in range(4))
    assert (deep[0, [0, 16, 31], 0].tolist(), float_[0, 31, 0]) == ([0, 131, 255], 255)
    assert (clear[0, 0, 0], clear[0, 31, 0]) == (0, 255)
    assert turned.shape == (32, 16, 3)


def test_pictures_in_the_cells_of_a_table_are_refused(tmp_path):
    for cell in ({"bytes": picture(), "path": None}, picture(), ["a.png"], Image.new("RGB", (3, 3))):
        with pytest.raises(ValueError, match=r"'image': holds pictures or lists .*datasets\.load_dataset"):
            list_pairs(pd.DataFrame({"image": [cell, cell], "caption": ["one", "two"]}))


def test_a_folder_with_its_table(tmp_path):
    write_table(tmp_path / "captions.csv", ["a.png,one"])
    write_table(tmp_path / "prices.csv", ["a.png,9"])
    assert list_pairs(tmp_path).texts == ["one"]
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        list_pairs(tmp_path / "t.parquet")


def test_a_folder_with_a_text_beside_each_picture(tmp_path):
    for name in "ab":
        picture(tmp_path / "00000" / f"{name}.png")
    (tmp_path / "00000" / "a.txt").write_text("one\n")
    found = list_pairs(tmp_path)
    assert (found.ids, found.texts) == (["00000/a.png", "00000/b.png"], ["one", ""])
    assert found.problems == {1: "the caption is empty"}


TABLE, EYE = "image,caption\na,b\n", np.eye(3)


def npz(**arrays):
    """Content of an .npz file."""
    np.savez(buffer := io.BytesIO(), **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("files", "given", "message"),
    [
        ({}, {}, "neither a table of captions nor pictures"),
        ({"a.csv": TABLE, "b.csv": TABLE}, {}, "several tables, a.csv"),
        ({"t.csv": ""}, {}, "t.csv is empty"),
        ({"t.csv": "image,caption\n"}, {}, "holds no pairs"),
        ({"t.csv": "image,price\na,b\n"}, {}, "no column of captions"),
        ({"t.csv": "name,caption\na,b\n"}, {}, "no column of pictures: call it 'image'"),
        ({"t.csv": "image,caption\na,\nb,\n"}, {}, r"none of the 2 pairs .*\(2\): the caption is"),
        ({"t.csv": TABLE + 'b,"open\nc,lost\n'}, {}, "line 3: a quotation mark is left open"),
        ({"t.csv": TABLE}, {"left": "aa", "right": "caption"}, r"no column 'aa' \(columns.*: image, caption"),
        ({"t.csv": TABLE}, {"left": "image", "right": "image"}, "must name two columns"),
        ({"t.csv": TABLE}, {"split": "train"}, "split='train': not read from .*t.csv; leave it out"),
        ({"a.npz": npz(x=EYE)}, {}, "holds x; two arrays must be called images, captions"),
        ({"a.npz": npz(images=EYE, captions=EYE[:2])}, {}, "3 pictures and 2 captions"),
        ({"a.npz": npz(images=EYE, captions=EYE, image_of=[0.5, 1, 2])}, {}, "image_of.* whole numbers"),
        ({"a.npz": b"PK\x03\x04 nothing"}, {}, "not a readable .npz"),
        ({"t.csv": b"PK\x03\x04 nothing"}, {}, "workbook of Excel; save its sheet as CSV"),
        ({"t.csv": gzip.compress(b"image,caption")}, {}, "t.csv is packed by gzip"),
        ({"t.csv": "a dog.\tx/1.jpg\na cat.\thttps://x.org/2\n"}, {}, "caption<TAB>picture"),
        ({"t.csv": "1.jpg\ta dog\tde\n"}, {}, "line 1: expected 'picture<TAB>caption', or a header"),
        ({"t.csv": TABLE}, {"folder": EYE}, "must be a path, got a ndarray; embeddings .* image_emb="),
        ({"a.npz": npz(images=np.array([{}]), captions=EYE)}, {}, "Object arrays|pickled objects"),
        ({"a.npz": npz(images=EYE, captions=EYE)}, {"caption_column": "x"}, "caption_column='x': not read"),
        ({"a.npz": npz(images=EYE, captions=EYE)}, {"encoding": "utf-8"}, "encoding='utf-8': not read from"),
    ],
)
def test_what_holds_no_pairs_is_refused(tmp_path, files, given, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    source = tmp_path / next((name for name in files if name in ("t.csv", "a.npz")), "")
    with pytest.raises((ValueError, TypeError, ConvertError), match=message):
        list_pairs(source, **given)


@pytest.mark.parametrize("source", ["/nowhere/t.csv", "nowhere.parquet", 7, None, [{"image": "x" * 999}]])
def test_what_cannot_be_read_is_said(source):
    with pytest.raises((FileNotFoundError, ValueError), match=r"^.{,70}give a \.npy, \.npz, \.csv"):
        list_pairs(source)


# -- arrays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_of_an_npz_is_noticed(tmp_path, save):
    x = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    save(tmp_path / "e.npz", images=x, captions=x)
    whole = (tmp_path / "e.npz").read_bytes()
    for place in (300, 500, 1100):  # among the numbers of the first array
        (tmp_path / "e.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"e\.npz is not a readable \.npz file"):
            list_pairs(tmp_path / "e.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_that_claims_more_than_memory_is_refused(tmp_path, save, monkeypatch):
    file, claims = tmp_path / "e.npz", tmp_path / "claims.npz"
    save(file, images=np.zeros((64, 4), np.float32), captions=np.zeros((64, 4), np.float32))
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(claims, "w") as other:
        for info in whole.infolist():
            content = whole.read(info).replace(b"(64, 4)", b"(99999999999, 99999999)")
            other.writestr(info.filename, content, info.compress_type)
    with pytest.raises(ValueError, match=r"claims\.npz (does not fit into memory|is not a readable)"):
        list_pairs(claims)
    monkeypatch.setattr("nclib.readers.arrays._memory", lambda: 2000)
    with pytest.raises(ValueError, match=r"e\.npz does not fit .*2,\d+ bytes.*save each array as \.npy"):
        list_pairs(file)


def test_numbers_that_no_float_holds_spoil_their_row_only(tmp_path):
    rows = [f'{i}.png,a,"[{n}, 1]","[1, 1]"' for i, n in enumerate(("1", "9" * 400, "1e39", "1e999"))]
    table = write_table(tmp_path / "t.csv", rows, "image,caption,image_emb,text_emb")
    assert read_pairs(table).problems == dict.fromkeys((1, 2, 3), "picture embedding is infinite")
    wide = np.ones((4, 2))
    wide[3, 1] = 1e300
    pairs = read_pairs(table, image_emb=wide, text_emb=wide)
    assert list(pairs.problems) == [3]
    assert pairs.unit_images(slice(4))[3].tolist() == [0, 0]


@pytest.mark.parametrize("array", [np.float32(3), np.ones(3), np.array([["a"]] * 3), np.array([{}], object)])
def test_arrays_that_are_no_rows_of_numbers(tmp_path, array):
    table = write_table(tmp_path / "t.csv", ["a.png,one", "b.png,two", "c.png,three"])
    np.save(tmp_path / "i.npy", array, allow_pickle=True)
    said = r"i\.npy.*(must be numbers \(rows, D\), got|holds <U1, not real|pickled objects, which are never)"
    with pytest.raises(ValueError, match=said):
        list_pairs(table, image_emb=tmp_path / "i.npy")


def test_embeddings_beside_a_table(tmp_path):
    table = write_table(tmp_path / "t.csv", ["a.png,one", "b.png,two", "a.png,three"])
    per_pair = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    for images in (per_pair, per_pair[:2]):
        pairs = read_pairs(table, image_emb=images, text_emb=per_pair)
        assert pairs.images.tolist() == [[1, 2], [3, 4]]
        assert pairs.captions.tolist() == per_pair.tolist()
    for given, said in (
        ({"image_emb": np.ones((5, 2))}, r"image_emb must have 2 \(pictures\) or 3 \(pairs\) rows, got 5"),
        ({"image_emb": per_pair, "text_emb": per_pair[:2]}, r"text_emb must have 3 \(captions\) rows, got 2"),
        ({"text_emb": per_pair}, "text_emb needs image_emb"),
    ):
        with pytest.raises(ValueError, match=said):
            list_pairs(table, **given)


def test_an_encoding_of_what_is_unicode_already_is_refused(tmp_path):
    frame = pd.DataFrame({"image": ["a.png"], "caption": ["a dog"]})
    frame.to_parquet(tmp_path / "t.parquet")
    for source in (frame, tmp_path / "t.parquet", tmp_path):
        with pytest.raises(ValueError, match=r"encoding='cp1252': not read from .*Unicode; leave it out"):
            list_pairs(source, encoding="cp1252")
        assert len(list_pairs(source).ids) == 1


# -- parquet ------------------------------------------------------------------------------------------------


def parquet(path, **columns):
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_metadata_of_datacomp_with_embeddings(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float16)
    for part in range(2):
        uid, mine = [f"{part}a", f"{part}b"], x[2 * part : 2 * part + 2]
        parquet(tmp_path / f"{part}.parquet", uid=uid, url=["u", "v"], text=["one", "two"])
        np.savez(tmp_path / f"{part}.npz", l14_img=mine, l14_txt=-mine, b32_img=mine, b32_txt=mine)
    pairs = read_pairs(tmp_path)
    assert pairs.ids == ["0a", "0b", "1a", "1b"]
    assert np.array_equal(pairs.captions, -x)


def test_parquet_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("nclib.readers.tables.BLOCK", 3)
    x = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    lists = [None, None, None, *x[3:].tolist()]  # nothing in the first block tells the width
    words = {"image": [f"{i}.png" for i in range(10)], "caption": [f"number {i}" for i in range(10)]}
    path, texts = tmp_path / "t.parquet", [json.dumps(row) for row in x.tolist()]
    for kind in (pyarrow.list_(pyarrow.float32(), 4), pyarrow.large_list(pyarrow.float16())):
        found = list_pairs(parquet(path, **words, img_emb=pyarrow.array(lists, kind), text_emb=texts))
        assert np.isnan(found.images[:3]).all()
        assert np.allclose(found.images[3:], x[3:], atol=2e-3)
        assert np.allclose(found.captions, x)
    lists[8] = [1.0]
    with pytest.raises(ValueError, match=r"column img_emb, row 9: 1 numbers, the first row has 4"):
        list_pairs(parquet(path, **words, img_emb=lists, text_emb=lists))


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


def test_a_data_set_object_with_paths_and_bytes(tmp_path):
    picture(tmp_path / "a.png")
    found = list_pairs(Table(image=["a.png", "a.png"], caption=["one", "two"]), folder=tmp_path)
    assert found.image_of.tolist() == [0, 0]
    assert found.open(0).size == (12, 9)
    found = list_pairs(Table(image=[{"bytes": picture(), "path": None}], caption=["one"]))
    assert found.open(0).size == (12, 9)
