"""Runs of OMIT's tables on other encoders: each kind trains; rates and held epochs; words of pieces."""

import json
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baselines.omit import residual
from baselines.omit.picture_rows import pictures as prepare
from baselines.omit.pictures import PretrainedCells, random_crops
from baselines.omit.residual import ResidualNetwork
from baselines.pieces import Pieces
from local_weights import PIECES, bert_folder, clip_folder
from ncbook.layouts import LAYOUTS
from ncbook.match import ENCODED, Rerun, arguments_of
from ncbook.papers import rows_of

import nclib
from nclib.common.tokens import Tokens
from nclib.data import Captions, load
from nclib.data.vocabulary import Vocabulary
from nclib.models import build
from nclib.models.vse_inf import by_words
from nclib.runs.pair_trainer import _groups

TEXTS = ["a red teapot", "n't a zebra", "teapots", "a red zebra", "red teapots n't"]
COUNTS = {"train": 8, "dev": 3, "test": 3}


def residual_folder(folder, groups=1):
    """Write a tiny network as torchvision names its weights, classifier included; return the network."""
    torch.manual_seed(groups)
    network = ResidualNetwork((1, 2, 1, 1), stem=4, inner=4, out=8, groups=groups).eval()
    for name, value in network.state_dict().items():
        if name.endswith("running_mean"):
            value.normal_(0, 0.1)
        if name.endswith("running_var"):
            value.uniform_(0.1, 0.5)
    folder.mkdir(parents=True)
    head = {"fc.weight": torch.zeros(10, 64), "fc.bias": torch.zeros(10)}
    torch.save({**network.state_dict(), **head}, folder / "network.pth")
    return network


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder like that of the papers' data, all of it tiny."""
    from PIL import Image

    place = tmp_path_factory.mktemp("data")
    (place / "weights").mkdir()
    bert_folder(place / "weights" / "bert-base-uncased")
    (place / "weights" / "clip-vit-base-patch32").mkdir()
    clip_folder(place / "weights" / "clip-vit-base-patch32", max_position_embeddings=40)
    residual_folder(place / "weights" / "resnet-152")
    np.save(place / "weights" / "glove_f30k.npy", np.ones((5, 300), np.float32))
    residual_folder(place / "weights" / "resnext101_32x8d_wsl", groups=2)
    regions, pictures, entries = place / "f30k_precomp", place / "f30k_images", []
    regions.mkdir()
    pictures.mkdir()
    rng = np.random.default_rng(0)
    for split, n in COUNTS.items():
        np.save(regions / f"{split}_ims.npy", rng.normal(size=(n, 4, 6)).astype(np.float32))
        corners = np.sort(rng.random((n, 4, 2, 2), np.float32), 2)
        np.save(regions / f"{split}_boxes.npy", corners.reshape(n, 4, 4))
        (regions / f"{split}_caps.txt").write_text("\n".join(TEXTS * n) + "\n")
        for i in range(n):
            name = f"{split}{i}.jpg"
            Image.fromarray(rng.integers(0, 255, (20, 24, 3), np.uint8)).save(pictures / name)
            told = [{"raw": text} for text in TEXTS]
            kind = {"dev": "val"}.get(split, split)
            entries.append({"filename": name, "split": kind, "sentences": told})
    Vocabulary.from_texts(TEXTS).to_json(regions / "f30k_precomp_vocab.json")
    (pictures / "dataset_flickr30k.json").write_text(json.dumps({"images": entries}))
    for form in ("square224", "square512", "crop224"):
        given = {"images": pictures, "captions": pictures / "dataset_flickr30k.json", "pixels": form}
        prepare("f30k", **given, out=place / f"f30k_{form}")
    return place


KINDS = {f"{name} on {features}": (features, name) for features, runs in ENCODED.items() for name in runs}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_declared_kind_of_run_trains_and_is_tested(root, tmp_path, kind):
    features, name = KINDS[kind]
    row = next(r for r in rows_of("OMIT", "1") if r["features"] == features and r["method"] == name)
    given, *_ = Rerun("", "", "", arguments_of(LAYOUTS["OMIT", "1"], row)).parts(str(root))
    small = {"batch_size": 8, "out": str(tmp_path), "progress": False}
    if given.get("epochs") != 0:
        small |= {"warmup_epochs": 0, "epochs": 1}  # whose step trains the networks as well
        given["model_options"] |= {"embed_dim": 8}
        given["model_options"].pop("held_epochs", None)
    if "clip" in kind.lower() and name == "OMIT":
        given["model_options"]["embed_dim"] = 6  # CLIP's own width, from which the projections start
    record = nclib.run(given.pop("method"), **{**given, **small})
    assert {"test", "test_dsl"} <= record.metrics.keys()
    assert np.isfinite(record.metrics["test"]["rsum"])
    assert record.best_epoch == (0 if given.get("epochs") == 0 else 1)
    digests = record.settings["files_sha256"]
    assert all(len(v) == 16 for part in digests.values() for v in part.values())
    again = nclib.open_run(record).trainer.networks[0]
    towers = [m.tower for m in again.modules() if hasattr(m, "tower")]
    assert towers
    fresh = nclib.models.build(
        given["model"],
        feature_dim=again.feature_dim,
        vocab_size=again.vocab_size,
        n_regions=again.n_regions,
        **given["model_options"],
    )
    before = dict(fresh.named_parameters())
    moved = {k for k, v in again.named_parameters() if "tower" in k and not torch.equal(v.cpu(), before[k])}
    assert bool(moved) == (given.get("epochs") != 0)


def test_an_untrained_clip_is_tested_as_it_was_published(root, tmp_path):
    place = str(root / "weights" / "clip-vit-base-patch32")
    where = {"root": str(root), "pixels": "crop224", "pieces": place}
    given = {"dataset": "f30k", "model": "clip", "data_options": where, "preset": "paper", "mrate": 0.0}
    none = {"warmup_epochs": 0, "epochs": 0, "batch_size": 8, "out": str(tmp_path), "progress": False}
    record = nclib.run("plain", **given, **none, model_options={"clip_folder": place})
    data = load("f30k", **where)
    model = build("clip", feature_dim=672, vocab_size=data.vocabulary.size, n_regions=224, clip_folder=place)
    wanted = nclib.evaluation.recall(nclib.models.similarity_matrix(model, data.test), 5)
    assert {k: record.metrics["test"][k] for k in wanted} == dict(wanted)
    assert record.curves[0]["steps"] == 0
    with pytest.raises(ValueError, match="epochs=0 and warmup_epochs=0: nothing to train; only a whole CLIP"):
        nclib.resolve("plain", epochs=0, warmup_epochs=0)


def test_pretrained_weights_have_their_rate_and_wait(root):
    place = str(root / "weights" / "resnet-152")
    how = {"image": "resnet", "image_folder": place, "finetune": True, "held_epochs": 2, "image_rate": 0.3}
    model = build("pvse", feature_dim=96, vocab_size=9, n_regions=32, embed_dim=4, word_dim=4, **how)
    groups = {group["rate"]: group["params"] for group in _groups(model)}
    tower = list(model.pixels.tower.parameters())
    assert sorted(groups) == [0.3, 1.0]
    assert {id(p) for p in groups[0.3]} == {id(p) for p in tower}
    assert len(groups[1.0]) + len(tower) == len(list(model.parameters()))
    bert = {"text": "bert", "text_folder": str(root / "weights" / "bert-base-uncased"), "finetune": True}
    reader = build("vse_inf", feature_dim=4, vocab_size=len(PIECES), embed_dim=4, **bert, text_rate=0.2)
    (slow,) = (group["params"] for group in _groups(reader) if group["rate"] == 0.2)
    assert {id(p) for p in slow} == {id(p) for p in reader.text_encoder.tower.parameters()}
    pictures, tokens = torch.rand(2, 32, 96), Tokens(torch.tensor([[1, 4, 2], [1, 5, 2]]), (3, 3))
    for epoch, trains in ((0, False), (1, False), (2, True)):
        model.pixels.begin_epoch(epoch)
        model.zero_grad()
        model(pictures, tokens).sum().backward()
        assert all((p.grad is not None) == trains for p in tower)
        assert model.image_fc.weight.grad is not None


def test_words_share_the_chance_of_their_first_piece():
    continues = torch.tensor([name.startswith("##") for name in PIECES])
    ids = torch.tensor([[2, 7, 8, 9, 6, 7, 8, 3], [2, 5, 3, 0, 0, 0, 0, 0]])
    chance = torch.rand(ids.shape)
    got = by_words(chance, ids, continues)
    for row in range(2):
        for place in range(8):
            first = place
            while PIECES[ids[row, first]].startswith("##"):
                first -= 1
            assert got[row, place] == chance[row, first]
    assert by_words(chance, ids, None) is chance


@pytest.mark.parametrize("name", ["vse_inf", "omit"])
def test_bert_masks_whole_words_of_its_own_pieces(root, name):
    place = str(root / "weights" / "bert-base-uncased")
    own = Pieces(place)
    torch.manual_seed(0)
    sizes = {"feature_dim": 6, "vocab_size": own.size, "embed_dim": 4}
    own_options = {"drop": 0.5} if name == "vse_inf" else {}
    model = build(name, **sizes, text="bert", text_folder=place, **own_options)
    mask = PIECES.index("[MASK]")
    seen = []
    encoder = model.text_encoder
    forward = encoder.forward
    encoder.forward = lambda tokens: seen.append(tokens) or forward(tokens)
    ids = own.encode("a red teapots n't").tolist()
    tokens = Tokens(torch.tensor([ids] * 400), (len(ids),) * 400)
    for _ in range(2):
        model.train().encode_captions(tokens)
    last = encoder.pieces[-1, 0] if name == "omit" else mask
    assert last == mask
    masked, together, word = 0, 0, {PIECES.index(piece) for piece in ("tea", "##pot", "##s")}
    wanted = model.vocab_size if name == "omit" else mask
    for tokens in seen:
        for row, n in zip(tokens.ids.tolist(), tokens.lengths, strict=True):
            assert (row[0], row[n - 1]) == (2, 3)  # [CLS], [SEP]
            masked += row[:n].count(wanted)
            together += len(word & set(row[:n])) in (0, 3)
    assert masked > 20
    assert together > 0.8 * 800  # if pieces had chances of their own: 0.25, 0.52


def test_pieces_of_captions_are_the_tokenisers(root):
    words = Pieces(root / "weights" / "bert-base-uncased")
    names = [words.words[i] for i in words.encode("a red teapots zebra")]
    assert names == ["[CLS]", "a", "red", "tea", "##pot", "##s", "[UNK]", "[SEP]"]
    assert words.decode(words.encode("a red teapots")) == "a red teapots"
    assert words.id("tea") == PIECES.index("tea")
    again = pickle.loads(pickle.dumps(words))  # as worker processes get it
    assert again.words == words.words
    assert again.encode("a red teapots").tolist() == words.encode("a red teapots").tolist()
    known, of = Captions(*words.encode_all(["a red teapots zebra", "zebra", ""]), words).coverage()
    assert (known.tolist(), of.tolist()) == ([5, 0, 0], [6, 1, 0])
    assert words.unknown("a zebra zebra") == ["zebra"]
    with pytest.raises(ValueError, match="pieces are not written as a vocabulary file"):
        words.to_json(root / "words.json")
    data = load("f30k", root=root, pieces=root / "weights" / "bert-base-uncased")
    assert data.vocabulary.size == len(PIECES)
    assert data.train.captions.text(0) == "a red teapot"
    assert data.checksum != load("f30k", root=root).checksum
    with pytest.raises(ValueError, match="give no vocabulary"):
        load("f30k", root=root, pieces=root / "weights" / "bert-base-uncased", build_vocabulary=True)


def test_random_crops_are_parts_of_the_picture():
    ramp = torch.linspace(0, 1, 64)
    pictures = torch.stack([ramp[None].expand(64, 64), ramp[:, None].expand(64, 64), torch.rand(64, 64)])
    torch.manual_seed(0)
    crops = random_crops(pictures.expand(200, 3, 64, 64))
    across, down = crops[:, 0, 0, -1] - crops[:, 0, 0, 0], crops[:, 1, -1, 0] - crops[:, 1, 0, 0]
    assert 0.3 < (across < 0).float().mean() < 0.7  # mirrored
    assert bool((down > 0.55).all() and (down < 1.001).all())
    torch.testing.assert_close(across.abs(), down, atol=0.01, rtol=0)  # one share for both sides
    whole = random_crops(pictures[None], least=1.0)[0]
    whole = whole.flip(2) if whole[0, 0, 0] > 0.5 else whole
    torch.testing.assert_close(whole, pictures, atol=1e-5, rtol=0)


def norm(state, name, x):
    return F.batch_norm(x, *(state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")))


def written_out(state, blocks, groups, x):
    x = F.conv2d(x, state["conv1.weight"], stride=2, padding=3)
    x = F.max_pool2d(torch.relu(norm(state, "bn1", x)), 3, 2, 1)
    for stage, n in enumerate(blocks, 1):
        for i in range(n):
            at, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            y = torch.relu(norm(state, f"{at}.bn1", F.conv2d(x, state[f"{at}.conv1.weight"])))
            y = F.conv2d(y, state[f"{at}.conv2.weight"], stride=stride, padding=1, groups=groups)
            y = F.conv2d(torch.relu(norm(state, f"{at}.bn2", y)), state[f"{at}.conv3.weight"])
            if f"{at}.downsample.0.weight" in state:
                x = F.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride)
                x = norm(state, f"{at}.downsample.1", x)
            x = torch.relu(norm(state, f"{at}.bn3", y) + x)
    return x


@pytest.mark.parametrize("groups", [1, 2])
def test_a_file_of_torchvisions_is_the_network_written_out(tmp_path, groups):
    state = residual_folder(tmp_path / "net", groups).state_dict()
    cells = PretrainedCells(70 * 3, 64, kind="resnet", folder=str(tmp_path / "net"))
    pictures = torch.rand(2, 64, 70, 3)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    wanted = written_out(state, (1, 2, 1, 1), groups, ((pictures - mean) / std).permute(0, 3, 1, 2))
    got = cells(pictures.flatten(2))
    assert got.shape == (2, 2 * 3, 64)
    assert got.std() > 0.01
    torch.testing.assert_close(got, wanted.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-5)
    assert not got.requires_grad


def test_files_from_before_torch_saved_archives_are_read(tmp_path):
    state = residual_folder(tmp_path / "net").state_dict()
    file = tmp_path / "net" / "network.pth"
    torch.save(state, file, _use_new_zipfile_serialization=False)
    found = residual.read(file, "image_folder")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_a_file_of_another_network_is_refused(tmp_path):
    residual_folder(tmp_path / "net")
    state = torch.load(tmp_path / "net" / "network.pth")
    for change, message in (
        ({"bn1.weight": None}, "holds another network: .*bn1.weight"),
        ({"layer1.0.conv3.weight": None}, "no residual network of bottlenecks"),
    ):
        torch.save({k: v for k, v in state.items() if k not in change}, tmp_path / "net" / "network.pth")
        with pytest.raises(ValueError, match=rf"(?s)image_folder: .*network\.pth.*{message}"):
            PretrainedCells(96, 32, kind="resnet", folder=str(tmp_path / "net"))
    torch.save([1], tmp_path / "net" / "network.pth")
    with pytest.raises(ValueError, match="does not hold weights by name"):
        PretrainedCells(96, 32, kind="resnet", folder=str(tmp_path / "net"))


def test_projections_start_from_clips_own_where_they_fit(root):
    place = str(root / "weights" / "clip-vit-base-patch32")
    how = {"text": "clip", "text_folder": place, "image": "clip", "image_folder": place}
    how |= {"image_encoder": "linear", "image_global": "first", "feature_dim": 24, "n_regions": 8}
    vocabulary = Pieces(place).size
    fitting = build("omit", **how, vocab_size=vocabulary, embed_dim=6)
    assert torch.equal(fitting.fragment_encoder.weight, fitting.pixels.projection)
    other = build("omit", **how, vocab_size=vocabulary, embed_dim=8)
    assert other.fragment_encoder.weight.shape == (8, 128)
    whole = build("clip", clip_folder=place, feature_dim=24, n_regions=8, vocab_size=vocabulary)
    pictures = torch.rand(3, 8, 24)
    torch.testing.assert_close(
        fitting.eval().encode_images(pictures).vectors, whole.eval().encode_images(pictures).vectors
    )
