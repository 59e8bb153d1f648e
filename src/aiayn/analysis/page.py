"""Attention weights as one HTML file that opens offline; the service's page shows the same data.

Words come from anyone: the title is escaped, the data cannot end their script, and attention.js sets text as text only.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from aiayn.analysis.weights import KINDS, weights
from aiayn.data.batching import Batch
from aiayn.data.tokenizer import BOS, EOS, SPACE, Vocabularies
from aiayn.model.model import Model

HERE = Path(__file__).parent


def attention(model: Model, vocabularies: Vocabularies, source: Sequence[int], target: Sequence[int]) -> dict[str, Any]:
    """What attention.js draws: the weights of a teacher-forced pass, to three places, in plain lists.

    Args:
        model: In evaluation mode, on whatever device.
        vocabularies: Those it was trained with.
        source: Ids of a sentence, without EOS.
        target: Ids of a translation, without BOS and EOS.

    Returns:
        `source` with EOS and `target` from BOS on, as tokens; `encoder`, `decoder` and `cross`, layers x heads x query
        x key. Row i of the last two is where the decoder has read target token i and predicts the next.

    Raises:
        ValueError: if the model's attention does not show its weights.
    """
    read, written = [*source, EOS], [BOS, *target]
    batch = Batch.of(np.array([read]), np.array([[*written, EOS]]), np.zeros(1, np.int64))
    found = weights(model, batch.to(next(model.parameters()).device))
    layers = {kind: getattr(found, kind)[:, 0].double().cpu().numpy().round(3) for kind in KINDS}
    return {
        "source": labels(vocabularies.source.pieces(read)),
        "target": labels(vocabularies.target.pieces(written)),
        **{kind: layer.tolist() for kind, layer in layers.items()},
    }


def labels(pieces: Sequence[str]) -> list[str]:
    """Pieces as a picture shows them: a middle dot marks letters that go on a word, as in `he .eled`."""
    return [
        piece.removeprefix(SPACE) or "\u2423"
        if piece.startswith(SPACE)
        else f"\u00b7{piece}"
        if piece.isalnum()
        else piece
        for piece in pieces
    ]


def script() -> str:
    """The function `drawAttention(element, data)` of attention.js, for a page that shows what `attention` gives."""
    return (HERE / "attention.js").read_text(encoding="utf-8")


def page(title: str, data: dict[str, Any]) -> str:
    """The whole page; it needs no other file and no network.

    Args:
        title: Its heading, plain text.
        data: As `attention` gives them.
    """
    return Template((HERE / "attention.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        script=script(),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),  # nothing in it can end the script
    )
