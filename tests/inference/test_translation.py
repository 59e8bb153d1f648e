import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from small_model import content

import aiayn
from aiayn.checkpoints import checkpoint
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.inference import ctranslate2_decoder
from aiayn.inference.beam_search import Hypothesis, decode
from aiayn.inference.translation import Translator, distinct, open_with, translator
from aiayn.model.model import Model
from aiayn.model.position.learned import LearnedPosition

Build = Callable[..., Model]
INFERENCE = {"beam": 3, "alpha": 0.6, "max_extra_length": 5, "tokens_per_batch": 100}


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    return Vocabularies.joint(Tokenizer.train(["a b c d e f g"] * 3, vocab_size=19))


def echo(sources: Sequence[np.ndarray], *, n_best: int, progress: Callable[[int], None]) -> list[list[Hypothesis]]:
    """Repeats its source; the second best is empty."""
    progress(len(sources))
    return [[Hypothesis(source.tolist(), -1.0, -2.0), Hypothesis([], -3.0, -3.0)][:n_best] for source in sources]


def test_the_order_is_kept_and_blank_lines_stay_blank(vocabularies: Vocabularies) -> None:
    lines = ["a b", "", "c", "   ", "d e f"]
    assert Translator(vocabularies, echo).translate(lines) == ["a b", "", "c", "", "d e f"]
    assert Translator(vocabularies, echo).translate([]) == []


def test_the_n_best_come_with_scores(vocabularies: Vocabularies) -> None:
    found = Translator(vocabularies, echo).n_best(["a b", ""], 2)
    assert [(each.text, each.score, each.log_probability) for each in found[0]] == [("a b", -1, -2), ("", -3, -3)]
    assert [(each.text, each.score) for each in found[1]] == [("", 0)]


def test_a_long_source_is_translated_in_pieces(vocabularies: Vocabularies, caplog: pytest.LogCaptureFixture) -> None:
    pieces: list[int] = []

    def counting(sources: Sequence[np.ndarray], **options: object) -> list[list[Hypothesis]]:
        pieces.extend(map(len, sources))
        return echo(sources, **options)  # type: ignore[arg-type]

    line = "a b c d e f g a b c d"
    with caplog.at_level(logging.WARNING):
        found = Translator(vocabularies, counting, alpha=1.0, max_source_length=3).n_best(["a", line], 2)
    assert pieces == [1, 3, 3, 3, 2]
    assert "1 of 2 sentences have more than 3 tokens and are translated in pieces" in caplog.text
    (best,) = found[1]
    assert best.text == line
    assert best.log_probability == -8
    assert best.score == pytest.approx(-8 / ((5 + 11 + 4) / 6))  # as long as its pieces, each with EOS


def test_a_long_source_has_the_same_translation_for_every_n_best(vocabularies: Vocabularies) -> None:
    # A short, sure translation of a piece, and a long one that is nearly as good for each of its tokens.
    def two(sources: Sequence[np.ndarray], *, n_best: int, **_: object) -> list[list[Hypothesis]]:
        return [[Hypothesis([5], -1.0, -1.0), Hypothesis([5] * 20, -1.01, -1.5)][:n_best] for _ in sources]

    own = Translator(vocabularies, two, alpha=0.6, max_source_length=2)
    (best,) = own.n_best(["a b c d"], 2)[0]
    assert (best.tokens, best.pieces) == ([5, 5], 2)
    assert own.n_best(["a b c d"], 1) == [[best]]


@pytest.fixture(scope="module")
def ambiguous() -> Vocabularies:
    """Knows words that it can spell in several ways."""
    return Vocabularies.joint(Tokenizer.train(["aa ab ba bb aab abb"] * 3, vocab_size=19))


@pytest.mark.parametrize("backend", ["torch", "ctranslate2"])
def test_a_list_holds_no_text_twice_and_is_full(
    build: Build, ambiguous: Vocabularies, backend: str, tmp_path: Path
) -> None:
    lines, n = ["aa ab", "bb", "ba aab abb", "", "a b a b"], 3
    saved = content(ambiguous, seed=5, step=1)
    torch.nn.init.normal_(saved["state_dict"]["model.embedding.weight"], std=0.5, generator=torch.manual_seed(43))
    saved["config"]["inference"] = INFERENCE
    checkpoint.write(tmp_path / "checkpoints" / "averaged.ckpt", saved)
    loaded, model = open_with(backend, [tmp_path / "checkpoints" / "averaged.ckpt"], accelerator="cpu")
    own = translator(model, loaded.vocabularies, **INFERENCE)  # type: ignore[arg-type]
    decoding = decode if backend == "torch" else ctranslate2_decoder.decode
    encoded = [source for source in ambiguous.source.encode(lines) if len(source)]
    plain = decoding(model, encoded, **INFERENCE, n_best=n)  # type: ignore[arg-type]
    repeats = [n - len({*ambiguous.target.decode([each.tokens for each in found])}) for found in plain]
    assert any(repeats), "the search itself must find a text twice, or nothing is tested"
    found = own.n_best(lines, n)
    for translations in (found[number] for number, line in enumerate(lines) if line):
        assert len({each.text for each in translations}) == n
        assert [each.score for each in translations] == sorted((each.score for each in translations), reverse=True)
    best = [translations[0].tokens for line, translations in zip(lines, found, strict=True) if line]
    assert best == [hypotheses[0].tokens for hypotheses in plain]
    assert own.translate(lines) == [translations[0].text for translations in found]


def test_a_list_that_cannot_be_filled_is_said(ambiguous: Vocabularies, caplog: pytest.LogCaptureFixture) -> None:
    widths: list[int] = []

    def twice(sources: Sequence[np.ndarray], *, n_best: int, beam: int, **_: object) -> list[list[Hypothesis]]:
        widths.append(beam)
        return [[Hypothesis([5], -2.0, -2.0), Hypothesis([5], -2.5, -2.5), Hypothesis([6], -1.0, -1.0)][:n_best]] * len(
            sources
        )

    caplog.set_level(logging.INFO)
    search = distinct(twice, ambiguous.target, beam=2, tokens_per_batch=7)
    (found,) = search([np.array([5])], n_best=2, progress=lambda sentences: None)
    assert found == [Hypothesis([5], -2.0, -2.0)]  # what a wider search scores higher is not added
    assert widths == [2, 4, 8, 16]
    assert "1 of 1 sentences have fewer than 2 different translations" in caplog.text


def test_samples_come_by_a_temperature_and_are_as_many_as_asked_for(vocabularies: Vocabularies, tmp_path: Path) -> None:
    saved = content(vocabularies, seed=1, step=1)
    saved["config"]["inference"] = INFERENCE
    checkpoint.write(tmp_path / "checkpoints" / "averaged.ckpt", saved)
    own = aiayn.load(tmp_path, accelerator="cpu", temperature=1.0, seed=3)
    (found,) = own.n_best(["a b"], 23)
    assert len(found) == 23
    assert len({each.text for each in found}) > 1
    assert own.translate(["a b"]) == [found[0].text]
    assert aiayn.load(tmp_path, accelerator="cpu", temperature=1.0, seed=5).n_best(["a b"], 23) != [found]
    with pytest.raises(ValueError, match="samples are drawn with backend=torch"):
        aiayn.load(tmp_path, backend="ctranslate2", temperature=1.0)
    with pytest.raises(ValueError, match=r"set inference\.temperature too"):
        aiayn.load(tmp_path, accelerator="cpu", top_k=3)
    with pytest.raises(ValueError, match=r"inference\.top_p must be from 0 to 1"):
        aiayn.load(tmp_path, accelerator="cpu", temperature=1.0, top_p=2)


def test_one_string_is_not_taken_for_a_list(vocabularies: Vocabularies) -> None:
    with pytest.raises(ValueError, match="sentences must be a list of them, got one string"):
        Translator(vocabularies, echo).translate("a b")


def test_learned_positions_bound_the_pieces(build: Build, vocabularies: Vocabularies) -> None:
    def learned(d_model: int) -> LearnedPosition:
        return LearnedPosition(d_model, max_length=7)

    model = build(**vocabularies.sizes, position=learned)
    own = translator(model, vocabularies, **INFERENCE)  # type: ignore[arg-type]
    assert own.max_source_length == 6  # and EOS
    assert len(own.translate(["a b c d e f g a b c d e"])) == 1


def test_a_finished_run_opens_in_one_line(vocabularies: Vocabularies, tmp_path: Path) -> None:
    saved = content(vocabularies, seed=1, step=1)
    saved["config"]["inference"] = INFERENCE
    checkpoint.write(tmp_path / "checkpoints" / "averaged.ckpt", saved)
    own = aiayn.load(tmp_path, accelerator="cpu")
    found = own.translate(["a b c", ""])
    assert found == aiayn.load(tmp_path / "checkpoints" / "averaged.ckpt", accelerator="cpu").translate(["a b c", ""])
    assert len(own.n_best(["a b"], 3)[0]) == 3
    with pytest.raises(ValueError, match=r"inference\.beam=2"):
        aiayn.load(tmp_path, accelerator="cpu", beam=2).n_best(["a b"], 3)
    with pytest.raises(ValueError, match="max_source_length must be at least 1, got 0"):
        aiayn.load(tmp_path, accelerator="cpu", max_source_length=0)
    with pytest.raises(ValueError, match=r"without checkpoints/averaged.ckpt"):
        aiayn.load(tmp_path / "checkpoints")


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, aiayn; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(aiayn.__file__).parents[1], check=False).returncode == 0
    )


@pytest.mark.parametrize("sentence", ["b\nc", "\nb", "b\n\n", "b\r\nc"])
def test_a_line_feed_inside_a_sentence_is_refused_and_not_dropped(vocabularies: Vocabularies, sentence: str) -> None:
    with pytest.raises(ValueError, match="sentence 2 has a line feed inside; give each line as a sentence of its own"):
        Translator(vocabularies, echo).translate(["a", sentence])
    assert Translator(vocabularies, echo).translate(["a\n", "b\r\n", "c\u2028d"]) == ["a", "b", "c d"]
