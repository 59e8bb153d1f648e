"""task=attention: what it writes, and what it refuses."""

import shutil
from itertools import product
from pathlib import Path

import pytest
from conftest import SMALL, composed, write_checkpoint
from torch.nn import Identity

from aiayn.checkpoints.checkpoint import Checkpoint
from aiayn.commands.attention import attention

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A checkpoint of three layers and two heads."""
    words = ["a", "man", "in", "blue", "shirt", "ein", "Mann", "Hemd", "<b>&amp;</b>", "$x$"]
    return write_checkpoint(tmp_path_factory.mktemp("model") / "x.ckpt", *SMALL, "model.layers=3", words=words)


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
        ("sentence=null", "sentence must be a text, got sentence=None"),
        ("sentence=[a,man]", r"sentence must be a text, got sentence=\['a', 'man'\]; quote it twice"),
        ("sentence={a:man}", "sentence must be a text"),
        ("sentence=true", "sentence must be a text, got sentence=True"),
        ("target=[ein,Mann]", r"target must be a text, got target=\['ein', 'Mann'\]"),
        ("checkpoint=[a.ckpt,b.ckpt]", "must name one model here, got 2"),
        ("checkpoint=/nowhere.ckpt", "/nowhere.ckpt does not exist"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(task, tmp_path, override, message):
    with pytest.raises(ValueError, match=message):
        task(override)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_output_is_refused_at_once(task, tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"output must be a folder, got .*a\.txt is none"):
        task(f"output={tmp_path}/a.txt", "checkpoint=/nowhere.ckpt")
    assert (tmp_path / "a.txt").read_text() == "mine"


def test_by_default_it_is_in_the_runs_folder_or_beside_the_file(task, file, tmp_path, monkeypatch):
    shown = ["layers=1", "heads=1", "sentence=5", "target=ein", "output=null"]
    inside = tmp_path / "run" / "checkpoints" / "averaged.ckpt"
    inside.parent.mkdir(parents=True)
    shutil.copy(file, inside)
    task(*shown, f"checkpoint={tmp_path}/run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoints", "attention"}
    monkeypatch.chdir(shutil.copytree(inside.parent, tmp_path / "elsewhere"))
    task(*shown, "checkpoint=averaged.ckpt")
    assert (tmp_path / "elsewhere" / "attention" / "index.html").exists()
    monkeypatch.chdir(inside.parent)
    shutil.rmtree(tmp_path / "run" / "attention")
    task(*shown, "checkpoint=averaged.ckpt")
    assert (tmp_path / "run" / "attention" / "index.html").exists()
    task(*shown[:-1], "output=5")
    assert (inside.parent / "5" / "index.html").exists()


def test_what_is_translated_in_pieces_is_refused(tmp_path):
    learned = ["model/position=learned", "model.position.max_length=5"]
    path = write_checkpoint(tmp_path / "x.ckpt", *SMALL, *learned, words=["man", "Mann"])
    cfg = composed("task=attention", *SMALL, f"checkpoint={path}", "sentence='man man man man man man man'")
    with pytest.raises(ValueError, match=r"sentence must have at most 4 tokens, got 7: .* in 2 pieces"):
        attention(cfg)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("missing", [None, "heads"])
def test_an_attention_that_shows_nothing_is_refused(task, tmp_path, monkeypatch, missing):
    build = Checkpoint.model

    def opaque(self, accelerator, **trusting):
        model = build(self, accelerator, **trusting)
        if missing:
            delattr(model.decoder.layers[1].cross_attention, missing)
        else:
            model.decoder.layers[1].cross_attention = Identity()
        return model

    monkeypatch.setattr(Checkpoint, "model", opaque)
    with pytest.raises(ValueError, match=f"does not show its heads: it has no `{missing or 'weights'}`"):
        task()
    assert not (tmp_path / "out").exists()
