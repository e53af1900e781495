"""Category retrieval on pictures and texts: data, CLIP's towers as networks, training, what is refused."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from local_weights import clip_folder as write_clip
from PIL import Image

import nclib
from nclib import label_noise
from nclib.data import CategoryData, CategorySplit, load
from nclib.data.category_pictures import read_listing
from nclib.data.check import WRONG, check
from nclib.data.row_writer import ConvertError
from nclib.data.rows import RowFile
from nclib.evaluation import mean_average_precision
from nclib.label_noise import LabelBatch, Shape
from nclib.label_noise.parts.pictures import PictureRows, Towers
from nclib.runs import checkpoint, experiment_of, resolve
from nclib.runs.label_trainer import warm_cosine

CATEGORIES = ("tea", "red", "pot")
SPLITS = ["train"] * 24 + ["val"] * 9 + ["test"] * 12
TOKENS = 12  # of the tiny text tower
KINDS = {
    "zero_shot": {},
    "contrastive_heads": {},
    "contrastive_heads unsupervised": {"supervised": False},
    "uot_rcl": {"warmup_epochs": 1, "neighbours": 3, "per_class": 2},
}
SHORT = {"batch_size": 8, "epochs": 3, "lr": 0.05, "noise_rate": 0.4}


def rows_of_table():
    return [
        {
            "image": f"{split}/{i}.png",
            "text": f"a {CATEGORIES[i % 3]}\n and {'pot ' * (i % 20)}",
            "category": CATEGORIES[i % 3],
            "split": split,
        }
        for i, split in enumerate(SPLITS)
    ]


def write_table(folder, rows):
    with open(folder / "pairs.csv", "w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of 45 small pictures in three colours with their table, and a tiny CLIP."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i, row in enumerate(rows := rows_of_table()):
        (folder / row["split"]).mkdir(exist_ok=True)
        pixels = rng.integers(0, 120, (20, 24 + i % 5, 3), dtype=np.uint8)
        pixels[..., i % 3] += 120
        Image.fromarray(pixels).save(folder / row["image"])
    write_table(folder, rows)
    write_clip(folder / "clip")
    return folder


def options(folder, **more):
    clip = {"clip_folder": str(folder / "clip"), "max_tokens": TOKENS}
    return {"data_options": {"root": str(folder), **clip, **more}}


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture(scope="module")
def dataset(made):
    with pytest.warns(UserWarning, match=r"of 45 texts are cut to max_tokens=12"):
        return load("category_pictures", **options(made)["data_options"])


def run(made, out, kind, **values):
    method, *_ = kind.split()
    given = {"dataset": "category_pictures", **options(made), **SHORT, **KINDS[kind], **values}
    with pytest.warns(UserWarning, match="texts are cut"):
        return nclib.run(method, **given, out=str(out), progress=False)


def comparable(record):
    curves = [{k: v for k, v in row.items() if k != "seconds"} for row in record.curves]
    return json.dumps([record.metrics, record.diagnostics, record.best_epoch, curves], sort_keys=True)


# -- data ---------------------------------------------------------------------------------------------------


def test_pictures_stay_on_disk_as_clip_cuts_them(made, dataset):
    assert [len(split) for split in dataset.splits.values()] == [24, 9, 12]
    assert dataset.label_names == ("pot", "red", "tea")
    assert dataset.train.labels[:4].tolist() == [2, 1, 0, 2]
    rows = dataset.val.images
    assert isinstance(rows, RowFile)
    assert (rows.dtype, rows.shape) == (np.uint8, (9, 224, 672))
    with Image.open(made / "val" / "25.png") as file:  # 20 x 24
        scaled = np.asarray(file.resize((224 * file.width // 20, 224), Image.Resampling.BICUBIC))
    left = round((scaled.shape[1] - 224) / 2)
    wanted = scaled[:, left : left + 224]
    np.testing.assert_array_equal(dataset.val.picture(1), wanted)
    assert dataset.val.text(1).startswith("a red and pot pot")
    index = torch.tensor([1, 0, 1])
    found = PictureRows(rows)[index]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[2].view(224, 224, 3), torch.from_numpy(wanted.copy()) / 255)
    assert torch.equal(torch.cat(list(PictureRows(rows).split(4)))[[1, 0, 1]], found)


def test_texts_are_clips_pieces_and_the_end_of_a_long_one_stays(made, dataset):
    from transformers import AutoTokenizer

    cut = AutoTokenizer.from_pretrained(made / "clip", local_files_only=True)
    whole = [cut(" ".join(row["text"].split()))["input_ids"] for row in rows_of_table()[:24]]
    end = cut.eos_token_id
    for row, ids in zip(dataset.train.texts.tolist(), whole, strict=True):
        wanted = [*ids[: TOKENS - 1], end] if len(ids) > TOKENS else ids + [end] * (TOKENS - len(ids))
        assert row == wanted
    assert dataset.train.texts.dtype == np.int32


def test_the_place_of_files_does_not_change_the_data_and_their_content_does(made, copy, dataset):
    def checksum(**more):
        with pytest.warns(UserWarning, match="texts are cut"):
            return load("category_pictures", **options(copy, **more)["data_options"]).checksum

    assert checksum() == dataset.checksum
    assert checksum(max_tokens=8) == dataset.checksum  # a setting of the run, not of the files
    Image.new("RGB", (20, 20)).save(copy / "train" / "0.png")
    assert checksum() != dataset.checksum


def changed(**cells):
    rows = rows_of_table()
    rows[3] |= cells
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(split="learn"), "line 8: split 'learn' is not one of train, test, dev"),
        (changed(category=" "), "line 8: empty cell in the column of categories"),
        (changed(text=""), "line 8: empty cell in the column of texts"),
        (changed(image="train/x.png"), "lacks 1 pictures that pairs.csv names: train/x.png"),
        (changed(image="../x.png"), "names pictures outside its folder: ../x.png"),
        (changed(split="val", category="cup"), "categories of val without a training pair: cup"),
        (changed(image="train/0.png", split="test"), "train/0.png is in two splits, train and test"),
        (rows_of_table()[:33], "has no pairs for test"),
        (
            [{"image": "a.png", "text": "a", "split": "train"}],
            "has no column of categories: call it 'category'",
        ),
    ],
)
def test_a_wrong_table_is_told_with_its_line(copy, rows, message):
    write_table(copy, rows)
    with pytest.raises(ConvertError) as error:
        read_listing(copy)
    assert message in str(error.value)


def test_missing_files_are_told_before_the_pictures_are_made(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "cache"))
    given = options(copy, max_tokens=77)["data_options"]
    with pytest.raises(ValueError, match=r"holds \(24, 9, 12\) .* of 3 categories, published are \(32000, "):
        load("xmedianet_pictures", **given)
    with pytest.raises(ValueError, match=r"max_tokens must be an integer in 3\.\.77, got 78"):
        load("category_pictures", **{**given, "max_tokens": 78})
    (copy / "clip" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"clip_folder=.*model\.safetensors"):
        load("category_pictures", **given)
    with pytest.raises(ValueError, match="has no tokenizer's files"):
        load("category_pictures", **{**given, "clip_folder": str(tmp_path)})
    assert not list((tmp_path / "cache").rglob("*.npy*"))
    (copy / "pairs.csv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"pairs.csv nor .*xmedianet_pictures/pairs.csv; it is a table"
    ):
        load("xmedianet_pictures", **given)


def test_a_picture_that_cannot_be_read_is_named(copy):
    (copy / "test" / "40.png").write_bytes(b"no picture")
    with (
        pytest.warns(UserWarning, match="cut"),
        pytest.raises(ConvertError, match=r"40.png: the file is not a"),
    ):
        load("category_pictures", **options(copy)["data_options"])


def test_xmedianet_lies_below_the_folder_of_the_data(made, tmp_path):
    shutil.copytree(made, tmp_path / "xmedianet_pictures")
    given = options(made, root=str(tmp_path), sizes="any")["data_options"]
    with pytest.warns(UserWarning, match="texts are cut"):
        assert load("xmedianet_pictures", **given).n_classes == 3


def test_the_data_show_what_they_are(dataset):
    assert repr(dataset).startswith(
        "CategoryData('category_pictures': train 24, val 9, test 12 pairs; pictures of 224 x 224, 12 tokens; "
    )


def test_a_folder_is_checked(copy, tmp_path):
    report = check("xmedianet_pictures", copy)
    assert (report.complete(), report.complete(any_size=True)) == (False, True)
    assert "24 / 9 / 12 pairs, 3 categories; published: 32,000 / 4,000 / 4,000 pairs" in str(report)
    (copy / "val" / "25.png").unlink()
    (line,) = check("xmedianet_pictures", copy).lines
    assert (line.state, line.file) == (WRONG, "pairs.csv")
    assert line.text.endswith("lacks 1 pictures that pairs.csv names: val/25.png")
    assert not check("xmedianet_pictures", tmp_path).found


def test_pictures_and_features_are_not_mixed(dataset):
    split = dataset.val
    with pytest.raises(ValueError, match=r"texts of pictures must be int32 \(9, W\), got float32"):
        CategorySplit("val", split.images, split.texts.astype(np.float32), split.labels)
    with pytest.raises(ValueError, match=r"pictures must be uint8 \(8, height, 3 width\)"):
        CategorySplit("val", split.images, split.texts[:8], split.labels[:8])
    with pytest.raises(
        ValueError, match=r"pictures need details\['clip_folder'\], and features have none; got ''"
    ):
        CategoryData("x", split, split, split, ("a", "b", "c"), "", "")


# -- networks and losses ------------------------------------------------------------------------------------


def network_of(dataset, method, **values):
    torch.manual_seed(0)
    shape = Shape(672, TOKENS, 3, hidden=1, dim=1, clip_folder=dataset.clip_folder)
    return label_noise.build(method, **values).build(shape)


def batch_of(dataset, n=7):
    index = torch.arange(n)
    given = PictureRows(dataset.train.images)[index], torch.from_numpy(dataset.train.texts[:n])
    return LabelBatch(index, *given, torch.tensor([0, 1, 1, 2, 0, 0, 2]), torch.tensor([1, 1, 0, 2, 0, 2, 2]))


def test_towers_are_the_librarys_own(made, dataset):
    from transformers import CLIPModel

    whole = CLIPModel.from_pretrained(made / "clip", local_files_only=True)
    towers = Towers(dataset.clip_folder, 672, TOKENS, finetune=True)
    batch = batch_of(dataset)
    with torch.no_grad():
        pixels = towers.image_net.prepare(batch.images)
        given = whole(input_ids=batch.texts.long(), pixel_values=pixels)
        v, t = towers.images(batch.images), towers.texts(batch.texts)
    torch.testing.assert_close(v, given.image_embeds, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(t, given.text_embeds, rtol=1e-4, atol=1e-5)
    assert towers.scale == whole.logit_scale
    assert {p.requires_grad for p in towers.parameters()} == {True}
    frozen = Towers(dataset.clip_folder, 672, TOKENS, finetune=False)
    assert {p.requires_grad for p in frozen.parameters()} == {False}


@pytest.mark.parametrize("supervised", [True, False])
def test_contrast_against_loops(dataset, supervised):
    method = label_noise.build("contrastive_heads", supervised=supervised)
    net, batch = network_of(dataset, "contrastive_heads"), batch_of(dataset)
    net.log_scale.data.fill_(9.0)  # beyond CLIP's bound
    loss = method.step(type("Loop", (), {"network": net}), batch)["contrast"]
    assert net.log_scale.item() == pytest.approx(math.log(100))
    S = 100 * F.normalize(net.images(batch.images)) @ F.normalize(net.texts(batch.texts)).T
    v, t = batch.image_labels.tolist(), batch.text_labels.tolist()
    total = 0.0
    for i in range(7):
        own = [j for j in range(7) if (v[i] == t[j] if supervised else i == j)] or [i]
        total -= sum(S[i].log_softmax(0)[j].item() for j in own) / len(own)
        own = [j for j in range(7) if (v[j] == t[i] if supervised else i == j)] or [i]
        total -= sum(S[:, i].log_softmax(0)[j].item() for j in own) / len(own)
    assert loss.item() == pytest.approx(total / 14, rel=1e-5)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_warm_up_of_uot_rcl_is_cross_entropy_on_clips_embeddings(dataset):
    method, net = label_noise.build("uot_rcl"), network_of(dataset, "uot_rcl")
    batch = batch_of(dataset)
    method.targets = [F.one_hot(y, 3).float() for y in (batch.image_labels, batch.text_labels)]
    loss = method.step(type("Loop", (), {"network": net}), batch)["ce"]
    assert net.prototypes.weight.shape == (6, 3)  # as wide as CLIP's embeddings
    mu = F.normalize(net.prototypes.weight, dim=0)
    value = 0.0
    for z, y in ((net.images(batch.images), batch.image_labels), (net.texts(batch.texts), batch.text_labels)):
        value -= sum((F.normalize(z[i], dim=0) @ mu).log_softmax(0)[y[i]].item() for i in range(7)) / 7
    assert loss.item() == pytest.approx(value, rel=1e-5)


def test_rate_rises_in_a_hundred_steps_and_falls_as_a_cosine():
    steps = 4000  # 16 epochs of 32,000 pairs in batches of 128
    shares = [warm_cosine(step, steps) for step in range(steps)]
    assert shares[:101] == [step / 100 for step in range(101)]
    expected = [0.5 * (1 + math.cos(math.pi * (step - 100) / 3900)) for step in range(100, steps)]
    assert shares[100:] == pytest.approx(expected)
    assert [warm_cosine(step, 9) for step in (0, 8)] == [1.0, 0.5 * (1 + math.cos(math.pi * 8 / 9))]


# -- runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_and_opens_again(made, tmp_path, kind):
    record = run(made, tmp_path, kind)
    assert comparable(run(made, tmp_path, kind)) == comparable(record)  # from its record
    assert set(record.metrics["test"]) == {"map_i2t", "map_t2i", "map_avg"}
    assert "purity_given" not in record.metrics["neighbours"]
    with pytest.warns(UserWarning, match="texts are cut"):
        opened = nclib.open_run(record)
    assert opened.trainer.evaluate(opened.dataset.test) == record.metrics["test"]
    if kind != "zero_shot":
        last = checkpoint.load(Path(record.folder) / "checkpoint.safetensors")["network"]
        first = Towers(str(made / "clip"), 672, TOKENS, finetune=True).state_dict()
        moved = {
            name.rpartition(".")[0] for name, value in first.items() if not torch.equal(value, last[name])
        }
        assert {
            *("image_net.projection", "image_net.tower.embeddings.patch_embedding"),
            *("text_net.projection", "text_net.tower.embeddings.token_embedding"),
        } <= moved
        steps = [3 * (epoch + 1) - 1 for epoch in range(3)]  # the last of each epoch
        assert [row["lr"] for row in record.curves] == pytest.approx(
            [0.05 * warm_cosine(s, 9) for s in steps]
        )


def test_zero_shot_is_the_cosine_of_the_towers(made, dataset, tmp_path):
    record = run(made, tmp_path, "zero_shot")
    towers, split = Towers(dataset.clip_folder, 672, TOKENS, finetune=False), dataset.test
    v = towers.images(
        torch.stack([torch.from_numpy(split.picture(i).reshape(224, -1)) for i in range(12)]) / 255
    )
    t = towers.texts(torch.from_numpy(split.texts))
    assert record.metrics["test"]["map_i2t"] == mean_average_precision(v, t, split.labels, split.labels)
    assert record.metrics["test"]["map_t2i"] == mean_average_precision(t, v, split.labels, split.labels)
    assert record.cost["parameters"] == sum(p.numel() for p in towers.parameters())
    noisy = run(made, tmp_path, "zero_shot", noise_rate=0.8)
    assert noisy.metrics == record.metrics


@pytest.mark.parametrize("kind", list(KINDS)[1:])
def test_resumed_run_equals_one_that_never_stopped(made, tmp_path, kind, stop_after_two):
    whole = run(made, tmp_path / "whole", kind)
    method, *_ = kind.split()
    given = {"dataset": "category_pictures", **options(made), **SHORT, **KINDS[kind]}
    settings, folder = resolve(method, **given, out=str(tmp_path / "cut")), tmp_path / "cut" / whole.name
    with pytest.warns(UserWarning, match="texts are cut"):
        trainer = experiment_of(method).load(settings, folder, torch.device("cpu")).trainer
    stop_after_two(trainer)
    resumed = run(made, tmp_path / "cut", kind)
    assert comparable(resumed) == comparable(whole)
    bits = [
        checkpoint.digest(checkpoint.load(Path(r.folder) / "checkpoint.safetensors")["network"])
        for r in (resumed, whole)
    ]
    assert bits[0] == bits[1]


def test_weights_name_a_run_by_their_content(made, copy):
    def name(folder):
        settings = resolve("uot_rcl", dataset="category_pictures", **options(folder))
        return experiment_of("uot_rcl").name(settings)

    assert name(made) == name(copy)
    state = write_clip(copy / "clip", text_width=32)
    assert state
    assert name(made) != name(copy)


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("mrl", {}, "mrl reads features; contrastive_heads, uot_rcl, zero_shot read pictures"),
        ("pls", {}, "pls reads features"),
        ("uot_rcl", {"dim": 64}, "dim=64: CLIP's towers on 'category_pictures' have widths of their own"),
        ("uot_rcl", {"data_options": {"root": "."}}, "'category_pictures' needs clip_folder"),
    ],
)
def test_what_does_not_fit_pictures_is_refused_before_they_are_read(made, tmp_path, method, values, message):
    with pytest.raises(ValueError) as error:
        nclib.run(method, **{"dataset": "category_pictures", **options(made), **values}, out=str(tmp_path))
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_options_of_heads_and_too_many_tokens_are_refused(made, dataset, tmp_path):
    with pytest.raises(ValueError, match="scale=5 is of heads on features; on pictures CLIP has its own"):
        network_of(dataset, "contrastive_heads", scale=5.0)
    with pytest.raises(ValueError, match=r"max_tokens=77: the text tower of .* reads up to 12"):
        nclib.run("zero_shot", dataset="category_pictures", **options(made, max_tokens=77), out=str(tmp_path))


def test_settings_are_the_papers_at_every_preset():
    where = {"data_options": {"root": ".", "clip_folder": "nowhere"}, "dataset": "xmedianet_pictures"}
    for preset in ("quick", "standard", "paper"):
        s = resolve("uot_rcl", **where, preset=preset)
        assert (s.schedule.batch_size, s.schedule.epochs, s.schedule.lr) == (128, 16, 3e-3)
        o = s.method_options
        assert (o.neighbours, o.warmup_epochs, o.lam, o.gamma) == (150, 2, 0.4, 0.99)
        assert s.run.noise_rate == 0.4
