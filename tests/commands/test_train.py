import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Told, composed, write_checkpoint
from omegaconf import OmegaConf
from test_plan import Gated
from torch import Tensor

from aiayn.callbacks.speed import TrainingSpeed
from aiayn.commands.evaluate import show
from aiayn.commands.train import read_newest, train, training_cost, twin_differences
from aiayn.data.mixture import Mixture
from aiayn.model.view import View
from aiayn.problems.translation import Translation


def test_a_damaged_newest_checkpoint_is_named_with_what_remains_without_it(tmp_path: Path) -> None:
    older, newest = tmp_path / "step_0000007.ckpt", tmp_path / "step_0000011.ckpt"
    write_checkpoint(older, *SMALL, words=("one", "two"), step=7)
    newest.write_bytes(older.read_bytes()[:-99])
    with pytest.raises(ValueError, match=r"step_0000011\.ckpt .*resumes from step_0000007\.ckpt"):
        read_newest(newest)
    older.unlink()
    with pytest.raises(ValueError, match=r"step_0000011\.ckpt .*Delete it, and the same command starts anew"):
        read_newest(newest)


def test_what_a_run_has_come_to_has_the_decimals_of_each_score(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"f1": ("F1", 0.91234), "bleu": ("BLEU", 27.3145)}
    scores = {key: {"name": name, "value": value, "signature": "x"} for key, (name, value) in values.items()}
    result = {"scores": {"last": {"step": 7, "dev": {"sentences": 3, **scores}}}, "parameters": 5, "steps": 7}
    result |= {"target_tokens": 11, "training_seconds": 2.0, "tokens_per_second": 5.5}
    show(SimpleNamespace(result=result, path=Path("nowhere")), SimpleNamespace(splits=lambda: ["dev"]))  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "0.9123" in said
    assert " 27.31 " in said


@pytest.mark.parametrize(
    ("refused", "says"), [(["trainer.devices=4099"], "trainer.devices=4099"), ([], "same number of lines")]
)
def test_results_stay_where_what_is_to_take_their_place_is_refused(
    refused: list[str], says: str, told: Told, tmp_path: Path
) -> None:
    run, files = tmp_path / "run", {}
    for split, targets in {"train": "eins\n", "dev": "eins\nzwei\n"}.items():  # a line is missing by now
        for side, text in {"source": "one\ntwo\n", "target": targets}.items():
            files[f"data.{split}.{side}"] = file = tmp_path / f"{split}.{side}"
            file.write_text(text)
    of_text = ["data=text", "data.source_language=en", "data.target_language=de"]
    named = [f"{key}={file}" for key, file in files.items()]
    cfg = told(*of_text, *named, "trainer=cpu", *refused, f"outputs={tmp_path}", f"run_dir={run}", "force=true")
    done = {"status": "done", "steps": 7, "config": OmegaConf.to_container(cfg), "made_of": {"text": "of another text"}}
    (run / "checkpoints").mkdir(parents=True)
    kept = {run / "result.json": json.dumps(done), run / "checkpoints" / "step_0000007.ckpt": "weights"}
    for path, content in kept.items():
        path.write_text(content)
    with pytest.raises(ValueError, match=says):
        train(cfg)
    assert {path: path.read_text() for path in kept if path.exists()} == kept


D_MODEL, D_FF, LAYERS = 14, 22, 1


class Looking(Gated):
    """It asks a tensor for its value."""

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        return super().forward(x, view=view) if x.sum() > 0 else x


def config(feed_forward: str) -> dict[str, Any]:
    sizes = [f"model.d_model={D_MODEL}", f"model.d_ff={D_FF}", f"model.layers={LAYERS}", "model.heads=2"]
    made: Any = OmegaConf.to_container(composed(*sizes), resolve=True)
    made["model"]["feed_forward"]["_target_"] = feed_forward
    return made


def cost(corpus: Any, feed_forward: str, *, tokens: int) -> dict[str, Any]:
    """What a training on so many tokens of the corpus has cost."""
    made = config(feed_forward)
    problem = Translation(OmegaConf.create(made))
    problem.corpus = corpus
    speed = TrainingSpeed.__new__(TrainingSpeed)
    speed.tokens, speed.seconds = tokens, 2.0
    trainer: Any = SimpleNamespace(callbacks=[speed], global_step=1)
    return training_cost(trainer, problem, made)


@pytest.fixture
def corpus() -> Any:
    """Two pairs, which with EOS have 3 and 17 source, 5 and 13 target tokens."""
    source, target = (SimpleNamespace(lengths=np.array(lengths)) for lengths in ([2, 16], [4, 12]))
    pairs = SimpleNamespace(source=source, target=target, longest=17)
    sizes = SimpleNamespace(sizes={"vocab_size": 31})
    mixture = Mixture.once(2)
    return SimpleNamespace(
        vocabularies=sizes, splits=lambda: ["train"], pairs=lambda split: pairs, mixture=lambda weights: mixture
    )


@pytest.mark.slow
def test_a_network_of_ones_own_is_counted_as_what_it_is(corpus: Any) -> None:
    plain, gated = (
        cost(corpus, target, tokens=7 * (5 + 13))["flops"]
        for target in ("aiayn.model.feed_forward.relu.FeedForward", "test_plan.Gated")
    )
    epochs, tokens = 7, 3 + 17 + 5 + 13
    assert gated - plain == pytest.approx(3 * 2 * epochs * tokens * LAYERS * D_MODEL * D_FF, rel=1e-6)


def test_a_model_that_cannot_be_counted_has_no_flops_and_the_run_goes_on(
    corpus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = cost(corpus, f"{__name__}.Looking", tokens=18)
    assert found == {"steps": 1, "target_tokens": 18, "training_seconds": 2.0, "tokens_per_second": 9.0}
    assert "no FLOPs" in caplog.text
    assert "cannot be counted" in caplog.text


def test_a_smaller_twin_says_where_it_differs_from_the_papers_row(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiayn.commands.train.compose", lambda _, overrides: composed(*overrides))
    lines = twin_differences(told("experiment=table3_b_dk16", "scale=small", "training.max_steps=7"))
    own = ("experiment=table3_base", "scale=tiny", "data.corpus.dev=7")  # the paper's corpus has no such key
    assert "name numbers_ende (wmt14_ende)" in "".join(twin_differences(told(*own)))
    assert lines[0] == "scale=small: a smaller twin; the paper's row has what is in brackets"
    assert "d_k 8 (16), d_v 32 (64)" in lines[1]
    assert "warmup_steps 100 (4000)" in lines[2]
    assert "max_steps" not in lines[2]  # as the command line has it
    assert "name multi30k_ende (wmt14_ende)" in lines[3]
    assert lines[4] == "inference: beam 1 (4)"
    assert twin_differences(told("experiment=table3_b_dk16")) == []
