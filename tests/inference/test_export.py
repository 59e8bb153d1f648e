"""An exported model computes what ours does, and nothing but a whole export is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PARTS, composed
from omegaconf import OmegaConf

import aiayn
from aiayn.checkpoints import checkpoint
from aiayn.checkpoints.building import build
from aiayn.checkpoints.checkpoint import Checkpoint
from aiayn.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, Vocabularies
from aiayn.inference import beam_search, ctranslate2_decoder
from aiayn.inference.beam_search import Hypothesis
from aiayn.inference.export import FORBIDDEN, write_ctranslate2, write_safetensors
from aiayn.inference.translation import load

FINAL = {"_target_": "torch.nn.LayerNorm", "_partial_": True, "normalized_shape": 22}
INFERENCE = {"beam": 3, "alpha": 0.6, "max_extra_length": 7, "tokens_per_batch": 61}


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    return Vocabularies.joint(Tokenizer.train(["one two three four five", "eins zwei drei vier"], vocab_size=31))


def part(name: str, **sizes: Any) -> dict[str, Any]:
    return {"_target_": f"aiayn.model.{name}", "_partial_": True, **sizes}


@pytest.fixture
def model_of(vocabularies: Vocabularies) -> Callable[..., Checkpoint]:
    """A checkpoint with random weights, far from uniform, of distinct sizes."""

    def model_of(
        *,
        seed: int = 1,
        d_k: int = 11,
        d_v: int = 11,
        position: str = "Sinusoidal",
        encoder_layers: int = 2,
        kv_heads: int = 2,
        norm: str = "Post",
        **extra: Any,
    ) -> Checkpoint:
        torch.manual_seed(seed)
        width = {"d_model": 22}
        config = {
            **width,
            "_target_": "aiayn.model.transformer.TranslationTransformer",
            "encoder_layers": encoder_layers,
            "decoder_layers": 2,
            "end": FINAL if norm == "Pre" else None,
            "dropout": 0.1,
            "attention": part(
                "attention.multi_head.MultiHeadAttention", **width, heads=2, kv_heads=kv_heads, d_k=d_k, d_v=d_v
            ),
            "feed_forward": part("feed_forward.relu.FeedForward", **width, d_ff=31),
            "norm": part(f"norm.{norm.lower()}.{norm}Norm", **width, dropout=0.1),
            "position": part(f"position.{position.lower()}.{position}Position", **width, **extra),
        }
        model = build(config, **vocabularies.sizes)
        torch.nn.init.normal_(model.embedding.weight, std=0.5)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and gains, which begin at 0 or 1
                torch.nn.init.normal_(parameter, mean=0.5)
        return Checkpoint(model.state_dict(), {"model": config, "inference": INFERENCE}, vocabularies, 17)

    return model_of


def exported(loaded: Checkpoint, folder: Path, **options: Any) -> ctranslate2_decoder.Exported:
    folder.mkdir()
    write_ctranslate2(loaded, folder, **options)
    return ctranslate2_decoder.load(folder)


def sources(count: int, vocab_size: int, longest: int = 13) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.integers(4, vocab_size, generator.integers(1, longest)) for _ in range(count)]


def ours(loaded: Checkpoint, read: list[np.ndarray], **settings: Any) -> list[list[Hypothesis]]:
    """Our own search, with the logits that an export has: without them PAD, UNK and BOS keep their probability."""
    model = loaded.model()
    project = model.project

    def without_special(features: torch.Tensor) -> torch.Tensor:
        logits = project(features)
        logits[..., [PAD, UNK, BOS]] += FORBIDDEN
        return logits

    model.project = without_special  # type: ignore[method-assign]
    return beam_search.decode(model, read, **settings)


KINDS = [
    {"position": "Sinusoidal"},
    {"position": "Learned", "max_length": 64},
    {"position": "Learned", "max_length": 14},  # shorter than source + max_extra_length
    {"d_k": 3},
    {"d_v": 5, "position": "Learned"},
    {"d_k": 13, "d_v": 17},
    {"kv_heads": 1, "d_v": 5},
    {"encoder_layers": 3},
    {"norm": "Pre", "d_k": 3, "encoder_layers": 1},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("max_extra_length", [0, 7])
def test_greedy_search_gives_our_tokens(
    model_of: Callable[..., Checkpoint], tmp_path: Path, kind: dict[str, Any], max_extra_length: int
) -> None:
    settings = {"beam": 1, "max_extra_length": max_extra_length, "tokens_per_batch": 223}
    lengths = set()
    for seed in range(2):
        loaded = model_of(seed=seed, **kind)
        read = sources(23, loaded.vocabularies.source.vocab_size)
        found = ctranslate2_decoder.decode(exported(loaded, tmp_path / str(seed)), read, **settings)
        plain = beam_search.decode(loaded.model(), read, **settings)
        assert [hypotheses[0].tokens for hypotheses in found] == [hypotheses[0].tokens for hypotheses in plain]
        for mine, theirs in zip(ours(loaded, read, **settings), found, strict=True):
            assert theirs[0].log_probability == pytest.approx(mine[0].log_probability, abs=1e-3)
            assert theirs[0].score == pytest.approx(mine[0].score, abs=1e-3)
            lengths.add(len(mine[0].tokens))
    assert len(lengths) > 3  # not all are alike


def test_a_wide_beam_finds_our_best(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    loaded = model_of(seed=2)
    settings = {"beam": 13, "alpha": 0.6, "max_extra_length": 7, "n_best": 3}
    read = sources(23, loaded.vocabularies.source.vocab_size)
    found = ctranslate2_decoder.decode(exported(loaded, tmp_path / "a"), read, **settings)
    same = 0
    for mine, theirs in zip(ours(loaded, read, **settings), found, strict=True):
        assert 1 <= len(theirs) <= 3
        assert [h.score for h in theirs] == sorted((h.score for h in theirs), reverse=True)
        assert len({tuple(hypothesis.tokens) for hypothesis in theirs}) == len(theirs)
        same += theirs[0].tokens == mine[0].tokens
        if theirs[0].tokens == mine[0].tokens:
            assert theirs[0].score == pytest.approx(mine[0].score, abs=1e-3)
    assert same >= 20


def test_no_hypothesis_is_longer_than_its_limit(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    loaded = model_of(seed=1)
    read = sources(23, loaded.vocabularies.source.vocab_size)
    found = ctranslate2_decoder.decode(
        exported(loaded, tmp_path / "a"), read, beam=3, max_extra_length=1, tokens_per_batch=997, n_best=3
    )
    spare = [len(source) + 1 - len(h.tokens) for source, row in zip(read, found, strict=True) for h in row]
    assert min(spare) == 0  # and some would have been


@pytest.mark.parametrize("beam", [1, 3])
def test_a_target_may_be_empty(model_of: Callable[..., Checkpoint], tmp_path: Path, beam: int) -> None:
    loaded = model_of()
    last = "decoder.layers.1.feed_forward_norm.norm"
    loaded.weights[f"{last}.weight"].zero_()  # so that every token has the same logits
    loaded.weights["embedding.weight"][EOS] = loaded.weights[f"{last}.bias"]
    found = ctranslate2_decoder.decode(exported(loaded, tmp_path / "a"), [np.array([5, 7])], beam=beam)
    assert found[0][0].tokens == []
    assert found[0][0].score == pytest.approx(ours(loaded, [np.array([5, 7])], beam=beam)[0][0].score, abs=1e-3)


def test_a_source_without_tokens_has_an_empty_target(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    model = exported(model_of(), tmp_path / "a")
    empty, other = ctranslate2_decoder.decode(model, [np.array([], dtype=int), np.array([5])], beam=1)
    assert empty[0].tokens == []
    assert len(other) == 1
    assert ctranslate2_decoder.decode(model, [], beam=1) == []


@pytest.mark.parametrize("quantization", ["int8", "float16", "bfloat16", "int16"])
def test_quantized_weights_are_smaller_and_translate(
    model_of: Callable[..., Checkpoint], tmp_path: Path, quantization: str
) -> None:
    loaded = model_of(d_k=3)
    kept = {name: value.clone() for name, value in loaded.weights.items()}
    read = sources(23, loaded.vocabularies.source.vocab_size)
    exported(loaded, tmp_path / "float32")
    found = ctranslate2_decoder.decode(exported(loaded, tmp_path / "a", quantization=quantization), read, beam=1)
    plain = beam_search.decode(loaded.model(), read, beam=1)
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(found, plain, strict=True)) > 7
    assert all(torch.equal(value, loaded.weights[name]) for name, value in kept.items())
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("a", "float32")]
    assert sizes[0] < sizes[1]


def test_the_folder_alone_translates(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    loaded = model_of(position="Learned", max_length=17)
    exported(loaded, tmp_path / "a")
    translator = aiayn.load(tmp_path / "a", beam=1)
    assert (translator.alpha, translator.max_source_length) == (0.6, 16)  # the run's, the model's
    found = translator.n_best(["one two", "", "zwei drei vier"], 1)
    assert [row[0].text for row in found][1] == ""
    plain = beam_search.decode(
        loaded.model(), loaded.vocabularies.source.encode(["one two"]), beam=1, max_extra_length=7
    )
    assert found[0][0].tokens == plain[0][0].tokens
    with pytest.raises(ValueError, match=r"n_best must be from 1 to inference\.beam, got n_best=2, inference\.beam=1"):
        translator.n_best(["one"], 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beam": 0}, r"inference\.beam must be at least 1, got 0"),
        ({"alpha": -1.0}, r"inference\.alpha must not be negative"),
        ({"max_extra_length": -3}, r"inference\.max_extra_length must not be negative, got -3"),
        ({"tokens_per_batch": 0}, r"inference\.tokens_per_batch must be at least 1, got 0"),
        ({"beam": 2, "n_best": 3}, "n_best must be from 1"),
    ],
)
def test_an_illegal_setting_is_named(
    model_of: Callable[..., Checkpoint], tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    model = exported(model_of(), tmp_path / "a")
    with pytest.raises(ValueError, match=words):
        ctranslate2_decoder.decode(model, [np.array([5, 7])], **settings)


def test_a_part_that_ctranslate2_does_not_know_is_named(
    model_of: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiayn.model.norm import post as norm

    class OtherNorm(norm.PostNorm):
        pass

    OtherNorm.__module__ = norm.__name__
    monkeypatch.setattr(norm, "OtherNorm", OtherNorm, raising=False)
    loaded = model_of()
    loaded.config["model"]["norm"]["_target_"] = "aiayn.model.norm.post.OtherNorm"
    with pytest.raises(ValueError, match="does not know: OtherNorm; format=safetensors"):
        write_ctranslate2(loaded, tmp_path)
    with pytest.raises(ValueError, match=r"quantization must be one of int8, .* got int4"):
        write_ctranslate2(loaded, tmp_path, quantization="int4")
    assert not list(tmp_path.iterdir())


def test_norms_of_two_kinds_are_refused(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    loaded = model_of(norm="Pre")
    loaded.config["model"]["end"] = {**FINAL, "_target_": "torch.nn.RMSNorm"}
    for stack in ("encoder", "decoder"):
        del loaded.weights[f"{stack}.end.bias"]
    with pytest.raises(ValueError, match="not LayerNorm and RMSNorm together; format=safetensors takes"):
        write_ctranslate2(loaded, tmp_path)


# Which part of a model CTranslate2 lacks.
LACKING = {
    "model/norm=deep": "DeepNorm",
    "model/position=none": "NoPosition",
    "model/position=rotary": "NoPosition, Rotary",
    "model/position=alibi": "Alibi, NoPosition",
    "model/position=shaw": "NoPosition, Shaw",
    "model/position=bucketed": "Bucketed, NoPosition",
    "model/attention=additive": "Additive",
    "model/attention=qk_norm": "attention's qk_norm",
    "model/attention=restricted": "attention's window",
}


@pytest.mark.parametrize("chosen", PARTS)
def test_a_part_of_conf_is_exported_truly_or_named(vocabularies: Vocabularies, tmp_path: Path, chosen: str) -> None:
    torch.manual_seed(1)
    sizes = ["layers=2", "d_model=22", "d_ff=31", "heads=2", "d_k=6", "d_v=5"]
    cfg: Any = OmegaConf.to_container(composed(chosen, *(f"model.{size}" for size in sizes)), resolve=True)
    model = build(cfg["model"], **vocabularies.sizes)
    torch.nn.init.normal_(model.embedding.weight, std=0.5)
    loaded = Checkpoint(model.state_dict(), {"model": cfg["model"], "inference": INFERENCE}, vocabularies, 17)
    if chosen in LACKING:
        with pytest.raises(ValueError, match=f"CTranslate2 does not know: {LACKING[chosen]}; format=safetensors"):
            write_ctranslate2(loaded, tmp_path)
        write_safetensors(loaded, tmp_path)
        assert checkpoint.read(tmp_path).model()
        return
    read = sources(23, vocabularies.source.vocab_size)
    found = ctranslate2_decoder.decode(exported(loaded, tmp_path / "a"), read, beam=1)
    plain = beam_search.decode(loaded.model(), read, beam=1)
    assert [hypotheses[0].tokens for hypotheses in found] == [hypotheses[0].tokens for hypotheses in plain]


def test_safetensors_give_back_every_bit(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    loaded = model_of(d_k=3, position="Learned", max_length=29)
    loaded.weights["embedding.weight"][3, 5] = -0.0
    write_safetensors(loaded, tmp_path)
    found = checkpoint.read(tmp_path)
    assert (found.step, found.vocabularies.hash) == (17, loaded.vocabularies.hash)
    for group in ("model", "inference"):  # what is missing gets its default
        assert loaded.config[group].items() <= found.config[group].items()
    assert set(found.weights) == set(loaded.weights)
    for name, value in loaded.weights.items():
        assert found.weights[name].numpy().tobytes() == value.numpy().tobytes()
    assert load(tmp_path, accelerator="cpu").translate(["one"])


def test_an_export_of_when_attention_had_one_map_is_opened(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    loaded = model_of(d_k=3)
    model = {key: value for key, value in loaded.config["model"].items() if key != "_target_"}
    model |= {key: model["attention"][key] for key in ("heads", "d_k", "d_v")}
    heads, widths = model["heads"], (model["d_k"], model["d_v"])
    before = dict(loaded.weights)
    for name in [name for name in before if ".query." in name]:
        memory = before.pop(name.replace(".query.", ".memory.")).unflatten(0, (heads, -1))
        key, value = (part.flatten(0, 1) for part in memory.split(widths, dim=1))
        before[name.replace(".query.", ".projection.")] = torch.cat([before.pop(name), key, value])
    write_safetensors(replace(loaded, weights=before, config={**loaded.config, "model": model}), tmp_path)
    found = checkpoint.read(tmp_path)
    torch.testing.assert_close(found.weights, loaded.weights)
    assert found.config["model"]["_target_"] == loaded.config["model"]["_target_"]


def damaged(folder: Path, name: str, change: Callable[[bytes], bytes] | None) -> None:
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change((folder / name).read_bytes()))


def with_entry(**entries: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **entries}).encode()


DAMAGE = [
    ("aiayn.json", lambda content: content[:99], "not a whole folder"),
    ("aiayn.json", lambda content: b"[1]", "was not written by aiayn"),
    ("aiayn.json", with_entry(global_step="x"), "holds no global_step"),
    ("aiayn.json", with_entry(config={}), "holds no model"),
    ("aiayn.json", with_entry(tokenizer_hash="0"), "does not have the stored hash"),
    ("aiayn.json", with_entry(format="onnx"), "format=onnx, and"),
    ("aiayn.json", lambda content: b"[" * 10**5, "not a whole folder"),
    ("tokenizer.model", None, r"not a whole folder.*tokenizer\.model"),
    ("tokenizer.model", lambda content: b"", "not a whole folder"),
    ("tokenizer.model", lambda content: content[:17], "tokenizer does not have the stored hash"),
]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        *DAMAGE,
        ("model.safetensors", lambda c: c[:-7], r"its model\.safetensors does not have the stored hash"),
        ("model.safetensors", lambda c: c[:-7] + bytes(7), r"its model\.safetensors does not have the stored hash"),
        ("model.safetensors", None, r"not a whole folder.*model\.safetensors is missing"),
    ],
)
def test_a_damaged_folder_of_safetensors_is_refused(
    model_of: Callable[..., Checkpoint], tmp_path: Path, name: str, change: Any, words: str
) -> None:
    write_safetensors(model_of(), tmp_path)
    damaged(tmp_path, name, change)
    with pytest.raises(ValueError, match=words):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        *DAMAGE,
        ("model.bin", lambda c: c[:-7], r"its model\.bin does not have the stored hash"),
        ("model.bin", None, r"not a whole folder.*model\.bin is missing"),
        ("shared_vocabulary.json", None, "by CTranslate2"),
        ("shared_vocabulary.json", lambda c: json.dumps(json.loads(c)[::-1]).encode(), "does not hold the pieces"),
        ("shared_vocabulary.json", lambda c: json.dumps(json.loads(c)[:-3]).encode(), "does not hold the pieces"),
        *(
            ("aiayn.json", with_entry(longest=longest), f"longest must be a whole number .*, got {longest}")
            for longest in (None, True, 1, 10**6 + 1, 7.0)
        ),
    ],
)
def test_a_damaged_folder_of_ctranslate2_is_refused(
    model_of: Callable[..., Checkpoint], tmp_path: Path, name: str, change: Any, words: str
) -> None:
    write_ctranslate2(model_of(), tmp_path)
    damaged(tmp_path, name, change)
    with pytest.raises(ValueError, match=words):
        ctranslate2_decoder.load(tmp_path)


def test_an_older_export_without_a_hash_of_its_weights_opens(
    model_of: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    write_safetensors(model_of(), tmp_path)
    manifest = json.loads((tmp_path / "aiayn.json").read_text())
    del manifest["weights_hash"]
    (tmp_path / "aiayn.json").write_text(json.dumps(manifest))
    assert checkpoint.read(tmp_path).step == 17
    damaged(tmp_path, "model.safetensors", lambda content: b"\x80pickle")
    with pytest.raises(ValueError, match=r"cannot be read: model\.safetensors: "):
        checkpoint.read(tmp_path)


def test_each_format_is_for_its_reader(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    for name, write in (("a", write_ctranslate2), ("b", write_safetensors)):
        (tmp_path / name).mkdir()
        write(model_of(), tmp_path / name)
    with pytest.raises(ValueError, match="format=ctranslate2, and safetensors is needed"):
        checkpoint.read(tmp_path / "a")
    with pytest.raises(ValueError, match="format=safetensors, and ctranslate2 is needed"):
        ctranslate2_decoder.load(tmp_path / "b")
    with pytest.raises(ValueError, match="one checkpoint, got 2"):
        load(tmp_path / "a", tmp_path / "a", backend="ctranslate2")
    with pytest.raises(ValueError, match="backend must be torch or ctranslate2, got onnx"):
        load(tmp_path / "a", backend="onnx")
    with pytest.raises(ValueError, match="a folder without"):
        load(tmp_path, backend="ctranslate2")


def test_a_backend_is_found_or_made(model_of: Callable[..., Checkpoint], tmp_path: Path) -> None:
    for name, write in (("a", write_ctranslate2), ("b", write_safetensors)):
        (tmp_path / name).mkdir()
        write(model_of(), tmp_path / name)
    paths = {None: ("a", "b"), "ctranslate2": ("a", "b")}
    found = [load(tmp_path / path, backend=backend, beam=1) for backend in paths for path in paths[backend]]
    texts = [searcher.translate(["one two", "three"]) for searcher in found]
    assert texts == [texts[0]] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
