from typing import Any

import pytest

from aiayn.stored_config import checked, renewed


def test_what_an_older_run_lacks_gets_its_default_and_what_is_not_known_stays() -> None:
    found = checked({"data": {"cleaning": {"max_length": 7}}, "training": {"betas": [0, 1]}, "mine": {"x": [1, "a"]}})
    assert found["data"]["cleaning"]["max_length"] == 7
    assert found["data"]["cleaning"]["duplicates"] is True
    assert found["data"]["target_language"] is None
    assert found["training"]["betas"] == [0.0, 1.0]
    assert "beam" not in found["inference"]  # none is invented
    assert found["mine"] == {"x": [1, "a"]}
    assert checked(found) == found


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "the config must hold keys and values, got list"),
        ({"inference": {"beam": 2.5}}, r"inference\.beam must be of the type int, got 2\.5"),
        ({"inference": {"beam": None}}, r"inference\.beam must be of the type int, got None"),
        ({"inference": {"beam": 0}}, r"inference\.beam must be at least 1"),
        ({"inference": {"alpha": float("nan")}}, r"inference\.alpha must be .* got nan"),
        ({"data": {"cleaning": {"max_length": "abc"}}}, r"data\.cleaning\.max_length must be of the type int"),
        ({"data": {"cleaning": None}}, r"data\.cleaning must hold keys and values, got None"),
        ({"data": None}, "data must hold keys and values, got None"),
        ({"model": {"layers": 10**30}}, r"model\.layers must be .* a number below 2\^63"),
        ({"paper": {"bleu": {}}}, r"paper must be of the type dict\[str, float \| None\], got dict"),
        ({"paper": 3}, r"paper must be of the type dict\[str, float \| None\], got 3"),
        ({"callbacks": []}, "callbacks must be of the type dict"),
        ({"name": "${oc.env:HOME}"}, r"name='\$\{oc\.env:HOME\}' is an interpolation"),
        ({"mine": [{"x": "???"}]}, r"mine\.0\.x='\?\?\?' is an interpolation"),
        ({"mine": b"x"}, "mine must be text, true, false, null, or a number .* got bytes"),
        ({"mine": {1: 2}}, "mine must have names as its keys"),
    ],
)
def test_a_config_that_no_run_of_ours_keeps_is_refused_with_its_key(config: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        checked(config)
    assert "\n" not in str(error.value)


def test_references_that_explode_and_deep_nesting_end_at_once() -> None:
    wide: Any = [1] * 1000
    deep: Any = []
    for _ in range(9):
        wide = [wide] * 1000  # 10**30 values in nine lists
    for _ in range(100_000):
        deep = [deep]
    for value in (wide, deep):
        with pytest.raises(ValueError, match="more than 100,000 values, or more than 40 levels"):
            checked({"mine": value})


def test_a_config_of_before_the_models_class_was_a_key_has_the_names_of_today() -> None:
    older = {
        "model": {"layers": 3, "heads": 5, "attention": {"_target_": "aiayn.model.attention.MultiHeadAttention"}},
        "data": {"corpus": {"_target_": "aiayn.data.numbers.Numbers"}},
    }
    found = renewed(older)
    assert found["model"]["_target_"] == "aiayn.model.transformer.TranslationTransformer"
    assert (found["model"]["encoder_layers"], found["model"]["decoder_layers"], found["model"]["kv_heads"]) == (3, 3, 5)
    assert found["model"]["attention"] == {"_target_": "aiayn.model.attention.multi_head.MultiHeadAttention"}
    assert found["data"]["corpus"] == {"_target_": "aiayn.data.corpora.numbers.Numbers"}
    assert renewed(found) is found
    assert "_target_" not in older["model"]
