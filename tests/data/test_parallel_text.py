import gzip
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from aiayn.data.corpora.hub import HubText
from aiayn.data.corpora.multi30k import multi30k
from aiayn.data.corpora.text import TextFiles
from aiayn.data.parallel_text import read_lines

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
WMT14 = {"name": "wmt/wmt14", "subset": "de-en", "source_language": "en", "target_language": "de"}


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, dict[str, Path]]:
    """Three pairs in train, two in dev."""
    return {
        "train": {
            "source": write(tmp_path / "train.en", "a\nb\nc\n"),
            "target": write(tmp_path / "train.de", "x\ny\nz\n"),
        },
        "dev": {"source": write(tmp_path / "dev.en.gz", "d\ne\n"), "target": write(tmp_path / "dev.de.gz", "v\nw\n")},
    }


@pytest.fixture
def wmt14(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A local data set with the columns and the folders of wmt/wmt14."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    (tmp_path / "wmt14" / "de-en").mkdir(parents=True)
    for split, size in {"train": 11, "validation": 3, "test": 2}.items():
        rows = [{"translation": {"de": f"Satz {row}", "en": f"sentence {row}"}} for row in range(size)]
        table = datasets.Dataset.from_list(rows)
        table.to_parquet(tmp_path / "wmt14" / "de-en" / f"{split}-00000-of-00001.parquet")
    yield tmp_path / "wmt14"
    datasets.enable_progress_bars()


def test_files_yield_their_lines_in_order(files: dict) -> None:
    corpus = TextFiles(**files)
    assert corpus.splits() == ["train", "dev"]
    assert list(corpus.pairs("train")) == [("a", "x"), ("b", "y"), ("c", "z")]
    assert list(corpus.pairs("dev")) == [("d", "v"), ("e", "w")]


def test_lists_of_files_are_read_one_after_the_other(files: dict) -> None:
    train = {side: [files["train"][side], files["dev"][side]] for side in ("source", "target")}
    assert list(TextFiles(train=train, dev=files["dev"]).pairs("train"))[2:4] == [("c", "z"), ("d", "v")]


def test_lines_end_at_line_feeds_only(tmp_path: Path, files: dict) -> None:
    source = write(tmp_path / "odd.en", "one\u0085two\r\nthree\u2028four\n\nlast without a line feed")
    target = write(tmp_path / "odd.de", "1\n2\n3\n4")
    corpus = TextFiles(train={"source": source, "target": target}, dev=files["dev"])
    expected = ["one\u0085two", "three\u2028four", "", "last without a line feed"]
    assert [sentence for sentence, _ in corpus.pairs("train")] == expected


@pytest.mark.parametrize(("lines", "count"), [("x\ny\n", 2), ("x\ny\nz\n1\n2\n", 5), ("", 0)])
def test_unequal_line_counts_are_named(tmp_path: Path, files: dict, lines: str, count: int) -> None:
    files["train"]["target"] = write(tmp_path / "other.de", lines)
    with pytest.raises(ValueError, match=rf"got 3 in .*train\.en and {count} in .*other\.de"):
        list(TextFiles(**files).pairs("train"))


@pytest.mark.parametrize("name", ["bytes.de", "bytes.de.gz"])
def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path, files: dict, name: str) -> None:
    files["train"]["target"] = write(tmp_path / name, b"x\nM\xfcnchen\nz\n")
    with pytest.raises(ValueError, match=rf"{name}, line 2, is not UTF-8"):
        list(TextFiles(**files).pairs("train"))


def test_an_empty_corpus_is_refused(tmp_path: Path, files: dict) -> None:
    files["train"] = {side: write(tmp_path / f"empty.{side}", "") for side in ("source", "target")}
    with pytest.raises(ValueError, match=r"data\.train is empty"):
        list(TextFiles(**files).pairs("train"))


def test_a_truncated_gzip_file_is_refused(tmp_path: Path, files: dict) -> None:
    whole = gzip.compress("".join(f"{number * 7919}\n" for number in range(1009)).encode())
    truncated = tmp_path / "cut.de.gz"
    truncated.write_bytes(whole[: len(whole) // 2])
    files["train"] = {"source": truncated, "target": truncated}
    with pytest.raises(ValueError, match=r"cut\.de\.gz cannot be read after line"):
        list(TextFiles(**files).pairs("train"))


def test_a_missing_file_is_refused_when_its_split_is_read(files: dict) -> None:
    corpus = TextFiles(train={"source": "nowhere.en", "target": "nowhere.de"}, dev=files["dev"])
    assert list(corpus.pairs("dev"))
    for read in (lambda: list(corpus.pairs("train")), corpus.fingerprint):
        with pytest.raises(ValueError, match=r"data\.train\.source=nowhere\.en is not a file"):
            read()


def test_a_side_that_is_not_given_is_refused(files: dict) -> None:
    with pytest.raises(ValueError, match=r"data\.train\.target is missing"):
        TextFiles(train={"source": files["train"]["source"], "target": None}, dev=files["dev"]).fingerprint()


def test_lists_of_unequal_length_are_refused(files: dict) -> None:
    train = {"source": [files["train"]["source"]] * 2, "target": [files["train"]["target"]]}
    with pytest.raises(ValueError, match=r"data\.train needs as many source files as target files, got 2 and 1"):
        TextFiles(train=train, dev=files["dev"]).fingerprint()


def test_the_test_split_may_be_left_out(files: dict) -> None:
    corpus = TextFiles(**files, test={"source": None, "target": None})
    assert corpus.splits() == ["train", "dev"]
    with pytest.raises(ValueError, match=r"data\.split=test does not exist: this corpus has train, dev"):
        next(corpus.pairs("test"))


def test_the_fingerprint_follows_the_text(tmp_path: Path, files: dict) -> None:
    before = TextFiles(**files).fingerprint()
    json.dumps(before)
    copy = dict(
        files,
        train={side: write(tmp_path / f"copy.{side}", path.read_bytes()) for side, path in files["train"].items()},
    )
    assert TextFiles(**copy).fingerprint() == before
    write(files["train"]["target"], "x\ny\nZ\n")
    assert TextFiles(**files).fingerprint() != before


def test_hub_text_reads_the_columns_of_wmt14(wmt14: Path) -> None:
    corpus = HubText(**WMT14, path=wmt14)
    assert corpus.splits() == ["train", "dev", "test"]
    assert list(corpus.pairs("train")) == [(f"sentence {row}", f"Satz {row}") for row in range(11)]
    assert [len(list(corpus.pairs(split))) for split in ("dev", "test")] == [3, 2]


def test_hub_text_reads_flat_columns_from_one_file(wmt14: Path, tmp_path: Path) -> None:
    rows = [{"en": "a\nb", "de": "x", "id": 1}, {"en": None, "de": "y", "id": 2}]
    path = write(tmp_path / "flat.jsonl", "\n".join(json.dumps(row) for row in rows))
    corpus = HubText(name="flat", source_language="en", target_language="de", splits={"train": "train"}, path=path)
    assert list(corpus.pairs("train")) == [("a b", "x"), ("", "y")]
    absent = HubText(name="flat", source_language="en", target_language="fr", splits={"train": "train"}, path=path)
    with pytest.raises(ValueError, match="no column for language fr: it has en, de, id"):
        next(absent.pairs("train"))


def test_a_split_that_the_data_set_lacks_is_named(wmt14: Path) -> None:
    corpus = HubText(**WMT14, path=wmt14, splits={"train": "train", "dev": "newstest", "test": None})
    assert corpus.splits() == ["train", "dev"]
    with pytest.raises(ValueError, match="split newstest, cannot be read"):
        next(corpus.pairs("dev"))


def test_an_unreachable_hub_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the hub\nand a long story")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match=r"no route to the hub\. Connect to the network, or .*data\.path=") as error:
        next(HubText(**WMT14).pairs("train"))
    assert "\n" not in str(error.value)


def test_a_local_data_set_must_exist() -> None:
    with pytest.raises(ValueError, match=r"data\.path=nowhere does not exist"):
        HubText(**WMT14, path="nowhere")


def test_further_test_sets_have_names(tmp_path: Path) -> None:
    files = {
        split: {side: write(tmp_path / f"{split}.{side}", split) for side in ("source", "target")} for split in "abc"
    }
    corpus = TextFiles(train=files["a"], dev=files["b"], tests={"news-2015": files["c"]})
    assert corpus.splits() == ["train", "dev", "news-2015"]
    assert list(corpus.pairs("news-2015")) == [("c", "c")]
    assert "news-2015" in corpus.fingerprint()


@pytest.mark.parametrize("name", ["dev", "a/b", "..", "", "a b"])
def test_a_test_set_whose_name_is_taken_or_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.tests\.{re.escape(name)}: name a test set otherwise"):
        TextFiles(tests={name: {}})


def test_the_hub_fingerprint_follows_its_arguments(wmt14: Path) -> None:
    pinned = HubText(**WMT14, revision="2")
    assert pinned.fingerprint() != HubText(**WMT14).fingerprint()
    before = HubText(**WMT14, path=wmt14).fingerprint()
    write(wmt14 / "de-en" / "more.parquet", "changed")
    assert HubText(**WMT14, path=wmt14).fingerprint() != before


def test_multi30k_reads_its_folder() -> None:
    folder = SHARED / "multi30k"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data/multi30k")
    corpus = multi30k(path=folder, source_language="en", target_language="de", test_set="test_2017_mscoco")
    first = (
        "Two young, White males are outside near many bushes.",
        "Zwei junge wei\xdfe M\xe4nner sind im Freien in der N\xe4he vieler B\xfcsche.",
    )
    assert list(islice(corpus.pairs("train"), 1)) == [first]
    assert [sum(1 for _ in corpus.pairs(split)) for split in corpus.splits()[:3]] == [29000, 1014, 461]
    assert corpus.splits()[3:] == ["test_2016_flickr", "test_2017_flickr", "test_2018_flickr"]


def test_multi30k_without_a_folder_comes_from_the_hub() -> None:
    corpus = multi30k(path="nowhere", source_language="de", target_language="en", revision="7")
    assert corpus.fingerprint()["revision"] == "7"
    assert corpus.fingerprint()["name"] == "bentrevett/multi30k"
    with pytest.raises(ValueError, match=r"data\.test_set=test_2017_flickr needs the files"):
        multi30k(path=None, source_language="de", target_language="en", test_set="test_2017_flickr")


def test_a_byte_order_mark_is_text_only_behind_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert list(read_lines(tmp_path / "a")) == ["one", "\ufefftwo"]
    with (tmp_path / "a").open("rb") as file:
        file.readline()  # a stream is read from where it stands
        assert list(read_lines(file)) == ["two"]


def test_an_open_file_is_called_by_its_name(tmp_path: Path) -> None:
    written = write(tmp_path / "bytes", b"one\n\xff\n")
    with written.open("rb") as file, pytest.raises(ValueError, match=rf"^{written}, line 2, is not UTF-8"):
        list(read_lines(file))
