"""Where pictures are read: ahead in a thread that does not stay, or on the device; always the same bits."""

import threading
import time
import traceback

import numpy as np
import pytest
import torch

from nclib import methods, models
from nclib.common.prefetch import ahead
from nclib.data import Captions, Split, Vocabulary
from nclib.data.rows import RowFile
from nclib.data.vocabulary import SPECIAL
from nclib.noise import Mismatch
from nclib.runs import noisy_pairs
from nclib.runs.loop import Place
from nclib.runs.noisy_pairs import DevicePictures, NoisyPairs
from nclib.runs.options import PairSchedule
from nclib.runs.pair_trainer import PairTrainer


def workers():
    return [t for t in threading.enumerate() if t.name.startswith("nclib-ahead")]


def test_work_is_done_in_another_thread_and_only_so_far_ahead():
    begun = []
    results = ahead(lambda item: begun.append(threading.current_thread().name) or item, range(100), 2)
    assert begun == []  # nothing starts before it is asked for
    for wanted in range(5):
        assert next(results) == wanted
        time.sleep(0.02)
        assert len(begun) <= wanted + 3
    results.close()
    assert set(begun) == {"nclib-ahead_0"}


def test_an_error_comes_in_its_place_with_the_traceback_of_the_thread():
    def inverse(item):
        return 6 / (3 - item)

    results = ahead(inverse, range(9), 2)
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError) as error:
        next(results)
    assert "inverse" in "".join(traceback.format_tb(error.value.__traceback__))
    assert workers() == []


N, EACH = 48, 2


def split_of(images, boxes=None):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 7, N * EACH)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    words = Vocabulary((*SPECIAL, *"abcdef"))
    captions = Captions(rng.integers(4, 10, offsets[-1]).astype(np.int32), offsets, words)
    whose, with_boxes = np.arange(N * EACH) // EACH, boxes is not None
    return Split("train", images, captions, whose, EACH, boxes=boxes, boxes_in_features=with_boxes)


@pytest.fixture
def sources(tmp_path):
    """The same numbers in memory, in a file, and in a file of float16."""
    images = np.random.default_rng(1).normal(size=(N, 5, 6)).astype(np.float16).astype(np.float32)
    np.save(tmp_path / "a.npy", images)
    np.save(tmp_path / "a.f16.npy", images.astype(np.float16))
    files = {name: RowFile(tmp_path / name) for name in ("a.npy", "a.f16.npy")}
    return {name: split_of(found) for name, found in {"memory": images, **files}.items()}


# So little training divides nothing yet: what MSCN reads ahead are the pairs it keeps.
OPTIONS = {"mscn": {"threshold": 1e-9}}


def trainer(split, folder, method="plain"):
    torch.manual_seed(0)
    built = methods.build(method, **OPTIONS.get(method, {}))
    sizes = {"feature_dim": 6, "vocab_size": 10, "n_regions": 5, "embed_dim": 8, "word_dim": 4}
    networks = [built.prepare(models.build("vse", **sizes)) for _ in range(built.n_networks)]
    noise = Mismatch.draw(split.image_of, 0.4, seed=0)
    return PairTrainer(
        built, networks, NoisyPairs(split, noise), split.part(0, 10),
        PairSchedule(batch_size=16, warmup_epochs=1, epochs=2), Place(0, torch.device("cpu"), folder, {}),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*took one step")  # MSCN keeps fewer than a batch of so few pairs
@pytest.mark.parametrize("method", ["plain", "ncr", "l2rm", "mscn", "repair"])
def test_training_gives_the_same_bits_wherever_the_pictures_are(sources, tmp_path, method):
    found = []
    for name, split in sources.items():
        for placed in (False, True):
            loop = trainer(split, tmp_path / f"{method}-{name}-{placed}", method)
            for pairs in filter(None, (loop.pairs, loop._held_out)):
                pairs.pictures = DevicePictures(pairs.split, loop.device) if placed else None
            loop.fit(progress=False)
            found.append([p.detach() for network in loop.networks for p in network.parameters()])
            assert workers() == []
    for weights in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], weights, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_pictures_on_a_device_are_what_the_host_reads(tmp_path, dtype):
    images = np.arange(N * 30).reshape(N, 5, 6).astype(dtype)  # every byte
    np.save(tmp_path / "a.npy", images)
    boxes = np.random.default_rng(0).random((N, 5, 4), np.float32)
    order = torch.randperm(N)
    for split in (split_of(images), split_of(RowFile(tmp_path / "a.npy"), boxes)):
        placed = DevicePictures(split, torch.device("cpu"))
        assert str(placed.images.dtype) == f"torch.{dtype}"  # as small as the file
        assert torch.equal(placed.features(order), split.features(order.numpy()))


def test_a_picture_with_a_wrong_value_never_comes_to_a_device():
    images = np.ones((N, 5, 6), np.float16)
    images[40, 3, 2] = np.inf
    with pytest.raises(ValueError, match=r"split 'train': image 40, region 3, feature 2 is inf"):
        DevicePictures(split_of(images), torch.device("cpu"))


def test_pictures_go_to_a_gpu_where_a_third_of_what_is_free_holds_them(sources, monkeypatch):
    gpu, split = torch.device("cuda"), sources["memory"]
    size = split.images.nbytes
    monkeypatch.setattr(noisy_pairs, "DevicePictures", lambda split, device: device)
    for where, free, placed in (
        ("auto", 3 * size, gpu), ("auto", 3 * size - 1, None), ("device", size, gpu), ("host", 9 * size, None)
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 9 * size))
        pairs = NoisyPairs(split, Mismatch.draw(split.image_of, 0.4, seed=0))
        pairs.place(where, gpu)
        assert pairs.pictures == placed, (where, free)
        assert pairs.n_ahead(gpu) == (0 if placed else noisy_pairs.AHEAD)  # else read ahead, from memory too
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (size - 1, size))
    with pytest.raises(ValueError, match=r"pictures_on='device': .* GB free; take 'auto' or 'host'"):
        pairs.place("device", gpu)


def test_only_files_are_read_ahead(sources, tmp_path):
    for name, split in sources.items():
        batches = iter(trainer(split, tmp_path).batches(purpose="pairs"))
        next(batches)
        assert len(workers()) == (name != "memory")
        del batches
        assert workers() == []
