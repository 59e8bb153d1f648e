"""The page: its data, its text, and what a real browser draws."""

import json
import re

import pytest
import torch
from browser import shown
from conftest import pairs

from aiayn.analysis.figures import COLORS, LEAST
from aiayn.analysis.page import HERE, attention, labels, page
from aiayn.analysis.weights import KINDS, weights
from aiayn.data.tokenizer import BOS, EOS, Tokenizer, Vocabularies

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def test_the_data_are_the_weights_of_the_sentence(build):
    vocabularies = Vocabularies.joint(Tokenizer.train(["ab c", "c cab ab"] * 5, vocab_size=11))
    model = build(**vocabularies.sizes)
    source, target = (ids.tolist() for ids in vocabularies.source.encode(["c cab", "cab c"]))
    data = attention(model, vocabularies, source, target)
    assert data["source"] == ["c", "c", "\u00b7ab", "</s>"]
    assert data["target"] == ["<s>", "c", "\u00b7ab", "c"]
    found = weights(model, pairs(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]])))
    for kind in ("encoder", "decoder", "cross"):
        torch.testing.assert_close(torch.tensor(data[kind]), getattr(found, kind)[:, 0], atol=5e-4, rtol=0)
    assert len(max(re.findall(r"\d+\.\d+", json.dumps(data)), key=len)) <= len("0.123")


def test_pieces_are_shown_as_words():
    assert labels(["\u2581he", "eled", "\u2581", "8", ".", "</s>"]) == [
        "he",
        "\u00b7eled",
        "\u2423",
        "\u00b78",
        ".",
        "</s>",
    ]


def test_the_script_names_and_colours_heads_as_the_pictures_do():
    script = (HERE / "attention.js").read_text(encoding="utf-8")
    found = {name: json.loads(re.search(f"const {name} = (.*);", script)[1]) for name in ("COLORS", "KINDS", "LEAST")}
    assert found == {"COLORS": list(COLORS), "KINDS": KINDS, "LEAST": LEAST}


def made(tokens: list[str]) -> dict:
    """Data of two layers and three heads: each token attends to itself in the first, evenly to all in the second."""
    size = len(tokens)
    own, even = torch.eye(size), torch.full((size, size), 1 / size)
    layers = torch.stack([own, even])[:, None].expand(-1, 3, -1, -1).tolist()
    return {"source": tokens, "target": tokens, "encoder": layers, "decoder": layers, "cross": layers}


def test_text_of_the_page_is_escaped():
    html = page(EVIL, made([EVIL, "$script", "${data}"]))
    assert EVIL not in html
    assert html.count("</script>") == 3
    [data] = re.findall('<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data)["source"] == [EVIL, "$script", "${data}"]
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html


def drawn(chromium: str, tmp_path, html: str, script: str) -> str:
    """What a browser shows of a page after a script of ours."""
    file = tmp_path / "index.html"
    helper = """const choose = (name, value) => {
      const select = document.querySelector(`select[name=${name}]`);
      select.value = value;
      select.dispatchEvent(new Event("change"));
    };"""
    file.write_text(html.replace("</body>", f"<script>{helper}{script}</script></body>"), encoding="utf-8")
    return shown(chromium, file, milliseconds=5000).split('<div id="attention">')[1].split("<script>")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "lines", "cells"),
    [
        ("", 3 * 5, 0),
        ("choose('layer', '1')", 3 * 25, 0),
        ("choose('kind', 'cross'); choose('layer', '1'); document.querySelector('button').click()", 2 * 25, 0),
        ("choose('view', 'maps')", 0, 3 * 5),
        ("document.querySelectorAll('button').forEach((button) => button.click())", 0, 0),
        ("document.querySelector('button').dispatchEvent(new Event('dblclick'))", 5, 0),
    ],
)
def test_a_browser_draws_what_is_chosen(chromium, tmp_path, script, lines, cells):
    found = drawn(chromium, tmp_path, page(EVIL, made([EVIL, "a", "b", "$c", "d"])), script)
    assert found.count("<line ") == lines
    assert found.count("fill-opacity") == cells
    assert "taken'&lt;/script&gt;" in found
    assert "<img" not in found
    assert [name for name in KINDS.values() if f">{name}</option>" in found] == list(KINDS.values())


@pytest.mark.slow
def test_a_token_under_the_pointer_shows_its_own_lines_alone(chromium, tmp_path):
    point = "choose('layer', '1'); document.querySelectorAll('svg text')[2].dispatchEvent(new Event('pointerenter'))"
    found = drawn(chromium, tmp_path, page("x", made(["a", "b", "c", "d", "e"])), point)
    assert len(re.findall("<line [^>]*display: none", found)) == 3 * 20
    assert "c attends to: a 0.20, b 0.20, c 0.20, d 0.20, e 0.20" in found
