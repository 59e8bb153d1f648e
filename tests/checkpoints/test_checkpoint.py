from pathlib import Path
from typing import Any

import pytest
import torch
from small_model import MODEL, content
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aiayn.checkpoints import averaging, checkpoint, older
from aiayn.checkpoints.building import build
from aiayn.checkpoints.checkpoint import Checkpoint
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.model.model import Model


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    return Vocabularies.joint(Tokenizer.train(["one two three", "eins zwei drei"], vocab_size=23))


def test_a_checkpoint_gives_back_model_tokenizer_and_config(vocabularies: Vocabularies, tmp_path: Path) -> None:
    saved = content(vocabularies, seed=1, step=17)
    checkpoint.write(tmp_path / "a.ckpt", saved)
    loaded = checkpoint.read(tmp_path / "a.ckpt")
    assert (loaded.step, loaded.vocabularies.hash) == (17, vocabularies.hash)
    assert loaded.config["model"].items() >= MODEL.items()
    model = loaded.model()
    assert not model.training
    assert torch.equal(model.embedding.weight, saved["state_dict"]["model.embedding.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]  # no temporary file is left


@pytest.mark.slow
@pytest.mark.parametrize("position", ["SinusoidalPosition", "LearnedPosition"])
def test_comparing_the_sizes_of_weights_computes_none(
    vocabularies: Vocabularies, tmp_path: Path, position: str
) -> None:
    """Without memory to draw into, torch's `normal_` and `arange` load its compiler: two seconds of every command."""
    called = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            devices = [argument.device.type for argument in args if isinstance(argument, Tensor)]
            called.extend((function.overloadpacket.__name__, device) for device in devices)
            return function(*args, **(kwargs or {}))

    part = {
        "_target_": f"aiayn.model.position.{position.removesuffix('Position').lower()}.{position}",
        "d_model": 6,
        "max_length": 13,
    }
    model = {**MODEL, "position": {**MODEL["position"], **part}}
    torch.manual_seed(1)
    built = build(model, **vocabularies.sizes)
    loaded = Checkpoint(built.state_dict(), {"model": model}, vocabularies, 1)
    with Calls():
        loaded.model()
    assert ("normal_", "cpu") in called
    assert not {("normal_", "meta"), ("sin", "meta")} & set(called)


def test_the_average_is_the_mean_in_float64(vocabularies: Vocabularies, tmp_path: Path) -> None:
    paths = [tmp_path / f"{step}.ckpt" for step in (3, 5, 7)]
    saved = [content(vocabularies, seed=index, step=int(path.stem)) for index, path in enumerate(paths)]
    for path, values in zip(paths, saved, strict=True):
        checkpoint.write(path, values)
    averaged = averaging.average(paths)
    assert averaged["global_step"] == 7
    for name, value in averaged["state_dict"].items():
        mean = torch.stack([values["state_dict"][name].double() for values in saved]).mean(0)
        torch.testing.assert_close(value, mean.float(), rtol=1e-7, atol=0)


def test_the_average_is_of_the_weights_as_they_were_trained(vocabularies: Vocabularies, tmp_path: Path) -> None:
    # With callbacks=ema, `state_dict` is an average already.
    trained = [content(vocabularies, seed=seed, step=seed)["state_dict"] for seed in (2, 3)]
    for number, weights in enumerate(trained):
        saved = content(vocabularies, seed=5, step=7)
        checkpoint.write(tmp_path / f"{number}.ckpt", {**saved, "current_model_state": weights})
    averaged = averaging.average([tmp_path / "0.ckpt", tmp_path / "1.ckpt"])["state_dict"]
    for name, value in averaged.items():
        torch.testing.assert_close(value, (trained[0][name] + trained[1][name]) / 2, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": "${oc.create:{_target_:os.mkdir,path:made}}"}, "interpolation"),
        ({"encoder_layers": None}, r"model\.encoder_layers must be of the type int, got None"),
        ({"decoder_layers": 10**7}, r"model\.decoder_layers must be at least 1 and below 1001, got 10000000"),
        ({"encoder_layers": 1000}, r"do not fit its config: model\.encoder_layers=1000"),
        ({"attention": None}, r"model\.attention must be of the type dict.*, got None"),
        ({"norm": {"_target_": "aiayn.model.norm.post.PostNorm"}}, "describes no model of ours"),
        ({"norm": {"_target_": "aiayn.model.layer.Stack", "layers": 10**7}}, "only what is ours there"),
        ({"d_model": 10**5}, "weights do not fit its config"),
        ({"d_model": 10**18}, r"model\.d_model must be at least 1 and below 131072, got 10"),
        ({"position": {**MODEL["position"], "max_length": 10**9}}, r"max_length must be .* below 131072, got 10"),
        ({"d_model": 8}, "weights do not fit its config"),
    ],
)
def test_a_config_that_describes_no_model_is_refused(
    vocabularies: Vocabularies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = content(vocabularies, seed=1, step=1)
    saved["config"] = {"model": {**MODEL, **change}}
    checkpoint.write(tmp_path / "a.ckpt", saved)
    with pytest.raises(ValueError, match=message):
        checkpoint.read(tmp_path / "a.ckpt").model()
    assert not (tmp_path / "made").exists()


def test_averaging_refuses_what_is_not_one_run(vocabularies: Vocabularies, tmp_path: Path) -> None:
    other = Vocabularies.joint(Tokenizer.train(["quite another text"], vocab_size=19))
    checkpoint.write(tmp_path / "a.ckpt", content(vocabularies, seed=1, step=1))
    checkpoint.write(tmp_path / "b.ckpt", content(other, seed=1, step=1))
    with pytest.raises(ValueError, match="differ in tokenizer or model"):
        averaging.average([tmp_path / "a.ckpt", tmp_path / "b.ckpt"])
    with pytest.raises(ValueError, match="twice"):
        averaging.average([tmp_path / "a.ckpt", tmp_path / ".." / tmp_path.name / "a.ckpt"])
    with pytest.raises(ValueError, match="no checkpoint"):
        averaging.average([])


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "aiayn.data.corpus.Path",
        "aiayn.data.ragged.to_disk",
        "aiayn.model.transformer.math.sqrt",
        "aiayn.model.nowhere.X",
    ],
)
def test_a_file_cannot_name_what_is_no_module_of_the_model(
    vocabularies: Vocabularies, tmp_path: Path, target: str
) -> None:
    saved = content(vocabularies, seed=1, step=1)
    saved["config"] = {"model": {**MODEL, "position": {"_target_": target}}}
    checkpoint.write(tmp_path / "a.ckpt", saved)
    with pytest.raises(ValueError, match=f"names {target}; from a file only what is ours"):
        checkpoint.read(tmp_path / "a.ckpt").model()


def test_a_file_with_objects_is_not_read(tmp_path: Path) -> None:
    torch.save({"state_dict": Path("an object")}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.read(tmp_path / "a.ckpt")


def test_a_failed_write_leaves_the_older_file(
    vocabularies: Vocabularies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.write(tmp_path / "a.ckpt", content(vocabularies, seed=1, step=1))

    def fail(content: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match=r"a\.ckpt.*No space left"):
        checkpoint.write(tmp_path / "a.ckpt", content(vocabularies, seed=2, step=2))
    assert checkpoint.read(tmp_path / "a.ckpt").step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


class OneVocabulary(Model):
    def __init__(self, vocab_size: int, *, pad_id: int) -> None:
        super().__init__()
        self.sizes = vocab_size, pad_id


def test_a_model_without_a_place_for_the_source_s_vocabulary_is_not_given_one() -> None:
    config = {"_target_": f"{__name__}.OneVocabulary", "layers": 3}
    assert build(config, vocab_size=11).sizes == (11, 0)  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match=r"OneVocabulary takes no source_vocab_size; leave data\.shared_vocabulary=true"
    ):
        build(config, vocab_size=11, source_vocab_size=13)


def test_stacked_projections_of_older_weights_become_the_two_maps() -> None:
    heads, d_k, d_v = 3, 5, 7
    query, key, value = (torch.randn(heads * width, 11) for width in (d_k, d_k, d_v))
    stacked = {"model.self_attention.projection.weight": torch.cat([query, key, value]), "other": torch.ones(2)}
    found = older.renewed(stacked, {"heads": heads, "d_k": d_k, "d_v": d_v})
    assert torch.equal(found["model.self_attention.query.weight"], query)
    memory = found["model.self_attention.memory.weight"].view(heads, d_k + d_v, 11)
    assert torch.equal(memory[1, :d_k], key.view(heads, d_k, 11)[1])
    assert torch.equal(memory[2, d_k:], value.view(heads, d_v, 11)[2])
    assert torch.equal(found["other"], stacked["other"])
    assert len(found) == 3


def test_a_part_of_ones_own_may_call_its_weights_projection(vocabularies: Vocabularies, tmp_path: Path) -> None:
    saved = content(vocabularies, seed=1, step=1)
    name = "model.encoder.layers.0.self_attention.projection.weight"
    saved["state_dict"][name] = torch.ones(2, 3)
    checkpoint.write(tmp_path / "a.ckpt", saved)
    assert torch.equal(checkpoint.read_raw(tmp_path / "a.ckpt")["state_dict"][name], torch.ones(2, 3))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"_target_": "os.system"}, r"model\._target_=os\.system: .*; a model is called with vocab_size, pad_id and"),
        ({"_target_": "collections.UserDict"}, "makes a UserDict, no aiayn.model.model.Model"),
        ({"norm": {**MODEL["norm"], "_partial_": False}}, r"model\.norm must have _partial_: true"),
        ({"norm": {"_target_": MODEL["norm"]["_target_"], "_partial_": True, "d_model": 6}}, r"model\.norm.*'dropout'"),
        ({"end": {"_target_": "torch.nn.LayerNorm", "_partial_": True}}, r"model\.end.*'normalized_shape'"),
        (
            {"attention": {**MODEL["attention"], "relative": {"_target_": "torch.nn.Linear", "_partial_": True}}},
            "relative",
        ),
    ],
)
def test_what_makes_no_model_is_refused_with_its_key(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build({**MODEL, **changed}, vocab_size=7)
