"""task=attention: what it writes, and what it refuses."""

from itertools import product
from pathlib import Path

import pytest
from conftest import SMALL, composed
from omegaconf import OmegaConf

from aiayn.applications.attention import attention
from aiayn.data.tokenizer import Tokenizer
from aiayn.inference import checkpoint
from aiayn.inference.checkpoint import build_model

TEXT = ["a man in a blue shirt", "ein Mann in einem blauen Hemd", "<b>&amp;</b> $x$"]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A checkpoint of three layers and two heads."""
    tokenizer = Tokenizer.train(TEXT * 5, vocab_size=60)
    config = OmegaConf.to_container(composed(*SMALL, "model.layers=3"))
    model = build_model(config["model"], vocab_size=tokenizer.vocab_size)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    path = tmp_path_factory.mktemp("model") / "x.ckpt"
    checkpoint.write(path, {**checkpoint.contents(config, tokenizer), "state_dict": state, "global_step": 1})
    return path


@pytest.fixture
def task(file, tmp_path):
    """Run the task; returns the folder that it may write."""

    def run(*overrides: str) -> Path:
        known = {"checkpoint": str(file), "sentence": "'a man in a blue shirt'", "output": f"{tmp_path}/out"}
        given = dict(override.split("=", 1) for override in overrides)
        attention(composed("task=attention", *SMALL, *(f"{key}={value}" for key, value in {**known, **given}.items())))
        return tmp_path / "out"

    return run


def test_it_writes_a_page_and_the_chosen_pictures(task, capsys):
    folder = task("layers=[1,3]", "heads=[2]", "target='ein Mann <b>&amp;</b>'")
    pictures = {
        f"{kind}_layer{layer}_{view}.png"
        for kind, layer, view in product(("encoder", "decoder", "cross"), (1, 3), ("lines", "maps"))
    }
    assert {path.name for path in folder.iterdir()} == {"index.html", *pictures}
    for name in pictures:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert "<h1>a man in a blue shirt \u2192 ein Mann &lt;b&gt;&amp;amp;&lt;/b&gt;</h1>" in html
    assert capsys.readouterr().out == f"ein Mann <b>&amp;</b>\n{folder}/index.html\n"


def test_without_a_target_it_is_the_models_own_translation(task, file, capsys):
    from aiayn.inference.translation import load

    folder = task("layers=1", "heads=1", "sentence='ein Hemd'")
    cfg = composed("task=attention", *SMALL, "checkpoint=x", "sentence=x")
    [translation] = load(file, **cfg.inference).translate(["ein Hemd"])
    assert capsys.readouterr().out.splitlines()[0] == translation
    assert len(list(folder.glob("*.png"))) == 6


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("layers=[1,99]", r"layers must be numbers from 1 to 3, .* got layers=\[1, 99\]"),
        ("layers=0", "layers must be numbers from 1 to 3"),
        ("layers=[]", "layers must be numbers from 1 to 3"),
        ("heads=[3]", "heads must be numbers from 1 to 2"),
        ("heads=first", "heads must be numbers from 1 to 2, .* got heads=first"),
        ("heads=[true]", "heads must be numbers from 1 to 2"),
        ("sentence=''", "sentence must have 1 to 100 tokens, got 0"),
        ("sentence='  '", "sentence must have 1 to 100 tokens, got 0"),
        (f"sentence='{'man ' * 101}'", r"sentence must have 1 to 100 tokens, got \d{3}"),
        ("target=''", "target must have 1 to 100 tokens, got 0"),
        ("checkpoint=[a.ckpt,b.ckpt]", "must name one model here, got 2"),
        ("checkpoint=/nowhere.ckpt", "/nowhere.ckpt does not exist"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(task, tmp_path, override, message):
    with pytest.raises(ValueError, match=message):
        task(override)
    assert not (tmp_path / "out").exists()
