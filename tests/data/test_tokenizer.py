import hashlib
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from aiayn.data.parallel_text import read_lines
from aiayn.data.tokenizer import BOS, EOS, PAD, UNK, Normaliser, Tokenizer, Vocabularies

SOURCE = Path(__file__).parents[2] / "src"
SENTENCES = [f"The {a} saw the {b}." for a in ("dog", "cat", "girl") for b in ("bird", "boat", "house", "horse")] + [
    f"{a} sah {b}." for a in ("Der Hund", "Die Katze") for b in ("den Vogel", "das Boot", "das Haus")
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(SENTENCES, vocab_size=61)


def test_decoding_gives_back_what_was_encoded(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(SENTENCES)) == SENTENCES


def test_the_special_ids_are_those_of_the_project(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.encode(["\u4e2d"])[0][-1] == UNK
    assert tokenizer.decode([[BOS, *tokenizer.encode(["The dog"])[0], EOS, PAD]]) == ["The dog"]


def test_sentences_are_normalised_as_the_model_does_it_whatever_their_characters(tokenizer: Tokenizer) -> None:
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    sentences = [*characters, *(f"a{character} {character}b" for character in characters), "a  b", "e\u0301", " a "]
    normalised = Normaliser()(sentences)
    assert normalised == Normaliser(tokenizer.model)(sentences)
    assert [not sentence for sentence in normalised] == [not len(ids) for ids in tokenizer.encode(sentences)]


def test_text_that_spells_a_special_symbol_is_text(tokenizer: Tokenizer) -> None:
    ids = np.concatenate(tokenizer.encode(["<s> </s> <pad>"]))
    assert not np.isin([PAD, BOS, EOS], ids).any()


def test_no_sentences_and_empty_ones_survive_the_way_there_and_back(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode([]) == []
    assert tokenizer.decode([]) == []
    assert [len(ids) for ids in tokenizer.encode(["", " ", "\u200b"])] == [0, 0, 0]
    assert tokenizer.decode([[], np.array([], np.int32)]) == ["", ""]


def test_a_tokenizer_is_its_bytes(tokenizer: Tokenizer) -> None:
    for copy in (Tokenizer(tokenizer.model), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.model == tokenizer.model
        assert copy.vocab_size == 61
        assert np.array_equal(copy.encode(SENTENCES)[5], tokenizer.encode(SENTENCES)[5])


def test_the_same_sentences_give_the_same_model_in_every_process(tokenizer: Tokenizer) -> None:
    program = f"from aiayn.data.tokenizer import *; print(Tokenizer.train({SENTENCES!r}, vocab_size=61).model.hex())"
    output = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == tokenizer.model.hex()


def test_threads_may_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode(SENTENCES)
    with ThreadPoolExecutor(3) as pool:
        for encoded in pool.map(tokenizer.encode, [SENTENCES] * 13):
            assert all(map(np.array_equal, encoded, expected))


def test_a_vocabulary_larger_than_the_text_allows_is_refused_with_the_largest_possible() -> None:
    with pytest.raises(
        ValueError, match=r"data\.vocab_size=997 is more than .* largest possible value is \d+"
    ) as error:
        Tokenizer.train(SENTENCES, vocab_size=997)
    largest = int(re.findall(r"is (\d+)\.", str(error.value))[0])
    assert Tokenizer.train(SENTENCES, vocab_size=largest).vocab_size == largest


def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_the_smallest_possible() -> None:
    with pytest.raises(ValueError, match=r"data\.vocab_size=7 has no room .* give at least \d+") as error:
        Tokenizer.train(SENTENCES, vocab_size=7)
    smallest = int(re.findall(r"at least (\d+)", str(error.value))[0])
    assert Tokenizer.train(SENTENCES, vocab_size=smallest).vocab_size == smallest


SURVIVORS = {  # none of their characters is in the text
    "emoji": "The dog \U0001f415 saw \U0001f468\u200d\U0001f469\u200d\U0001f467.",
    "rare scripts": "\u4e2d\u6587 \U00012000\U00012031 \u13a0\u13a1 \U0001f0a1",
    "control characters": "a\x80b\x85c\x9ed \u202ee\u2066",
    "nobody's": "\ue000\U0010ffff\ufffe",
    "decomposed": "Z\u030d\u0353",
}


@pytest.mark.parametrize("text", SURVIVORS.values(), ids=SURVIVORS)
def test_with_bytes_to_fall_back_on_every_character_survives(tokenizer: Tokenizer, text: str) -> None:
    with_bytes = Tokenizer.train(SENTENCES, vocab_size=307, byte_fallback=True)
    (ids,) = with_bytes.encode([text])
    assert UNK not in ids
    assert with_bytes.decode([ids]) == [text]
    assert UNK in tokenizer.encode([text])[0]


def test_half_a_character_is_shown_as_such() -> None:
    # Nothing keeps a model from stopping in the middle of one.
    with_bytes = Tokenizer.train(SENTENCES, vocab_size=307, byte_fallback=True)
    (ids,) = with_bytes.encode(["a \u4e2d"])
    assert with_bytes.decode([ids[:-1]]) == ["a \ufffd\ufffd"]


def test_what_the_normaliser_removes_no_byte_brings_back() -> None:
    with_bytes = Tokenizer.train(SENTENCES, vocab_size=307, byte_fallback=True)
    assert with_bytes.decode(with_bytes.encode(["a\x01\x1bb\tc\ufeffd"])) == ["ab c d"]


def test_no_bytes_break_a_line(tmp_path: Path) -> None:
    with_bytes = Tokenizer.train(SENTENCES, vocab_size=307, byte_fallback=True)
    (dog,) = with_bytes.encode(["dog"])

    def decoded(text: str) -> str:
        spelled = [with_bytes.vocabulary.index(f"<0x{byte:02X}>") for byte in text.encode()]
        return with_bytes.decode([[*dog, *spelled, *dog]])[0]

    assert decoded("\n") == decoded("\r") == "dog  dog"
    assert decoded("\r\n") == "dog   dog"
    every = decoded("".join(map(chr, [*range(256), 0x2028, 0x2029])))
    assert {"\x0b", "\x85", "\u2028"} < set(every)  # a sentence may hold them
    (tmp_path / "text").write_text(f"{every}\n", encoding="utf-8", newline="\n")
    assert list(read_lines(tmp_path / "text")) == [every]
    assert (tmp_path / "text").read_text(encoding="utf-8") == f"{every}\n"


def test_a_vocabulary_without_room_for_the_bytes_is_refused_with_the_smallest_possible() -> None:
    with pytest.raises(ValueError, match=r"data\.vocab_size=256 has no room .* 256 bytes of data\.byte_f.*") as error:
        Tokenizer.train(SENTENCES, vocab_size=256, byte_fallback=True)
    smallest = int(re.findall(r"at least (\d+)", str(error.value))[0])
    assert Tokenizer.train(SENTENCES, vocab_size=smallest, byte_fallback=True).vocab_size == smallest
    with pytest.raises(ValueError, match=f"give at least {smallest},"):
        Tokenizer.train(SENTENCES, vocab_size=smallest - 1, byte_fallback=True)


@pytest.mark.parametrize("vocab_size", [-1, 0, 4])
def test_a_vocabulary_of_special_symbols_alone_is_refused(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=f"data.vocab_size must be above .* 4 special symbols, got {vocab_size}"):
        Tokenizer.train(SENTENCES, vocab_size=vocab_size)


def test_other_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data.character_coverage must be in \(0, 1\], got 1.5"):
        Tokenizer.train(SENTENCES, vocab_size=61, character_coverage=1.5)
    with pytest.raises(ValueError, match="no sentence to train"):
        Tokenizer.train([], vocab_size=61)


def test_what_goes_wrong_in_reading_the_sentences_comes_out_as_it_is() -> None:
    def sentences() -> Iterator[str]:
        yield "a"
        raise ValueError("line 2 is not UTF-8")

    with pytest.raises(ValueError, match="line 2 is not UTF-8"):
        Tokenizer.train(sentences(), vocab_size=61)


@pytest.mark.parametrize("model", [b"", b"no model"])
def test_bytes_that_are_no_model_are_refused(model: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a SentencePiece model|has pad, unk, bos, eos"):
        Tokenizer(model)


def test_a_shared_vocabulary_is_the_tokenizer_and_a_pair_is_another(tokenizer: Tokenizer) -> None:
    shared, other = Vocabularies.joint(tokenizer), Tokenizer.train(SENTENCES, vocab_size=59)
    assert (shared.hash, shared.sizes) == (hashlib.sha256(tokenizer.model).hexdigest(), {"vocab_size": 61})
    pair = Vocabularies(tokenizer, other)
    assert pair.sizes == {"vocab_size": 59, "source_vocab_size": 61}
    hashes = {shared.hash, Vocabularies.joint(other).hash, pair.hash, Vocabularies(other, tokenizer).hash}
    assert len(hashes) == 4
    for found in (shared, pair):
        again = Vocabularies.of(found.models)
        assert (again.shared, again.hash) == (found.shared, found.hash)
        assert pickle.loads(pickle.dumps(found)).shared == found.shared


SYMBOLS = ["''", '"', "``", ",", ",x", 'a,"b', "\\\\", "$", "#", ".", ":", "-LRB-", "(S", "(SBAR", ")S", "XX"]


def test_a_symbol_is_one_id_and_decodes_to_itself() -> None:
    text = "The girl saw XX boats ."
    learnt = Tokenizer.train([*SENTENCES, text], vocab_size=73, symbols=SYMBOLS)
    ids = learnt.encode([*SYMBOLS, " ".join(SYMBOLS)])
    assert [len(one) for one in ids] == [1] * len(SYMBOLS) + [len(SYMBOLS)]
    assert len({int(one[0]) for one in ids}) == len(SYMBOLS)
    assert learnt.decode(ids) == [*SYMBOLS, " ".join(SYMBOLS)]
    for sentence in (*SENTENCES, text, "(S XX (SBAR The dog )S", "the XXgirl", "sees. sees."):
        assert learnt.decode(learnt.encode([sentence])) == [sentence]


def test_symbols_take_nothing_from_other_text_and_none_change_nothing(tokenizer: Tokenizer) -> None:
    assert Tokenizer.train(SENTENCES, vocab_size=61, symbols=[]).model == tokenizer.model
    with_symbols = Tokenizer.train(SENTENCES, vocab_size=61 + 2, symbols=["(S", ")S"])
    assert set(with_symbols.vocabulary) == {*tokenizer.vocabulary, "\u2581(S", "\u2581)S"}


def test_a_vocabulary_without_room_for_the_symbols_is_refused_with_the_smallest_possible() -> None:
    with pytest.raises(ValueError, match=r"data\.vocab_size=9 has no room for .*; give at least (\d+)") as refused:
        Tokenizer.train(SENTENCES, vocab_size=9, symbols=SYMBOLS)
    least = int(re.search(r"at least (\d+)", str(refused.value))[1])  # type: ignore[index]
    assert Tokenizer.train(SENTENCES, vocab_size=least, symbols=SYMBOLS).vocab_size == least
