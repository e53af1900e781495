"""SGR and SAF as a plain loop over captions: the paper's formulas, one caption at a time, nothing shared.

Slow on purpose. Takes only the weights from the models under test.
"""

import torch
import torch.nn.functional as F


def unit(x, dim=-1):
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def image_global(layer, regions, training):
    """Pooled regions (B, D)."""
    n_regions = regions.shape[1]
    local = F.linear(regions, layer.local.weight, layer.local.bias)
    norm = layer.local_norm
    if training:
        mean, var = local.mean((0, 2), keepdim=True), local.var((0, 2), unbiased=False, keepdim=True)
    else:
        mean, var = norm.running_mean.view(1, -1, 1), norm.running_var.view(1, -1, 1)
    local = (local - mean) / (var + 1e-5).sqrt() * norm.weight.view(1, -1, 1) + norm.bias.view(1, -1, 1)
    gate = F.linear(regions.sum(1) / n_regions, layer.mean.weight, layer.mean.bias)
    norm = layer.mean_norm
    if training:
        mean, var = gate.mean(0), gate.var(0, unbiased=False)
    else:
        mean, var = norm.running_mean, norm.running_var
    gate = (gate - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
    score = F.linear(torch.tanh(local) * torch.tanh(gate)[:, None], layer.score.weight, layer.score.bias)
    return unit((torch.softmax(score, 1) * regions).sum(1))


def caption_global(layer, words):
    """Pooled words of one caption: (w, D) to (D)."""
    local = torch.tanh(F.linear(words, layer.local.weight, layer.local.bias))
    gate = torch.tanh(F.linear(words.mean(0), layer.mean.weight, layer.mean.bias))
    score = F.linear(local * gate, layer.score.weight, layer.score.bias)  # (w, 1)
    return unit((torch.softmax(score, 0) * words).sum(0))


def contexts(regions, words, temperature):
    """Attended contexts of the words of one caption in every image: (B, w, D)."""
    score = torch.einsum("wd,bkd->bkw", words, regions)
    score = F.leaky_relu(score, 0.1)
    score = unit(score, 2)  # over the words
    share = torch.softmax(temperature * score.transpose(1, 2), 2)  # (B, w, K)
    return unit(torch.einsum("bwk,bkd->bwd", share, regions))


def caption_nodes(model, image_vectors, regions, words):
    """Similarity nodes of one caption with every image: (B, w + 1, S)."""
    local, glob = model.local_similarity, model.global_similarity
    pooled = caption_global(model.text_global, words)
    first = unit(F.linear((image_vectors - pooled) ** 2, glob.weight, glob.bias))
    context = contexts(regions, words, model.temperature)
    rest = unit(F.linear((context - words) ** 2, local.weight, local.bias))
    return torch.cat([first[:, None], rest], 1)


def reason(graph, nodes):
    """Three steps of message passing, with separate query and key maps; node 0."""
    for step in graph.steps:
        edge = torch.softmax(step.query(nodes) @ step.key(nodes).transpose(1, 2), 2)
        nodes = torch.relu(step.update(edge @ nodes))
    return nodes[:, 0]


def filtrate(layer, nodes, running, training):
    """Gated average; ``running`` is (mean, variance), updated in place in training."""
    value = layer.filter(nodes).squeeze(2)[:, None]  # (B, 1, w + 1): one channel
    gate = F.batch_norm(
        value,
        running[0],
        running[1],
        layer.norm.weight,
        layer.norm.bias,
        training=training,
        momentum=0.1,
        eps=1e-5,
    )
    gate = torch.sigmoid(gate)
    weight = gate / (gate.abs().sum(2, keepdim=True) + 1e-8)
    return unit((weight @ nodes).squeeze(1))


def loop_similarity(model, images, tokens, *, from_encoders=True):
    """Similarities (B, C) and SAF's running statistics after the batch, without touching the model's.

    ``images`` are raw features and ``tokens`` token ids; or, with ``from_encoders`` false, unit regions
    (B, R, D) and a list of unit word matrices.
    """
    training = model.training
    if from_encoders:
        regions = unit(F.linear(images, model.image_encoder.fc.weight, model.image_encoder.fc.bias))
        encoder = model.text_encoder
        captions = []
        for row, length in enumerate(tokens.lengths):
            states, _ = encoder.gru(encoder.embedding(tokens.ids[row : row + 1, :length]))
            half = states.shape[2] // 2
            captions.append(unit((states[0, :, :half] + states[0, :, half:]) / 2))
    else:
        regions, captions = images, tokens
    image_vectors = image_global(model.image_global, regions, training)
    running = None
    if hasattr(model, "filtration"):
        norm = model.filtration.norm
        running = norm.running_mean.clone(), norm.running_var.clone()
    columns = []
    for words in captions:
        nodes = caption_nodes(model, image_vectors, regions, words)
        if running is None:
            vector = reason(model.graph, nodes)
        else:
            vector = filtrate(model.filtration, nodes, running, training)
        columns.append(torch.sigmoid(model.score(vector)).squeeze(1))
    return torch.stack(columns, 1), running
