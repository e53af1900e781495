"""OMIT: every matching type and weight by a plain loop, invariances, accounting of mass, training."""

import pytest
import torch
from local_weights import PIECES, WORDS, bert_folder, clip_folder, words_file
from refusals import refused
from toy import regions, words

import nclib.ot
from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.base import CaptionEncoding, ImageEncoding
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


def test_float32_scores_are_close():
    for options in ({"matching": "ot"}, {}, {"matching": "full"}, {"matching": "cam"}, {"sinkhorn": "log"}):
        net = model(**options)
        rough = net.similarity(*toy())
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough.double(), score(**options), atol=2e-6, rtol=0)


def plain_score(net, image, caption):
    """Score of one pair: unit regions (K, D) and words (L, D), their global vectors, their lengths."""
    (v, regions, long), (t, words, wide) = image, caption
    kind = MATCHINGS[net.matching]
    if net.matching == "vse":
        return v @ t
    bins = (v, t) if kind.dustbin == "global" else (net.image_prompt, net.text_prompt) if kind.dustbin else ()
    rows, columns = ([*map(unit, bins[i : i + 1]), *side] for i, side in enumerate((regions, words)))
    if kind.family == "attention":
        found = []
        for word in words:
            cosines = torch.stack([row @ word for row in rows])
            share = (cosines / net.attention_tau).softmax(0)
            mean = sum(a * row for a, row in zip(share, rows, strict=True))
            found.append((share * cosines)[len(rows) - len(regions) :].sum() / mean.norm())
        return sum(found) / len(found)
    p, q = {
        "uni": lambda: (torch.ones(len(regions)), torch.ones(len(words))),
        "intra": lambda: ((regions @ v / net.tau).exp(), (words @ t / net.tau).exp()),
        "inter": lambda: ((regions @ t / net.tau).exp(), (words @ v / net.tau).exp()),
        "norm": lambda: (long, wide),
    }[net.marginals]()
    if kind.dustbin:  # which weighs as much as one of the others on average
        p, q = (torch.cat([x.mean()[None], x]) for x in (p, q))
    p, q = p / p.sum(), q / q.sum()
    s = torch.stack([torch.stack([row @ column for column in columns]) for row in rows])
    epsilon = 1e-6 if net.sinkhorn == "released" else 0.0  # added to every sum
    plan = ((s - 1) / net.lam).exp()
    plan = plan / (plan.sum() + epsilon)
    for _ in range(net.iterations):
        plan = plan * (p / (plan.sum(1) + epsilon))[:, None]
        plan = plan * (q / (plan.sum(0) + epsilon))
    return (plan * s)[kind.skip :, kind.skip :].sum()


def unit(x):
    return x.flatten() / x.norm()


@pytest.mark.parametrize("sinkhorn", ["released", "log"])
@pytest.mark.parametrize(
    ("matching", "marginals"),
    [*((m, "uni") for m in MATCHINGS if m != "pem"), *(("partial_ot", m) for m in MARGINALS if m != "uni")],
)
def test_scores_are_those_of_one_pair_after_the_other(matching, marginals, sinkhorn):
    images, tokens = example(3)
    tau = {"tau": 0.7} if marginals in ("intra", "inter") else {}
    options = {"matching": matching, "marginals": marginals, "sinkhorn": sinkhorn, "lam": 0.1, **tau}
    net = model(dim=16, **options).double()
    with torch.no_grad():
        v, t = net.encode_images(images), net.encode_captions(tokens)
        sides = zip(v.vectors, v.regions, v.norms, strict=True)
        captions = [(t.vectors[c], t.words[c, :n], t.norms[c, :n]) for c, n in enumerate(t.lengths)]
        want = torch.stack([torch.stack([plain_score(net, side, c) for c in captions]) for side in sides])
        torch.testing.assert_close(net.similarity(v, t), want, rtol=1e-6, atol=1e-8)


def test_gaussians_are_compared_by_their_wasserstein_distance():
    images, tokens = example(3)
    net = model(dim=16, matching="pem").double()

    def gaussian(pool, mean, fragments):
        share = (pool.second.weight @ (pool.first.weight @ fragments.T).tanh())[0].softmax(0)
        return mean, unit(mean + share @ fragments).exp()

    with torch.no_grad():
        v, t = net.encode_images(images), net.encode_captions(tokens)
        first = [gaussian(net.image_pool, *side) for side in zip(v.vectors, v.regions, strict=True)]
        other = [gaussian(net.text_pool, t.vectors[c], t.words[c, :n]) for c, n in enumerate(t.lengths)]
        want = [[-((m - n).square() + (s - r).square()).sum().sqrt() for n, r in other] for m, s in first]
        torch.testing.assert_close(net.similarity(v, t), torch.tensor(want, dtype=torch.float64))


def test_small_lambda_reaches_the_linear_program():
    images, captions = toy()
    net = model(sinkhorn="log", iterations=1000).double()
    s, p, q = net._problem(*net._sides(images, captions))
    for b in range(2):
        for c, length in enumerate(captions.lengths):
            cost = 1 - s[b, :, : length + 1, c]
            best = (nclib.ot.exact(cost, p[0, :, 0], q[0, : length + 1, c]).plan * cost).sum()
            gaps = []
            for lam in (0.05, 0.02, 0.006):
                net.lam = lam
                plan = net.alignments(images, captions)[b, c, :, : length + 1]
                gaps.append(float((plan * cost).sum() - best))
            assert gaps[0] > gaps[1] > gaps[2] > -1e-6
            assert gaps[2] < 5e-4


def example(seed=0, n_images=5, n_captions=7, dim=16, n_regions=6):
    torch.manual_seed(seed)
    lengths = tuple(int(x) for x in torch.randint(1, 9, (n_captions,)))
    ids = torch.randint(4, 30, (n_captions, 9)) * (torch.arange(9) < torch.tensor(lengths)[:, None])
    return torch.randn(n_images, n_regions, dim), Tokens(ids, lengths)


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
        plans = net.alignments(v, t)
    total, local, between = plans.sum((-2, -1)), plans[..., 1:, 1:].sum((-2, -1)), plans[..., 0, 0]
    torch.testing.assert_close(total, torch.ones_like(total), atol=2e-4, rtol=0)
    want = 1 - 1 / 7 - 1 / (torch.tensor(t.lengths).double() + 1) + between
    torch.testing.assert_close(local, want.expand_as(total), atol=2e-3, rtol=0)


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
    cases = (({}, 3), ({"features": "grid"}, 4), ({"mask_ratio": 0.0}, 6), ({"mask_ratio": 0.99}, 1))
    for options, kept in cases:
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


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [("bert", 1, None), pytest.param("clip", 1, -1, marks=pytest.mark.slow)],  # CLIP: no end among the words
)
def test_words_through_a_pretrained_reader(kind, first, last, tmp_path):
    bert_folder(tmp_path) if kind == "bert" else clip_folder(tmp_path)
    options = {"text": kind, "text_folder": str(tmp_path), "vocab_size": len(WORDS)}
    options["text_words"] = words_file(tmp_path / "words.json")
    ids, lengths = torch.tensor([[1, 4, 6, 8, 2], [1, 9, 2, 0, 0]]), (5, 3)
    tokens, net = Tokens(ids, lengths), model(**options)
    t = net.encode_captions(tokens)
    states, ends = net.text_encoder(tokens)
    whole = states[:, 0] if kind == "bert" else ends  # [CLS], or the end of the text
    torch.testing.assert_close(t.vectors, whole / whole.norm(dim=-1, keepdim=True))
    for row, n in enumerate(lengths):
        words = states[row, :n][first:last]
        assert t.lengths[row] == len(words)
        torch.testing.assert_close(t.words[row, : len(words)], words / words.norm(dim=-1, keepdim=True))
        assert (t.words[row, len(words) :] == 0).all()
    net.train()
    if kind == "bert":
        assert int(net.text_encoder.pieces[len(WORDS), 0]) == PIECES.index("[MASK]")
        tokens = Tokens(ids.repeat(50, 1), lengths * 50)  # masked and deleted words included
    else:
        torch.testing.assert_close(net.encode_captions(tokens).words, t.words)  # unchanged
    net(torch.randn(4, 3, 4), tokens).sum().backward()
    assert net.text_encoder.fc.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in net.text_encoder.tower.parameters())
    n = 1 if kind == "bert" else 2
    short = Tokens(torch.ones(1, n, dtype=torch.long), (n,))
    refused(ValueError, lambda: net.encode_captions(short), f"{n} tokens", f"{n} of them")
    tuned = model(**options, finetune=True).train()
    tuned(torch.randn(4, 3, 4), tokens).sum().backward()
    assert tuned.text_encoder.tower.get_input_embeddings().weight.grad.abs().sum() > 0


def test_a_reader_needs_its_mask(tmp_path):
    bert_folder(tmp_path, pieces=[p for p in PIECES if p != "[MASK]"])
    words = words_file(tmp_path / "words.json")
    given = {"text": "bert", "text_folder": str(tmp_path), "text_words": words, "vocab_size": len(WORDS)}
    refused(ValueError, lambda: model(**given), "[MASK]")


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


@pytest.mark.parametrize(
    ("options", "call", "named"),
    [
        ({"matching": "vse"}, lambda net: net.alignments(*toy()), ["matching='vse'", "fragments"]),
        ({"marginals": "norm"}, lambda net: net.similarity(*toy()), ["marginals='norm'", "lengths"]),
        ({"image_global": "first"}, lambda net: net.encode_images(torch.ones(2, 1, 4)), ["'first'"]),
        ({}, lambda net: net.similarity(ImageEncoding(torch.ones(1, 4)), toy()[1]), ["regions or words"]),
        *(
            (options, None, [*(f"{k}={v!r}" for k, v in options.items()), *named])
            for options, named in (
                ({"text": "bert"}, ["text_folder"]),
                ({"text": "clip"}, ["text_folder"]),
                ({"text_folder": "x"}, ["text='bert' or 'clip'"]),
                ({"text_words": "x"}, ["text='bert' or 'clip'"]),
                ({"finetune": True}, ["image='resnet' or 'clip'"]),
                ({"tau": 0.5}, ["marginals='intra' or 'inter'", "marginals='uni'"]),
                ({"attention_tau": 0.5}, ["matching='cam' or 'partial_cam'"]),
            )
        ),
    ],
)
def test_what_an_option_does_not_allow_or_need_is_refused(options, call, named):
    refused(ValueError, lambda: (call or (lambda net: None))(model(**options)), *named)
