"""SCAN and IMRAM as a plain loop over captions: one caption with all images at a time, contexts in full.

Slow on purpose. Takes only the weights from the models under test.
"""

import torch
import torch.nn.functional as F

POOLS = {
    "lse": lambda x, k: torch.log(torch.exp(k * x).sum(1)) / k,
    "mean": lambda x, k: x.mean(1),
    "max": lambda x, k: x.amax(1),
    "sum": lambda x, k: x.sum(1),
}


def attend(queries, sources, temperature):
    """Contexts (B, Q, D) of queries (B, Q, D) over sources (B, K, D)."""
    score = F.leaky_relu(torch.bmm(sources, queries.transpose(1, 2)), 0.1)  # (B, K, Q)
    score = score / (score.pow(2).sum(2, keepdim=True).sqrt() + 1e-8)
    share = torch.softmax(temperature * score.transpose(1, 2), 2)  # (B, Q, K)
    return torch.bmm(share, sources)


def scan_column(model, regions, words):
    """Scores (B) of one caption, ``words`` (B, n, D) being the same for all images."""
    queries, sources = (words, regions) if model.direction == "t2i" else (regions, words)
    context = attend(queries, sources, model.temperature)
    cosine = F.cosine_similarity(queries, context, dim=2, eps=1e-8)
    return POOLS[model.pooling](cosine, model.sharpness)


def imram_column(model, regions, words):
    """Scores (B) of one caption: all rounds of all branches."""
    total = 0.0
    for side, unit in model.memory.items():
        first, sources = (words, regions) if side == "text" else (regions, words)
        query = first
        for step in range(model.steps):
            context = attend(query, sources, model.temperature)
            total = total + F.cosine_similarity(first, context, dim=2, eps=1e-8).mean(1)
            if step < model.steps - 1:
                both = torch.cat([query, context], 2)
                gate = torch.sigmoid(unit.gate(both))
                query = gate * query + (1 - gate) * torch.tanh(unit.output(both))
    return total


COLUMNS = {"SCAN": scan_column, "IMRAM": imram_column}


def loop_scores(model, images, tokens):
    """Similarities (B, C), caption by caption."""
    encoded, captions = model.encode_images(images), model.encode_captions(tokens)
    column = COLUMNS[type(model).__name__]
    parts = zip(captions.words, tokens.lengths, strict=True)
    columns = [column(model, encoded.regions, words[:n].expand(len(images), -1, -1)) for words, n in parts]
    return torch.stack(columns, 1)
