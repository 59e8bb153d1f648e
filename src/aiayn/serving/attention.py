"""A model's attention weights as the service gives them: words beside figures."""

import torch
from torch import Tensor

from aiayn.analysis.weights import weights
from aiayn.data.tokenizer import BOS, EOS, Tokenizer
from aiayn.inference.translation import Translation
from aiayn.model.transformer import Transformer
from aiayn.serving.messages import Attention, Heads

DECIMALS = 4  # more cannot be seen


def attend(model: Transformer, tokenizer: Tokenizer, sentence: str, translation: Translation) -> Attention:
    """What every head attends to while the model reads a sentence and its translation.

    Raises:
        ValueError: if the model's attention is of a kind that shows no weights.
    """
    source, target = [*tokenizer.encode([sentence])[0].tolist(), EOS], [BOS, *translation.tokens]
    device = next(model.parameters()).device
    found = weights(model, *(torch.tensor([ids], device=device) for ids in (source, target)))
    return Attention(
        source=tokenizer.pieces(source),
        target=tokenizer.pieces(target),
        encoder=_nested(found.encoder),
        decoder=_nested(found.decoder),
        cross=_nested(found.cross),
    )


def _nested(heads: Tensor) -> Heads:
    """Lists of the weights `(layers, 1, heads, query, key)`, without the batch."""
    return heads[:, 0].double().round(decimals=DECIMALS).tolist()
