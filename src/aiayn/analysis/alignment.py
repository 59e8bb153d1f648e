"""Word alignments from the decoder's attention to the source.

Garg et al. 2019 average the heads of the penultimate layer, in the row that predicts a token; Chen et al. 2020 take a
layer in the middle, in the row that reads it. Which layer is right depends on the model, and every token attends to
some positions, EOS for one, whatever it is about. So here the row that predicts is taken, and in each layer what a
source position gets from all target tokens is divided among them; these shares are averaged over the layers. Recall of
silver links, in %, by `benchmarks/alignment.py`:

    Transformer-Tiny on Multi30k             links   shares   all layers   penultimate   the best that reads
    test_2016_flickr                         2,672     94.8         73.7          67.3                  80.8
    test_2018_flickr                         2,446     93.8         70.6          69.0                  82.5
    after 800 steps, learned positions       2,442     93.4         85.8          64.3                  18.0

The rule was chosen on the first line, so elsewhere it may do worse; nobody has checked the links.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from aiayn.analysis.weights import weights
from aiayn.data.tokenizer import SPACE, Vocabularies
from aiayn.inference.ensemble import Ensemble
from aiayn.inference.scoring import batches
from aiayn.model.model import Model

TOKENS = 1024  # of a batch's longer side; the weights of a base model for 250 tokens a sentence then take 150 MB
Link = tuple[int, int]


@torch.inference_mode()
def align(
    model: Model, vocabularies: Vocabularies, sources: Sequence[str], targets: Sequence[Sequence[int]]
) -> list[list[Link]]:
    """Link each target word to the source words that its pieces attend to most; to none where that is EOS.

    Args:
        model: In evaluation mode, on whatever device; the shares of an ensemble's members are averaged.
        vocabularies: Those it was trained with.
        sources: Plain text.
        targets: The ids of as many translations, without BOS and EOS.

    Returns:
        For each sentence its links (source word, target word), sorted; words are counted from 0, as white space
        divides the text (white space that a model spells in bytes is not seen).

    Raises:
        ValueError: if the model's attention does not show its weights.
    """
    members = model.models if isinstance(model, Ensemble) else [model]
    encoded, ids = vocabularies.source.encode(sources), [np.array(target) for target in targets]
    found: list[list[Link]] = [[]] * len(sources)
    for rows, batch in batches(model, encoded, ids, tokens_per_batch=TOKENS):
        real = batch.target[:, 1:] != model.pad_id
        found_by = [shares(weights(member, batch).cross, real) for member in members]
        best = torch.stack(found_by).mean(0).argmax(-1)  # (batch, target)
        for row, attended in zip(rows, best.tolist(), strict=True):
            found[row] = links(vocabularies, sources[row], targets[row], attended)
    return found


def shares(cross: Tensor, real: Tensor) -> Tensor:
    """What each target token has of all the attention that a source position gets, the mean over the layers.

    Args:
        cross: Attention of the decoder to the source, `(layers, batch, heads, target, source)`.
        real: False where there is padding instead of a token or EOS, `(batch, target)`.

    Returns:
        From 0 to 1, `(batch, target, source)`; over the target they sum to one, and where the source is padded to 0.
    """
    given = cross.mean(2) * real[:, :, None]
    return (given / given.sum(2, keepdim=True).clamp(min=torch.finfo(given.dtype).tiny)).mean(0)


def words(surfaces: Iterable[str]) -> list[int]:
    """The word that each piece of a text ends in, counted from 0; what is between two words is of the next one.

    -1 where no word comes.
    """
    last, apart, found = -1, True, []
    for surface in surfaces:
        apart |= surface[:1].isspace()
        if begun := len(surface.split()):
            last += begun - 1 + apart
            apart = surface[-1].isspace()
            found.append(last)
        else:
            found.append(last + apart)
    return [word if word <= last else -1 for word in found]


def links(vocabularies: Vocabularies, source: str, target: Sequence[int], attended: Sequence[int]) -> list[Link]:
    """Links of words from the source position, EOS among them, that each target piece attends to most."""
    read = [*words(vocabularies.source.surfaces(source)), -1]
    written = words(piece.replace(SPACE, " ") for piece in vocabularies.target.pieces(target))
    # `attended` goes on with EOS and padding.
    found = {(read[position], word) for position, word in zip(attended, written, strict=False)}
    return sorted(pair for pair in found if min(pair) >= 0)
