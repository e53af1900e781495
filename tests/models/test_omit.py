"""OMIT: known values of every matching type and weight, invariances, accounting of mass, training."""

import re

import pytest
import torch
from local_weights import PIECES, WORDS, bert_folder, clip_folder, words_file
from toy import fill, regions, words

import nclib.ot
from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.base import CaptionEncoding, ImageEncoding
from nclib.models.encoders import word_mask
from nclib.models.omit_matching import MARGINALS, MATCHINGS
from nclib.models.omit_text import augment

TRANSPORT = [name for name, kind in MATCHINGS.items() if kind.family == "transport"]


def model(dim=4, **options):
    torch.manual_seed(0)
    sizes = {"feature_dim": dim, "vocab_size": 30, "embed_dim": dim, "word_dim": 8, "n_regions": 3}
    return build("omit", **(sizes | options)).eval()


def toy():
    """Encodings of the shared example, globals not yet of unit length."""
    v, (t, lengths) = regions(), words()
    return ImageEncoding(v.mean(1), v), CaptionEncoding(t.sum(1), lengths, t)


def score(**options):
    return model(**options).double().similarity(*toy())


def close(got, want, atol=1.5e-6):
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"matching": "ot", "lam": 0.05}, [[0.517430, 0.602079], [0.648387, 0.794953]]),
        ({"matching": "ot"}, [[0.510605, 0.632730], [0.648589, 0.795079]]),
        ({"matching": "ot", "lam": 0.1}, [[0.513679, 0.585260], [0.638742, 0.788185]]),
        ({"matching": "ot", "iterations": 1}, [[0.415930, 0.495723], [0.789766, 0.795079]]),
        ({"matching": "ot", "iterations": 100}, [[0.518054, 0.632729], [0.576484, 0.795079]]),
        (
            {"matching": "ot", "lam": 0.05, "sinkhorn": "log"},
            [[0.517434, 0.601498], [0.648381, 0.794955]],
        ),
        ({"matching": "ot", "sinkhorn": "log"}, [[0.515919, 0.618230], [0.648590, 0.795081]]),
        ({"lam": 0.05}, [[0.211461, 0.437005], [0.348567, 0.564989]]),
        ({}, [[0.184574, 0.459163], [0.350085, 0.592689]]),
        ({"matching": "full", "lam": 0.05}, [[0.618782, 0.617013], [0.642372, 0.804631]]),
        ({"matching": "full"}, [[0.629440, 0.644354], [0.660772, 0.807872]]),
        (
            {"matching": "ot", "lam": 0.05, "marginals": "intra"},
            [[0.541781, 0.578110], [0.653066, 0.796618]],
        ),
        (
            {"matching": "ot", "lam": 0.05, "marginals": "inter"},
            [[0.635291, 0.616060], [0.720284, 0.796192]],
        ),
        ({"matching": "vse"}, [[0.768356, 0.683356], [0.609872, 0.871208]]),
        ({"matching": "cam"}, [[0.724557, 0.681607], [0.818873, 0.798287]]),
        ({"matching": "partial_cam"}, [[0.420979, 0.583373], [0.792225, 0.689870]]),
    ],
)
def test_known_scores(options, want):
    close(score(**options), want)


def test_float32_scores_are_close():
    for options in ({"matching": "ot"}, {}, {"matching": "full"}, {"matching": "cam"}, {"sinkhorn": "log"}):
        net = model(**options)
        rough = net.similarity(*toy())
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough.double(), score(**options), atol=2e-6, rtol=0)


def test_known_gaussian_scores():
    net = model(matching="pem").double()
    with torch.no_grad():
        for pool, a in ((net.image_pool, 1), (net.text_pool, 3)):
            pool.first.weight.copy_(fill((2, 4), a, 0.5))
            pool.second.weight.copy_(fill((1, 2), a + 1, 0.5))
    close(net.similarity(*toy()), [[-1.25364, -1.35877], [-1.64322, -0.868281]], atol=6e-6)


def test_known_plan():
    images, captions = toy()
    net = model().double()
    plan = net.alignments(images, captions)[0, 1]
    close(
        plan,
        [
            [0.247776, 1.74826e-05, 8.12184e-07, 0.0307337],
            [0.00222214, 1.36677e-07, 0.233003, 1.73686e-07],
            [4.36943e-07, 1.27354e-20, 0.0169951, 0.219265],
            [3.09874e-09, 0.249981, 2.13990e-24, 5.31558e-10],
        ],
        atol=1e-6,
    )
    assert plan[2, 1] == pytest.approx(1.27354e-20, rel=1e-4)  # tiny entries are right too
    close(net.masses(images, captions)["local"], [[0.522453, 0.719245], [0.579406, 0.745564]])


def test_known_marginals():
    image, caption = model().double()._sides(*toy())
    p, q = MARGINALS["intra"](image, caption, 1.0)
    close(p[..., 0], [[0.401976, 0.317953, 0.280071], [0.333206, 0.344457, 0.322337]])
    close(q[0].t(), [[0.5, 0.5, 0.0], [0.339118, 0.277223, 0.383659]])
    p, q = MARGINALS["inter"](image, caption, 1.0)
    close(p[0].t(), [[0.459225, 0.258666, 0.282109], [0.338130, 0.300398, 0.361472]])
    integer = [[[1, 2, 0, 1], [0, 1, -1, 2], [3, 0, 1, 0]], [[-1, 1, 2, 0], [2, 2, 1, 1], [0, -1, 1, 3]]]
    image["norms"] = torch.tensor(integer).double().norm(dim=-1)
    caption["norms"] = torch.tensor([[3.0, 6.0, 0.0], [5.0, 4.0, 6.0]]).double().sqrt()
    p, q = MARGINALS["norm"](image, caption, 1.0)
    close(p[..., 0], [[0.303860, 0.303860, 0.392281], [0.274348, 0.354182, 0.371469]])
    close(q[0].t(), [[0.414214, 0.585786, 0.0], [0.334462, 0.299152, 0.366385]])
    net = model(matching="ot", lam=0.05, marginals="norm").double()
    image["keys"], caption["queries"] = image["regions"], caption["words"]  # no dustbins here
    scores = net._block(image, caption)
    close(scores, [[0.464281, 0.614575], [0.648078, 0.796265]])
    with pytest.raises(ValueError, match="marginals='norm' needs the lengths"):
        net.similarity(*toy())


def test_small_lambda_reaches_the_linear_program():
    images, captions = toy()
    net = model(matching="ot", lam=0.004, sinkhorn="log", iterations=1000).double()
    close(net.similarity(images, captions), [[0.519204, 0.632733], [0.576485, 0.795081]], atol=1e-4)
    net = model(sinkhorn="log", iterations=1000).double()  # with dustbins
    s, p, q = net._problem(*net._sides(images, captions))
    for b in range(2):
        for c, length in enumerate(captions.lengths):
            cost = 1 - s[b, :, : length + 1, c]
            best = (nclib.ot.exact(cost, p[0, :, 0], q[0, : length + 1, c]).plan * cost).sum()
            gaps = []
            for lam in (0.05, 0.02, 0.006):
                plan = net.alignments(images, captions, lam=lam)[b, c, :, : length + 1]
                gaps.append(float((plan * cost).sum() - best))
            assert gaps[0] > gaps[1] > gaps[2] > -1e-6
            assert gaps[2] < 5e-4


def example(seed=0, n_images=5, n_captions=7, dim=16, n_regions=6):
    torch.manual_seed(seed)
    lengths = tuple(int(x) for x in torch.randint(1, 9, (n_captions,)))
    ids = torch.randint(4, 30, (n_captions, 9)) * (torch.arange(9) < torch.tensor(lengths)[:, None])
    return torch.randn(n_images, n_regions, dim), Tokens(ids, lengths)


@pytest.mark.parametrize("matching", MATCHINGS)
@pytest.mark.parametrize("marginals", MARGINALS)
def test_order_of_fragments_and_padding_do_not_matter(matching, marginals):
    if marginals != "uni" and MATCHINGS[matching].family != "transport":
        marginals = "uni"
    images, tokens = example()
    net = model(dim=16, matching=matching, marginals=marginals, lam=0.1).double()
    with torch.no_grad():
        v, t = net.encode_images(images), net.encode_captions(tokens)
        want = net.similarity(v, t)
        assert want.shape == (5, 7)
        low, high = net.score_range
        assert (want >= low).all()
        assert (want <= high).all()
        shuffled = net.encode_images(images[:, torch.randperm(6)])
        torch.testing.assert_close(net.similarity(shuffled, t), want)
        for c in range(7):  # alone, without padding; garbage beyond the end changes nothing
            torch.testing.assert_close(net.similarity(v, t.select([c]))[:, 0], want[:, c])
        garbage = CaptionEncoding(t.vectors, t.lengths, t.words + 9 * (1 - mask_of(t))[..., None])
        object.__setattr__(garbage, "norms", t.norms)
        object.__setattr__(garbage, "spread", t.spread)
        torch.testing.assert_close(net.similarity(v, garbage), want)
        longest = max(range(7), key=t.lengths.__getitem__)
        order = torch.randperm(t.lengths[longest])
        one = t.select([longest])
        turned = CaptionEncoding(one.vectors, one.lengths, one.words[:, order])
        object.__setattr__(turned, "norms", one.norms[:, order])
        object.__setattr__(turned, "spread", one.spread)
        torch.testing.assert_close(net.similarity(v, turned)[:, 0], want[:, longest])


def mask_of(captions):
    return word_mask(captions.lengths, captions.words.shape[1], captions.words)


@pytest.mark.parametrize("matching", MATCHINGS)
def test_given_pairs_are_the_diagonal_of_all_pairs(matching):
    images, tokens = example(1, 7)
    net = model(dim=16, matching=matching, marginals="inter").double()
    v, t = net.encode_images(images), net.encode_captions(tokens)
    want = net.similarity(v, t).diagonal()
    torch.testing.assert_close(net.paired_similarity(v, t), want)
    vectors = net.pair_vectors(v, t, paired=True)
    assert vectors.shape == (7, net.pair_dim)
    if matching != "pem":
        torch.testing.assert_close(vectors.sum(-1), want)


@pytest.mark.parametrize("sinkhorn", ["released", "log"])
@pytest.mark.parametrize("matching", ["partial_ot", "full", "prompt"])
def test_mass_is_accounted_for(matching, sinkhorn):
    images, tokens = example(2)
    options = {"matching": matching, "sinkhorn": sinkhorn, "lam": 0.1, "iterations": 300}
    net = model(dim=16, **options).double()
    with torch.no_grad():
        v, t = net.encode_images(images), net.encode_captions(tokens)
        parts = net.masses(v, t)
    total = sum(parts.values())
    torch.testing.assert_close(total, torch.ones_like(total), atol=2e-4, rtol=0)
    want = 1 - 1 / 7 - 1 / (torch.tensor(t.lengths).double() + 1) + parts["between"]
    torch.testing.assert_close(parts["local"], want.expand_as(total), atol=2e-3, rtol=0)
    with pytest.raises(ValueError, match="is not transport with dustbins"):
        model(matching="ot").masses(*toy())


def test_local_mass_at_the_usual_size_lies_where_it_must():
    lowest, highest = 1 - 1 / 37 - 1 / 15, 1 - 1 / 15  # K = 36, L = 14
    torch.manual_seed(0)
    net = model(dim=16, lam=0.1, sinkhorn="log", iterations=200).double()
    with torch.no_grad():
        v = net.encode_images(torch.randn(4, 36, 16))
        t = net.encode_captions(Tokens(torch.randint(4, 30, (4, 14)), (14,) * 4))
        local = net.masses(v, t)["local"]
    assert (local >= lowest - 1e-6).all()
    assert (local <= highest + 1e-6).all()


@pytest.mark.parametrize("matching", MATCHINGS)
def test_gradients_reach_every_weight(matching):
    images, tokens = example(3)
    net = model(dim=16, matching=matching, marginals="norm", image_encoder="linear").train()
    net(images, tokens)[:, :5].diagonal().sum().backward()
    without = {name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert without <= {"fragment_encoder.bias"} if matching == "vse" else not without


@pytest.mark.parametrize("matching", TRANSPORT)
def test_scores_can_be_differentiated_twice(matching):
    images, tokens = example(4, 2, 2, n_regions=2, dim=3)
    net = model(dim=3, matching=matching, lam=0.2, marginals="inter", iterations=2).double()
    v, t = net.encode_images(images), net.encode_captions(tokens)
    regions = v.regions.detach().requires_grad_()

    def scores(x, paired=False):
        encoding = ImageEncoding(v.vectors.detach(), x)
        return (net.paired_similarity if paired else net.similarity)(encoding, t.detach())

    assert torch.autograd.gradcheck(scores, (regions,))
    assert torch.autograd.gradgradcheck(scores, (regions,))
    assert torch.autograd.gradgradcheck(lambda x: scores(x, True), (regions,))


def test_training_leaves_out_fragments_and_changes_captions():
    images, _ = example(5, 4, 40)
    long = Tokens(torch.randint(4, 30, (500, 12)), (12,) * 500)
    for options, kept in (
        ({}, 3),
        ({"features": "grid"}, 4),
        ({"mask_ratio": 0.0}, 6),
        ({"mask_ratio": 0.99}, 1),
    ):
        net = model(dim=16, **options).train()
        assert net.encode_images(images).regions.shape[1] == kept
        assert net.eval().encode_images(images).regions.shape[1] == 6
    net = model(dim=16, augment_captions=False).train()
    assert net.encode_captions(long).lengths == long.lengths
    net = model(dim=16).train()
    shorter = [12 - n for n in net.encode_captions(long).lengths]
    assert 0.06 < sum(shorter) / 5000 < 0.10  # 8 % of the ten words between start and end
    brief = Tokens(torch.randint(4, 30, (200, 6)), (6,) * 200)
    assert net.encode_captions(brief).lengths == brief.lengths
    assert net.eval().encode_captions(long).lengths == long.lengths


def test_first_fragment_can_be_the_global_one():
    images, _ = example(6)
    net = model(dim=16, image_global="first", image_encoder="linear")
    v = net.encode_images(images)
    mapped = net.fragment_encoder(images)
    unit = mapped / mapped.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(v.vectors, unit[:, 0])
    torch.testing.assert_close(v.regions, unit[:, 1:])
    kept = net.train().encode_images(images)
    torch.testing.assert_close(kept.vectors, unit[:, 0])
    assert kept.regions.shape[1] == 3
    with pytest.raises(ValueError, match="image_global='first' takes it"):
        net.encode_images(images[:, :1])


def test_vectors_alone_cannot_be_aligned():
    with pytest.raises(ValueError, match="aligns no fragments"):
        model(matching="vse").alignments(*toy())
    with pytest.raises(ValueError, match="regions or words are missing"):
        model().similarity(ImageEncoding(torch.ones(1, 4)), CaptionEncoding(torch.ones(1, 4), (1,)))


def test_shares_of_attention_are_comparable_with_a_plan():
    images, captions = toy()
    for matching in ("cam", "partial_cam"):
        share = model(matching=matching).double().alignments(images, captions)
        torch.testing.assert_close(share.sum((-2, -1)), torch.ones(2, 2).double())
        assert share.shape[2] == 3 + (matching == "partial_cam")
        assert (share[:, 0, :, 2] == 0).all()
    cosines = []  # of two regions with a word, but for the same constant
    for tau in (0.1, 0.4):
        share = model(matching="cam", attention_tau=tau).double().alignments(images, captions)[:, 1]
        cosines.append(tau * (share[:, 0].log() - share[:, 1].log()))
    torch.testing.assert_close(*cosines)


@pytest.mark.slow
def test_words_through_clips_text_tower(tmp_path):
    clip_folder(tmp_path)
    net = model(
        text="clip",
        text_folder=str(tmp_path),
        text_words=words_file(tmp_path / "words.json"),
        vocab_size=len(WORDS),
    )
    ids = torch.tensor([[1, 4, 6, 8, 2], [1, 9, 2, 0, 0]])
    tokens = Tokens(ids, (5, 3))
    t = net.encode_captions(tokens)
    states, ends = net.text_encoder(tokens)
    unit = states / states.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(t.vectors, ends / ends.norm(dim=-1, keepdim=True))  # the end of the text
    assert t.lengths == (3, 1)
    torch.testing.assert_close(t.words[0], unit[0, 1:4])  # neither the start nor the end is a word
    torch.testing.assert_close(t.words[1, 0], unit[1, 1])
    assert (t.words[1, 1:] == 0).all()
    torch.testing.assert_close(net.train().encode_captions(tokens).words, t.words)  # unchanged
    net(torch.randn(4, 3, 4), tokens).sum().backward()
    assert net.text_encoder.fc.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="a caption of 2 tokens; 2 of them are not words"):
        net.encode_captions(Tokens(torch.tensor([[1, 2]]), (2,)))


def test_words_through_a_transformer(tmp_path):
    bert_folder(tmp_path)
    options = {
        "text": "bert",
        "text_folder": str(tmp_path),
        "text_words": words_file(tmp_path / "words.json"),
    }
    options |= {"vocab_size": len(WORDS)}
    ids = torch.tensor([[1, 4, 6, 8, 2], [1, 9, 2, 0, 0]])
    tokens = Tokens(ids, (5, 3))
    net = model(**options)
    t = net.encode_captions(tokens)
    states, _ = net.text_encoder(tokens)
    unit = states / states.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(t.vectors, unit[:, 0])  # [CLS] is the global vector and no word
    assert t.lengths == (4, 2)
    torch.testing.assert_close(t.words[0], unit[0, 1:])  # [SEP] is a word
    torch.testing.assert_close(t.words[1, :2], unit[1, 1:3])
    assert (t.words[1, 2:] == 0).all()
    assert int(net.text_encoder.pieces[len(WORDS), 0]) == PIECES.index("[MASK]")
    many = Tokens(ids.repeat(50, 1), (5, 3) * 50)
    scores = net.train()(torch.randn(4, 3, 4), many)  # masked and deleted words included
    scores.sum().backward()
    assert net.text_encoder.fc.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in net.text_encoder.tower.parameters())
    tuned = model(**options, finetune=True).train()
    tuned(torch.randn(4, 3, 4), many).sum().backward()
    assert tuned.text_encoder.tower.get_input_embeddings().weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="a caption of 1 tokens; 1 of them are not words"):
        net.encode_captions(Tokens(torch.ones(1, 1, dtype=torch.long), (1,)))
    with pytest.raises(ValueError, match="is neither a folder with"):
        model(**options | {"text_folder": str(tmp_path / "none")})
    bert_folder(tmp_path, pieces=[p for p in PIECES if p != "[MASK]"])
    with pytest.raises(ValueError, match=r"lacks \[MASK\]"):
        model(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "bert"}, "text='bert' needs text_folder, a local path"),
        ({"text": "clip"}, "text='clip' needs text_folder, a local path"),
        ({"text_folder": "x"}, "text_folder='x' is used with text='bert' or 'clip' only, got text='bigru'"),
        ({"text_words": "x"}, "text_words='x' is used with text='bert' or 'clip' only, got text='bigru'"),
        ({"finetune": True}, "finetune=True is used with image='resnet' or 'clip' only"),
        ({"tau": 0.5}, "tau=0.5 is used with marginals='intra' or 'inter' only, got marginals='uni'"),
        ({"attention_tau": 0.5}, "attention_tau=0.5 is used with matching='cam' or 'partial_cam' only"),
        (
            {"text": "bert", "text_folder": "y", "word_vectors": "x"},
            "word_vectors='x' is used with",
        ),
    ],
)
def test_an_option_without_effect_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        model(**options)


def test_captions_are_changed_at_the_published_rates():
    torch.manual_seed(0)
    ids = torch.arange(20).repeat(4000, 1) % 9 + 4
    ids[:, 0], ids[:, -1] = 1, 2
    changed = augment(Tokens(ids, (20,) * 4000), mask_id=99, n_words=50)
    n = 4000 * 18
    deleted = sum(20 - length for length in changed.lengths) / n
    valid = torch.arange(changed.ids.shape[1]) < torch.tensor(changed.lengths)[:, None]
    masked = int(((changed.ids == 99) & valid).sum()) / n
    strange = int(((changed.ids != 99) & (changed.ids > 12) & valid).sum()) / n
    assert (deleted, masked) == (pytest.approx(0.08, abs=0.004), pytest.approx(0.10, abs=0.004))
    assert strange == pytest.approx(0.02 * 37 / 50, abs=0.002)
    assert (changed.ids[:, 0] == 1).all()
    ends = changed.ids.gather(1, torch.tensor(changed.lengths)[:, None] - 1)
    assert (ends == 2).all()


@pytest.mark.parametrize("matching", [*TRANSPORT, "cam", "partial_cam"])
@pytest.mark.parametrize("global_is_mean", [True, False])
def test_scoring_without_gradients_gives_the_same_values(matching, global_is_mean):
    fragments, tokens = example(3, n_captions=9)
    net = model(dim=16, matching=matching).double()
    with torch.no_grad():
        images, captions = net.encode_images(fragments), net.encode_captions(tokens)
        if not global_is_mean:  # such as the class token of a transformer
            captions = CaptionEncoding(torch.roll(captions.vectors, 1, 0), captions.lengths, captions.words)
        lean = net.similarity(images, captions)
        pairs = torch.stack([net.paired_similarity(images, captions.select([k] * 5)) for k in range(9)], 1)
        _, side = net._sides(images, captions, lean=True)
    torch.testing.assert_close(net.similarity(images, captions), lean, rtol=0, atol=1e-6)
    torch.testing.assert_close(lean, pairs, rtol=0, atol=1e-6)
    assert ("mean_scale" in side) == (matching in ("full", "partial_ot") and global_is_mean)
