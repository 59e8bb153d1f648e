"""The alignment in task=translate format=jsonl."""

import json

import pytest

from aiayn.analysis.alignment import align
from aiayn.commands.translate import alignments, as_json
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.inference.translation import Translation, translator

SENTENCES = ["ab c", "", "c cab ab abc c", "b"]


@pytest.fixture
def translated(build):
    """A model, its translator, which cuts sources of more than three tokens, and translations."""
    vocabularies = Vocabularies.joint(Tokenizer.train(SENTENCES * 5, vocab_size=11))
    model = build(seed=3, **vocabularies.sizes)
    search = {"beam": 2, "alpha": 0.6, "max_extra_length": 5, "tokens_per_batch": 64}
    searcher = translator(model, vocabularies, **search, max_source_length=3)
    worse = Translation("", [], score=-9.0, log_probability=-9.0)
    return model, searcher, [[best, worse] for [best] in searcher.n_best(SENTENCES, 1)]


def test_the_best_translation_of_each_whole_sentence_is_aligned(translated):
    model, searcher, found = translated
    lines = alignments(model, searcher.vocabularies, SENTENCES, found)
    assert lines[1] == ""
    assert lines[2] is None  # put together from pieces
    for row in (0, 3):
        [links] = align(model, searcher.vocabularies, [SENTENCES[row]], [found[row][0].tokens])
        assert lines[row] == " ".join(f"{source}-{target}" for source, target in links)
    assert lines[0]
    assert alignments(model, searcher.vocabularies, ["", SENTENCES[2]], [found[1], found[2]]) == ["", None]


def test_sources_of_any_length_are_aligned_where_none_is_cut(translated):
    model, searcher, _ = translated
    searcher.max_source_length = None
    found = [[best] for [best] in searcher.n_best(SENTENCES, 1)]
    assert None not in alignments(model, searcher.vocabularies, SENTENCES, found)


def test_json_has_the_alignment_beside_the_translation():
    found = Translation("das Haus", [5, 6], score=-0.5, log_probability=-1.0)
    line = json.loads(as_json("the house", [found], "0-0 1-1"))
    assert (line["source"], line["translation"], line["alignment"]) == ("the house", "das Haus", "0-0 1-1")
    assert json.loads(as_json("the house", [found], None))["alignment"] is None
