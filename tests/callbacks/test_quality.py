"""Dev BLEU in training."""

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import composed
from hydra.utils import instantiate
from sacrebleu.metrics import BLEU

from aiayn.callbacks import quality
from aiayn.data.replica import ALONE

REFERENCES = ["\u4ed6\u6628\u5929\u4e70\u4e86\u4e09\u672c\u65b0\u4e66", "\u6211\u4eec\u53bb\u516c\u56ed"]
TRANSLATIONS = ["\u4ed6\u6628\u5929\u4e70\u4e86\u4e24\u672c\u65b0\u4e66", "\u6211\u4eec\u53bb\u516c\u56ed"]


class Plain:
    """A process that is the only one, and the module that it validates."""

    is_global_zero, loggers, model = True, (), None

    def __init__(self) -> None:
        problem = SimpleNamespace(
            text=lambda split: (["a", "b"], REFERENCES),
            references=lambda split: REFERENCES,
            outputs=lambda split, decoded, rows: decoded,
            vocabularies=None,
        )
        self.datamodule = SimpleNamespace(problem=problem, replica=ALONE)
        self.precision_plugin = SimpleNamespace(forward_context=lambda: pytest.MonkeyPatch.context())
        self.logged: dict[str, float] = {}

    def log(self, name: str, value: float, **_: Any) -> None:
        self.logged[name] = value


def validated(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> dict[str, float]:
    """What a validation logs that translates as above."""
    translated = SimpleNamespace(translate=lambda sources, **_: TRANSLATIONS)
    monkeypatch.setattr(quality, "translator", lambda *_, **__: translated)
    callback = instantiate(composed("data.target_language=zh", *overrides).callbacks.quality)
    rank: Any = Plain()
    callback.on_fit_start(rank, rank)
    callback.on_validation_epoch_end(rank, rank)
    return rank.logged


def test_any_metric_may_be_the_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(validated(monkeypatch)) == {"dev/bleu", "dev/chrf"}
    assert set(validated(monkeypatch, "objective=ter")) == {"dev/ter", "dev/chrf"}
    assert set(validated(monkeypatch, "objective=perplexity", "metrics=[perplexity]")) == set()  # the module's


@pytest.mark.parametrize(("overrides", "tokenize"), [([], "zh"), (["metrics.bleu.tokenize=char"], "char")])
def test_dev_bleu_is_counted_as_the_runs_metric_says(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], tokenize: str
) -> None:
    expected = BLEU(tokenize=tokenize).corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert validated(monkeypatch, *overrides)["dev/bleu"] == pytest.approx(expected)
    assert expected > 50


class Broken:
    """A metric that fails at whatever it is given."""

    name, higher_is_better = "broken", True

    def signature(self, language: str | None, references: int = 1) -> str:
        return "v:1"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> Any:
        return len(None)  # type: ignore[arg-type]


def test_a_metric_that_fails_says_so_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"metrics\.mine cannot count a sentence: TypeError: object of type"):
        validated(monkeypatch, f"+metrics.mine._target_={__name__}.Broken")


def test_a_model_that_cannot_be_decoded_with_says_so_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(model: Any, *_: Any, **settings: Any) -> Any:
        assert settings["max_extra_length"] == 1
        return SimpleNamespace(translate=lambda sources, **_: model(sources, cache=None))

    monkeypatch.setattr(quality, "translator", search)
    monkeypatch.setattr(Plain, "model", staticmethod(lambda sources: sources))
    callback = instantiate(composed("data.target_language=zh").callbacks.quality)
    rank: Any = Plain()
    with pytest.raises(ValueError, match=r"the model trains, and cannot be decoded with: TypeError: .*'cache'"):
        callback.on_fit_start(rank, rank)


def test_without_a_score_of_text_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "precision_plugin", None, raising=False)
    assert validated(monkeypatch, "objective=perplexity", "metrics=[perplexity]") == {}


def test_a_tokenizer_that_does_not_exist_is_refused_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"metrics\.bleu\.tokenize must be one of"):
        validated(monkeypatch, "metrics.bleu.tokenize=mose")
