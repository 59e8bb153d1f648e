"""Files of weights as a stranger, or a failing disk, may have made them."""

import io
import pickle
import random
import resource
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Told, write_checkpoint

from aiayn.checkpoints import archive, averaging, checkpoint
from aiayn.commands.inputs import evaluated_data, evaluated_inference
from aiayn.data.tokenizer import NAMES, models_hash


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in its run's folder."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    return write_checkpoint(folder / "averaged.ckpt", *SMALL, words=("one", "two", "three"), step=7)


Changed = Callable[..., Path]


@pytest.fixture
def changed(file: Path, tmp_path: Path) -> Changed:
    """The checkpoint with other content; a function gets a copy of it."""

    def changed(change: Callable[[dict[str, Any]], Any], name: str = "a.ckpt") -> Path:
        content = deepcopy(torch.load(file, weights_only=True))
        change(content)
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return changed


def test_flipped_weights_are_refused_with_the_part_that_is_damaged(file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    weight = checkpoint.read(file).weights["embedding.weight"].numpy().tobytes()
    content[content.find(weight) + 13] ^= 255
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.ckpt .* damaged: its part archive/data/\d+ has not the checksum"):
        checkpoint.read(tmp_path / "a.ckpt")


def test_what_is_cut_short_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is cut short, damaged, or not a checkpoint"):
        checkpoint.read(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("error", "words"),
    [(PermissionError(13, "Permission denied"), "Permission denied"), (MemoryError(), "not enough memory")],
)
def test_errors_keep_their_reason(file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(OSError, match=words):
        checkpoint.read(file)


def test_a_packed_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    torch.save({"state_dict": {"model.x": torch.zeros(10**7)}}, tmp_path / "a.ckpt")
    packed = zipfile.ZipFile(tmp_path / "b.ckpt", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "a.ckpt") as whole, packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert (tmp_path / "b.ckpt").stat().st_size < 10**5
    with pytest.raises(ValueError, match="it is packed"):
        checkpoint.read(tmp_path / "b.ckpt")


class Greedy:
    def __reduce__(self) -> Any:
        return bytearray, (2**34,)


def test_a_pickle_cannot_ask_for_memory(file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(tmp_path / "a.ckpt", "w") as other:
        for name in whole.namelist():
            greedy = pickle.dumps({"config": Greedy()}, protocol=2)
            other.writestr(name, greedy if name.endswith("data.pkl") else whole.read(name))
    with pytest.raises(ValueError, match="no plain data: it calls __builtin__ bytearray"):
        checkpoint.read(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "weights",
    [
        [],
        {"model.x": [1.0]},
        {3: torch.zeros(1)},
        {"model.x": torch.zeros(1, device="meta")},
        {"model.x": torch.zeros(1).expand(10**6, 10**6)},  # four bytes that would be 4 TB
        {"model.x": torch.zeros(3).to_sparse()},
    ],
    ids=["list", "numbers", "no name", "no data", "expanded", "sparse"],
)
def test_weights_are_tensors_no_larger_than_the_file(changed: Changed, weights: Any) -> None:
    path = changed(lambda content: content.update(state_dict=weights))
    with pytest.raises(ValueError, match=r"a\.ckpt (was not written by aiayn: it holds no state_dict|cannot be read)"):
        checkpoint.read(path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (None, "holds no target_tokenizer of bytes"),
        ([1], "holds no target_tokenizer of bytes"),
        (torch.zeros(1, dtype=torch.uint8).expand(10**12), "holds no target_tokenizer of bytes"),
        (torch.zeros(3, dtype=torch.uint8).to_sparse(), "holds no target_tokenizer of bytes"),
        (torch.zeros(3, dtype=torch.bfloat16), "holds no target_tokenizer of bytes"),
        (torch.zeros(3, dtype=torch.uint8), "its tokenizer does not have the stored hash"),
    ],
    ids=["nothing", "list", "expanded", "sparse", "numbers", "another"],
)
def test_the_tokenizers_are_bytes_with_the_stored_hash(changed: Changed, other: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.ckpt .*{words}"):
        checkpoint.read(changed(lambda content: content.update(target_tokenizer=other)))
    with pytest.raises(ValueError, match=r"a\.ckpt "):
        checkpoint.read(changed(lambda content: content.update(tokenizer=other)))


def test_a_second_tokenizer_needs_a_second_embedding(changed: Changed) -> None:
    def pair(content: dict[str, Any]) -> None:
        models = dict.fromkeys(NAMES, content["tokenizer"].numpy().tobytes())
        content.update(target_tokenizer=content["tokenizer"], tokenizer_hash=models_hash(models))

    loaded = checkpoint.read(changed(pair))
    assert not loaded.vocabularies.shared
    with pytest.raises(ValueError, match=r"weights do not fit its config.*source_embedding"):
        loaded.model()


def test_a_lone_file_names_no_text_and_resolves_nothing(file: Path, changed: Changed, told: Told) -> None:
    cfg = told("task=evaluate", "checkpoint=x")
    stored = checkpoint.read(file).config
    assert evaluated_data(cfg, stored, file).corpus.pairs == 700  # its run's folder has a result.json
    lone = changed(lambda content: None)
    with pytest.raises(ValueError, match=r"a\.ckpt is in no folder of its run.* name the data"):
        evaluated_data(cfg, stored, lone)
    assert (
        evaluated_data(told("task=evaluate", "checkpoint=x", "data=numbers_enfr"), stored, lone).corpus.pairs == 30000
    )
    named = changed(lambda content: content["config"].update(name="${oc.env:HOME}"))
    with pytest.raises(ValueError, match="is an interpolation"):
        checkpoint.read(named)


def test_a_stored_corpus_of_nothing_is_refused_in_a_line(file: Path, changed: Changed, told: Told) -> None:
    for corpus in (None, 3, [1]):
        path = changed(lambda content, corpus=corpus: content["config"]["data"].update(corpus=corpus))
        with pytest.raises(ValueError, match=r"data\.corpus must be of the type dict"):
            checkpoint.read(path)
    path = changed(lambda content: content["config"]["data"].pop("corpus"))
    with pytest.raises(ValueError, match="names no corpus; name the data on the command line"):
        evaluated_data(told("task=evaluate", "checkpoint=x"), checkpoint.read(path).config, path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["config"].update(seed=2), "differ in seed; give those of one run"),
        (lambda content: content["config"]["training"].update(label_smoothing=0.2), r"differ in training\.label_smoo"),
        (lambda content: content["state_dict"]["model.embedding.weight"].fill_(torch.nan), "weights that are NaN"),
        (lambda content: content["state_dict"]["model.embedding.weight"].fill_(torch.inf), "weights that are NaN or"),
    ],
    ids=["seed", "recipe", "NaN", "infinite"],
)
def test_averages_are_of_numbers_and_of_one_run(file: Path, changed: Changed, change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        averaging.average([file, changed(change)])
    assert "a.ckpt" in str(error.value)


def test_an_average_may_be_of_a_run_that_was_extended(file: Path, changed: Changed) -> None:
    longer = changed(lambda content: content["config"]["training"].update(max_steps=31))
    assert averaging.average([file, longer])["global_step"] == 7


ODD = [
    None,
    True,
    -1,
    2.5,
    10**9,
    10**40,
    float("nan"),
    "abc",
    "${oc.env:HOME}",
    "???",
    [],
    {},
    [[]],
    {"x": None},
    b"x",
]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A file with flipped bytes, cut, or with an odd value at a random place of its config."""
    kind = rng.choice(["flip", "cut", "config", "config", "content"])
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    if kind == "flip":
        changed = bytearray(content)
        for _ in range(rng.choice([1, 400])):
            changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
        return bytes(changed)
    whole = torch.load(io.BytesIO(content), weights_only=True)
    part: Any = whole if kind == "content" else whole["config"]
    while True:
        key = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
        if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.2:
            break
        part = part[key]
    part[key] = rng.choice(ODD)
    if rng.random() < 0.1 and isinstance(part, dict):
        del part[key]
    written = io.BytesIO()
    torch.save(whole, written)
    return written.getvalue()


@pytest.mark.slow
def test_a_mutated_file_is_read_or_refused_in_a_line(file: Path, told: Told, tmp_path: Path) -> None:
    cfg, content, rng, ends = told("task=evaluate", "checkpoint=x"), file.read_bytes(), random.Random(1), set()
    lines: list[str] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "checkpoints" / "a.ckpt"
    path.parent.mkdir()
    (tmp_path / "result.json").write_bytes((file.parents[1] / "result.json").read_bytes())
    for _ in range(100):
        path.write_bytes(mutated(content, rng))
        try:
            loaded = checkpoint.read(path)
            loaded.model()
            evaluated_data(cfg, loaded.config, path)
            evaluated_inference(cfg, loaded.config)
            ends.add("read")
        except (ValueError, OSError) as error:
            ends.add("refused")
            lines.append(str(error))
    assert ends == {"read", "refused"}
    assert not [line for line in lines if "\n" in line]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_only_files_of_torch_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as other:
        other.writestr("x", "y")
    for name, words in (("a.zip", "cannot be read"), ("b", "not a checkpoint")):
        (tmp_path / "b").write_bytes(b"x")
        with pytest.raises(ValueError, match=words):
            archive.load(tmp_path / name)
