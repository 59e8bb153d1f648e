import contextlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from aiayn.data.ragged import EncodedPairs, Ragged, RaggedWriter, encode_pairs
from aiayn.data.tokenizer import BOS, EOS, PAD, Tokenizer, Vocabularies

SEQUENCES = [np.array(ids, np.int32) for ids in ([7, 11, 13], [], [17], [19, 23, 29, 31, 37], [41, 43])]


def written(folder: Path, *, vocab_size: int = 97, sequences: list[np.ndarray] = SEQUENCES) -> Ragged:
    with RaggedWriter(folder / "split.side", vocab_size=vocab_size) as writer:
        for begin in range(0, len(sequences), 2):
            writer.append(Ragged.join(sequences[begin : begin + 2]))
    return Ragged.open(folder / "split.side")


@pytest.fixture(params=["memory", "disk"])
def ragged(request: pytest.FixtureRequest, tmp_path: Path) -> Ragged:
    return Ragged.join(SEQUENCES) if request.param == "memory" else written(tmp_path)


def test_sequences_come_back_as_they_were(ragged: Ragged) -> None:
    assert len(ragged) == 5
    assert ragged.lengths.tolist() == [3, 0, 1, 5, 2]
    assert [ragged[row].tolist() for row in range(5)] == [ids.tolist() for ids in SEQUENCES]
    assert ragged[-1].tolist() == [41, 43]
    with pytest.raises(IndexError):
        ragged[5]


def test_padded_puts_the_special_symbols_where_they_belong(ragged: Ragged) -> None:
    assert ragged.padded(np.array([4, 1, 0]), prefix=False).tolist() == [
        [41, 43, EOS, PAD],
        [EOS, PAD, PAD, PAD],
        [7, 11, 13, EOS],
    ]
    assert ragged.padded(np.array([2, 4]), prefix=True).tolist() == [[BOS, 17, EOS, PAD], [BOS, 41, 43, EOS]]
    assert ragged.padded(np.array([1]), prefix=True).tolist() == [[BOS, EOS]]
    assert ragged.padded(np.array([], int), prefix=True).shape == (0, 2)
    assert ragged.padded(np.array([3]), prefix=True).dtype == np.int64


def test_padded_equals_a_loop_on_random_sequences() -> None:
    rng = np.random.default_rng(1)
    sequences = [rng.integers(4, 997, size=length) for length in rng.integers(0, 31, size=101)]
    rows = rng.permutation(101)[:53]
    padded = Ragged.join(sequences).padded(rows, prefix=True)
    for row, got in zip(rows, padded, strict=True):
        expected = [BOS, *sequences[row], EOS]
        assert got.tolist() == expected + [PAD] * (padded.shape[1] - len(expected))


def test_select_keeps_the_marked_sequences(ragged: Ragged) -> None:
    selected = ragged.select(np.array([True, True, False, False, True]))
    assert [ids.tolist() for ids in selected] == [[7, 11, 13], [], [41, 43]]


def test_a_mapped_store_is_pickled_by_its_path(tmp_path: Path) -> None:
    long = [np.arange(4, 90, dtype=np.int32)] * 997
    pairs = EncodedPairs(written(tmp_path, sequences=long), Ragged.join(SEQUENCES))
    copy = pickle.loads(pickle.dumps(pairs))
    assert len(pickle.dumps(pairs.source)) < 500
    assert np.array_equal(copy.source.tokens, pairs.source.tokens)
    assert [ids.tolist() for ids in copy.target] == [ids.tolist() for ids in SEQUENCES]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_a_token_takes_two_bytes_where_they_suffice(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    largest = np.array([vocab_size - 1], np.int32)
    ragged = written(tmp_path, vocab_size=vocab_size, sequences=[largest])
    assert ragged.tokens.dtype == dtype
    assert ragged[0].tolist() == [vocab_size - 1]


def test_a_store_without_tokens_or_without_sequences_can_be_opened(tmp_path: Path) -> None:
    assert len(written(tmp_path, sequences=[])) == 0
    blank = written(tmp_path, sequences=[SEQUENCES[1]] * 3)
    assert blank.padded(np.arange(3), prefix=False).tolist() == [[EOS]] * 3


def test_a_store_left_with_an_error_cannot_be_opened(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), RaggedWriter(tmp_path / "split.side", vocab_size=97) as writer:
        writer.append(Ragged.join(SEQUENCES))
        raise KeyError
    with pytest.raises(FileNotFoundError):
        Ragged.open(tmp_path / "split.side")


def test_pairs_are_encoded_row_for_row_in_memory() -> None:
    tokenizer = Tokenizer.train(["a b c", "d e f"], vocab_size=11)
    pairs = encode_pairs(Vocabularies.joint(tokenizer), ["a b", "", "c"], ["d", "e f", ""])
    assert len(pairs) == 3
    assert tokenizer.decode(list(pairs.source)) == ["a b", "", "c"]
    assert tokenizer.decode(list(pairs.target)) == ["d", "e f", ""]
    with pytest.raises(ValueError, match="must be as many, got 2 and 1"):
        encode_pairs(Vocabularies.joint(tokenizer), ["a", "b"], ["c"])
