"""Subwords: a byte-pair encoding of both languages together (section 5.1), or of each, by SentencePiece.

A tokenizer is the bytes of its SentencePiece model and nothing else, so it travels inside a corpus and inside every
checkpoint. The ids of the four special symbols are fixed here for the whole project. Encoded sentences hold none of
them; batching adds EOS and BOS. The paper's tool was tensor2tensor's own subword encoder; SentencePiece differs in
normalising the text first (`nmt_nfkc`: Unicode NFKC, control characters dropped, runs of white space and of invisible
characters become one space).
"""

import hashlib
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

PAD, UNK, BOS, EOS = range(4)
SPACE = "\u2581"  # in pieces; one that begins with it begins a word
RULE = "nmt_nfkc"  # by which SentencePiece normalises, and has always done here
# By which corpora, checkpoints and exports name the tokenizers of the two sides; a shared one by the first alone.
NAMES = ("tokenizer", "target_tokenizer")


class VocabularySizeError(ValueError):
    """The text has no so many pieces to learn; `largest` says how many it has."""

    def __init__(self, vocab_size: int, largest: int) -> None:
        super().__init__(
            f"data.vocab_size={vocab_size} is more than the text allows; the largest possible value is {largest}."
        )
        self.largest = largest


class Tokenizer:
    """Text to ids and back.

    Args:
        model: A serialised SentencePiece model with this module's special ids, as `train` makes it.
    """

    def __init__(self, model: bytes) -> None:
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"The {len(model)} bytes given are not a SentencePiece model: {error}.") from error
        special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if special != (PAD, UNK, BOS, EOS):
            raise ValueError(f"The tokenizer has pad, unk, bos, eos = {special}, and {(PAD, UNK, BOS, EOS)} is needed.")
        self.model = model
        self._processor = processor

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        *,
        vocab_size: int,
        character_coverage: float = 1.0,
        byte_fallback: bool = False,
        symbols: Sequence[str] = (),
    ) -> "Tokenizer":
        """Learn a byte-pair encoding; the same sentences give the same model, byte for byte.

        Args:
            sentences: Read once and kept in memory: give a sample of a large text. (SentencePiece would draw one
                itself, but another in every process: its generator has no seed for that.)
            vocab_size: Number of ids, special symbols included.
            character_coverage: Share of the text's characters that get ids of their own; rarer ones become UNK.
            byte_fallback: Give each of the 256 bytes an id, and spell rarer characters in UTF-8, so that none is UNK.
                What the normaliser removes or replaces, ASCII's control characters for one, is gone before.
            symbols: Words that get one id each, whatever else is learnt.

        Raises:
            VocabularySizeError: if the sentences have no so many pieces.
            ValueError: if another setting makes no sense, or the vocabulary has no room for the characters.
        """
        if vocab_size <= EOS + 1:
            raise ValueError(f"data.vocab_size must be above the {EOS + 1} special symbols, got {vocab_size}.")
        if not 0 < character_coverage <= 1:
            raise ValueError(f"data.character_coverage must be in (0, 1], got {character_coverage}.")
        model = io.BytesIO()
        failures: list[BaseException] = []
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_noting(failures, sentences),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback,
                user_defined_symbols=[f"{SPACE}{symbol}" for symbol in symbols],  # with what begins a word
                normalization_rule_name=RULE,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                minloglevel=2,
            )
        except RuntimeError as error:
            if failures:
                raise failures[0] from None
            raise _explained(error, vocab_size=vocab_size, byte_fallback=byte_fallback) from error
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        """Number of ids, special symbols included."""
        return self._processor.vocab_size()

    @property
    def vocabulary(self) -> list[str]:
        """What each id stands for, in order; no two are the same."""
        return self.pieces(range(self.vocab_size))

    @cached_property
    def symbols(self) -> dict[str, int]:
        """The words that were given one id each, and the ids."""
        model = sentencepiece_model_pb2.ModelProto.FromString(self.model)  # type: ignore[attr-defined]
        user_defined = model.SentencePiece.USER_DEFINED
        return {
            piece.piece.removeprefix(SPACE): place
            for place, piece in enumerate(model.pieces)
            if piece.type == user_defined
        }

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Split sentences into ids, one int32 array a sentence, without special symbols.

        SentencePiece lets go of Python's global lock while it works, so threads that share a tokenizer encode in
        parallel.
        """
        return self._processor.encode(list(sentences), return_type="numpy", num_threads=1)

    def decode(self, sequences: Sequence[Sequence[int] | np.ndarray]) -> list[str]:
        """Join ids to sentences, each of one line; special symbols but UNK leave no trace."""
        ids = [list(map(int, sequence)) for sequence in sequences]
        if not ids:  # SentencePiece takes it for one sentence
            return []
        # Bytes can spell what ends a line to us, or to Python's text files. Real sentences hold the other separators.
        return [text.replace("\n", " ").replace("\r", " ") for text in self._processor.decode(ids, num_threads=1)]

    def pieces(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """The subwords that ids stand for; one that begins a word starts with U+2581."""
        return self._processor.id_to_piece(list(map(int, ids)))

    def surfaces(self, sentence: str) -> list[str]:
        """What each id of an encoded sentence covers of its text, as it was before it was normalised.

        An id that stands for what the normaliser added covers nothing; white space at the ends is covered by none.
        """
        [encoded] = self._processor.encode([sentence], return_type="proto")
        return [piece.surface for piece in encoded.pieces]

    def __reduce__(self) -> tuple[Callable[[bytes], "Tokenizer"], tuple[bytes]]:
        return type(self), (self.model,)


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizers of the two sides: the same object twice where they share one."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def joint(cls, tokenizer: Tokenizer) -> Self:
        """One tokenizer for both sides."""
        return cls(tokenizer, tokenizer)

    @classmethod
    def of(cls, models: Mapping[str, bytes]) -> Self:
        """Those whose serialised models were stored under `NAMES`."""
        source, *target = [Tokenizer(models[name]) for name in NAMES if name in models]
        return cls(source, *(target or [source]))

    @property
    def shared(self) -> bool:
        return self.source is self.target

    @property
    def models(self) -> dict[str, bytes]:
        """The serialised models to be stored, under `NAMES`."""
        sides = [self.source] if self.shared else [self.source, self.target]
        return {name: tokenizer.model for name, tokenizer in zip(NAMES, sides, strict=False)}

    @property
    def hash(self) -> str:
        """As `models_hash`."""
        return models_hash(self.models)

    @property
    def sizes(self) -> dict[str, int]:
        """What a model is given besides its config."""
        own = {} if self.shared else {"source_vocab_size": self.source.vocab_size}
        return {"vocab_size": self.target.vocab_size, **own}


def models_hash(models: Mapping[str, bytes]) -> str:
    """In hexadecimal, equal for equal `Vocabularies.models` only: SHA-256 of a shared one, else that of both hashes."""
    hashes = [hashlib.sha256(models[name]).hexdigest() for name in NAMES if name in models]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


class Normaliser:
    """What a tokenizer sees of sentences: where this makes them equal, their ids are.

    Args:
        model: The tokenizer's; None for any that is trained here.
    """

    def __init__(self, model: bytes | None = None) -> None:
        self._unchanged = _is_normalised if model is None else lambda sentence: False
        given = {"rule_name": RULE} if model is None else {"model_proto": model}
        self._processor = sentencepiece.SentencePieceNormalizer(
            **given, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=True
        )

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        return [s if self._unchanged(s) else self._processor.normalize(s) for s in sentences]


def _is_normalised(sentence: str) -> bool:
    """Whether RULE certainly leaves a sentence as it is: true of most, and seen sooner than SentencePiece sees it."""
    return (
        unicodedata.is_normalized("NFKC", sentence)
        and sentence.isprintable()  # no control or format character, no white space but the plain space
        and "  " not in sentence
        and "\u2581" not in sentence  # these two are printable, and become spaces
        and "\ufffd" not in sentence
        and sentence.strip(" ") == sentence
    )


def _noting(failures: list[BaseException], sentences: Iterable[str]) -> Iterator[str]:
    """Keep what goes wrong in reading the sentences: SentencePiece turns it into a RuntimeError of its own."""
    try:
        yield from sentences
    except BaseException as error:
        failures.append(error)
        raise


def _explained(error: RuntimeError, *, vocab_size: int, byte_fallback: bool) -> Exception:
    """Say what SentencePiece's message means for the user's settings; an unknown message stays as it is."""
    message = str(error)
    if bound := re.search(r"too high .*<= (\d+)", message):
        return VocabularySizeError(vocab_size, int(bound[1]))
    if bound := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        needed = "the text's characters" + " and the 256 bytes of data.byte_fallback" * byte_fallback
        return ValueError(
            f"data.vocab_size={vocab_size} has no room for {needed}; give at least {bound[1]}, "
            "or lower data.character_coverage."
        )
    if "!sentences_.empty()" in message:
        return ValueError("There is no sentence to train the tokenizer on.")
    return error
