"""What the service is asked and what it answers, as JSON."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aiayn.inference.translation import Translation

SHOWN = 3  # mistakes of a request that the error names


class Question(BaseModel):
    """The body of `POST /translate`: one of `text` and `sentences`.

    Attributes:
        text: One sentence.
        sentences: Several.
        n_best: Translations of each, at most the beam's width.
        attention: Whether the best translation of each is to come with its attention weights.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str | None = None
    sentences: list[str] | None = Field(default=None, min_length=1)
    n_best: int = Field(default=1, ge=1)
    attention: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.sentences is None):
            raise ValueError('give either "text", one sentence, or "sentences", a list of them')
        return self

    def asked(self) -> list[str]:
        """The sentences to translate."""
        return self.sentences if self.sentences is not None else [self.text or ""]


class Candidate(BaseModel):
    """A translation: `score` is `log_probability` normalised by length."""

    text: str
    score: float
    log_probability: float


Heads = list[list[list[list[float]]]]  # layers x heads x query x key; each row sums to one, up to rounding


class Attention(BaseModel):
    """What every head attends to, for a sentence and its translation.

    Attributes:
        source: Tokens that the encoder reads.
        target: Tokens that the decoder reads; each is the query that predicts the next one.
        encoder: Self-attention over `source`.
        decoder: Self-attention over `target`.
        cross: From `target` to `source`.
    """

    source: list[str]
    target: list[str]
    encoder: Heads
    decoder: Heads
    cross: Heads


class Translated(Candidate):
    """The best translation of a sentence, and all that were asked for, best first.

    Attributes:
        n_best: All of them.
        tree: Of a model that was trained on trees: the one that the best one's symbols say, in brackets.
        attention: Of the best one, if it was asked for and there is one to show.
        note: Why attention that was asked for is not there.
    """

    n_best: list[Candidate]
    tree: str | None = None
    attention: Attention | None = None
    note: str | None = None


class Answer(BaseModel):
    """One translation for each sentence, in order."""

    translations: list[Translated]


def translated(found: list[Translation], tree: str | None, attention: Attention | None, note: str | None) -> Translated:
    """The answer for a sentence, given its translations, best first."""
    candidates = [Candidate(text=one.text, score=one.score, log_probability=one.log_probability) for one in found]
    return Translated(**candidates[0].model_dump(), n_best=candidates, tree=tree, attention=attention, note=note)


def explain(error: ValidationError) -> str:
    """What is wrong with a question, in one line."""
    mistakes = error.errors(include_url=False, include_input=False)
    lines = []
    for mistake in mistakes[:SHOWN]:
        place = ".".join(map(str, mistake["loc"]))
        lines.append(f"{place}: {mistake['msg']}".removeprefix(": ").replace("Value error, ", ""))
    more = f"; and {len(mistakes) - SHOWN} more" if len(mistakes) > SHOWN else ""
    return "; ".join(lines) + more
