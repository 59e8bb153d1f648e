"""Sentences in, sentences out: what dev BLEU, evaluation and translation all call."""

from collections.abc import Sequence

from aiayn.data.tokenizer import Tokenizer
from aiayn.inference.beam_search import decode
from aiayn.model.transformer import Transformer
from aiayn.progress import progress


def translate_sentences(
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    beam: int,
    alpha: float,
    max_extra_length: int,
    tokens_per_batch: int,
    name: str = "",
    silent: bool = False,
) -> list[str]:
    """Translate sentences, in order; one without tokens, a blank line for one, becomes an empty one.

    Args:
        model: On whatever device.
        tokenizer: The one it was trained with.
        sentences: Plain text.
        beam: As in `beam_search.decode`, like the others; together they are the `inference` config.
        alpha: Of the length penalty.
        max_extra_length: Tokens beyond the source's.
        tokens_per_batch: Bounds memory.
        name: Of the sentences, for the progress bar.
        silent: Show no progress.
    """
    encoded = tokenizer.encode(sentences)
    rows = [row for row, tokens in enumerate(encoded) if len(tokens)]
    with progress(f"translating {name}".strip(), total=len(rows), silent=silent) as advance:
        found = decode(
            model,
            [encoded[row] for row in rows],
            beam=beam,
            alpha=alpha,
            max_extra_length=max_extra_length,
            tokens_per_batch=tokens_per_batch,
            progress=advance,
        )
    translations = [""] * len(encoded)
    for row, translation in zip(rows, tokenizer.decode(found), strict=True):
        translations[row] = translation
    return translations
