"""task=serve as a user starts it: under load, past its limits, when it is told to end, and in a browser."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import SECONDS, Browser
from conftest import SMALL, command, composed, environment, write_checkpoint

from aiayn.commands.serve import serve
from aiayn.inference import translation

pytestmark = pytest.mark.slow
WORDS = ["one", "two", "three", "dogs", "cats", "run", "sleep", "in", "the", "snow", "today"]
SENTENCES = [" ".join(WORDS[start : start + size]) for size in (1, 3, 5, 7) for start in range(len(WORDS) - size + 1)]
DECODING = {"beam": 3, "max_extra_length": 7}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a random model, whose choices are clear."""
    path = tmp_path_factory.mktemp("served") / "random.ckpt"
    return write_checkpoint(path, *SMALL, "name=random", words=WORDS, seed=5, step=7)


@pytest.fixture(scope="module")
def alone(file: Path) -> dict[str, list[str]]:
    """The n-best list of each sentence, translated alone."""
    own = translation.load(file, accelerator="cpu", **DECODING)
    texts = {sentence: [found.text for found in own.n_best([sentence], 3)[0]] for sentence in SENTENCES}
    assert all(len(set(best)) == 3 for best in texts.values())
    return texts


@contextmanager
def served(
    file: Path, *overrides: str, limit_of_files: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service of its own, and its address."""
    decoding = [f"inference.{key}={value}" for key, value in DECODING.items()]
    line = command("task=serve", f"checkpoint={file}", "port=0", "trainer=cpu", *decoding, *overrides)
    if limit_of_files:
        line = ["sh", "-c", f'ulimit -n {limit_of_files} && exec "$@"', "sh", *line]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, env=environment(), cwd=file.parent, **pipes) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), process.stderr and process.stderr.read()
            yield process, address
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """What the service logged, once a signal has ended it."""
    process.send_signal(number)
    output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (0, ""), errors
    assert all(re.match(r"\[\d\d:\d\d:\d\d\] ", line) for line in errors.splitlines()), errors
    return errors


async def ask(
    address: str,
    questions: list[dict[str, Any]],
    *,
    sent: Callable[[], None] = lambda: None,
    seen: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Ask all at once, each on a connection of its own; a response for each, or why there is none.

    Args:
        address: Of the service.
        questions: Bodies of the requests.
        sent: Called for each request that is sent.
        seen: Called for each response.
    """
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=SECONDS, limits=limits, trust_env=False) as client:

        async def trace(event: str, info: dict[str, Any]) -> None:
            if event == "http11.send_request_body.complete":
                sent()

        async def one(question: dict[str, Any]) -> httpx.Response:
            response = await client.post("/translate", json=question, extensions={"trace": trace})
            seen()
            return response

        return await asyncio.gather(*map(one, questions), return_exceptions=True)


def assert_as_alone(question: dict[str, Any], response: httpx.Response, alone: dict[str, list[str]]) -> None:
    for sentence, found in zip(question["sentences"], response.json()["translations"], strict=True):
        # When a search stops, for this request or another one, does not change which are the best.
        assert [one["text"] for one in found["n_best"]] == alone[sentence][: question["n_best"]]
        assert {key: found[key] for key in found["n_best"][0]} == found["n_best"][0]
        scores = [one["score"] for one in found["n_best"]]
        assert scores == sorted(scores, reverse=True)


def test_hundreds_of_requests_at_once_are_answered_as_each_alone(file: Path, alone: dict[str, list[str]]) -> None:
    questions: list[dict[str, Any]] = [
        {
            "sentences": [SENTENCES[(number + other) % len(SENTENCES)] for other in range(1 + number % 3)],
            "n_best": 1 + number % 3,
        }
        for number in range(331)
    ]
    with served(file) as (process, address):
        responses = asyncio.run(ask(address, questions))
        for question, response in zip(questions, responses, strict=True):
            assert not isinstance(response, BaseException), response
            assert response.status_code == 200, response.text
            assert_as_alone(question, response, alone)
        about = health(address)
        count = sum(len(question["sentences"]) for question in questions)
        assert (about["status"], about["model"], about["step"]) == ("ok", "random", 7)
        assert (about["waiting"], about["served"]) == (0, count)
        assert f"sentences translated: {count}" in ended(process)


def test_past_the_limits_requests_are_refused_and_the_others_answered(file: Path, alone: dict[str, list[str]]) -> None:
    questions: list[dict[str, Any]] = [{"sentences": [SENTENCES[0]] * 3, "n_best": 1} for _ in range(101)]
    limits = ["limits.max_waiting=13", "limits.max_sentences=13", "limits.max_batch=3", "limits.max_tokens=50"]
    with served(file, *limits) as (process, address):
        requests = iter(range(len(questions)))

        def sent() -> None:
            if next(requests) == len(questions) - 1:
                process.send_signal(signal.SIGCONT)

        process.send_signal(signal.SIGSTOP)  # until all have asked, as slow clients would never be too many
        responses = asyncio.run(ask(address, questions, sent=sent))
        codes = Counter(response.status_code for response in responses)
        assert set(codes) == {200, 429}, codes
        assert codes[200] >= 5  # one that the model works on, and four that wait
        for question, response in zip(questions, responses, strict=True):
            if response.status_code == 200:
                assert_as_alone(question, response, alone)
            else:
                assert response.headers["Retry-After"] == "1"
                assert re.fullmatch(r"\d+ sentences wait, and at most 13 may; .*", response.json()["error"])
        (long, large) = asyncio.run(ask(address, [{"text": "dogs " * 51}, {"text": "x" * 10**6}]))
        assert (long.status_code, large.status_code) == (413, 413)
        assert "at most 50" in long.json()["error"]
        ended(process, signal.SIGINT)


def test_told_to_end_under_load_it_finishes_what_runs_and_refuses_the_rest(
    file: Path, alone: dict[str, list[str]]
) -> None:
    questions: list[dict[str, Any]] = [
        {"sentences": SENTENCES[number : number + 3], "n_best": 1} for number in [0, 9] * 99
    ]
    with served(file, "limits.max_batch=3") as (process, address):
        answers = iter(range(len(questions)))

        def seen() -> None:
            if next(answers) == 7:
                process.send_signal(signal.SIGTERM)

        responses = asyncio.run(ask(address, questions, seen=seen))
        logged = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0, logged
    assert "Traceback" not in logged
    codes = Counter(getattr(response, "status_code", type(response)) for response in responses)
    assert codes[200] >= 8
    assert codes[503] > 0
    assert set(codes) <= {200, 503, httpx.ConnectError}, codes  # what comes too late finds the door closed
    for question, response in zip(questions, responses, strict=True):
        if getattr(response, "status_code", None) == 200:
            assert_as_alone(question, response, alone)
        elif isinstance(response, httpx.Response):
            assert response.json() == {"error": "the service ends; nothing was translated"}


def connected(address: str, sent: bytes) -> socket.socket:
    """A connection on which so much was sent."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=SECONDS)
    connection.sendall(sent)
    return connection


def health(address: str) -> dict[str, Any]:
    """What the service says of itself."""
    return httpx.get(f"{address}/health", timeout=SECONDS, trust_env=False).json()


HALF_A_BODY = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


def test_half_a_body_is_not_waited_for(file: Path) -> None:
    with served(file) as (process, address), connected(address, HALF_A_BODY) as connection:
        answer = connection.makefile("rb").read().decode()
        assert answer.startswith("HTTP/1.1 408 ")
        assert answer.endswith('{"error":"the body did not come in 5 seconds"}')
        with connected(address, HALF_A_BODY):
            time.sleep(0.5)
            start = time.monotonic()
            ended(process)
            assert time.monotonic() - start < 30


def test_answers_that_nobody_takes_do_not_keep_the_service(file: Path) -> None:
    body = json.dumps({"sentences": SENTENCES, "n_best": 3, "attention": True}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        served(file, "limits.max_attention_tokens=997") as (process, address),
        connected(address, (head + body) * 97),
    ):
        limit = time.monotonic() + SECONDS
        before, now = 0, 0
        while not now or now > before:  # it goes on until the system's buffers are full
            assert time.monotonic() < limit
            time.sleep(2)
            before, now = now, health(address)["served"]
        assert now < 97 * len(SENTENCES)
        ended(process)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_told_twice_it_ends_at_once(file: Path, second: signal.Signals) -> None:
    with served(file) as (process, address), connected(address, HALF_A_BODY) as connection:
        health(address)  # it has read the half body by then
        process.send_signal(signal.SIGTERM)
        limit = time.monotonic() + SECONDS
        with suppress(ConnectionRefusedError):  # once it has begun to end
            while time.monotonic() < limit:
                connected(address, b"").close()
                time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(second)
        output, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, output) == (128 + second, "")
        assert connection.makefile("rb").read() == b""  # the 408 for the half body was not waited for
        assert "Traceback" not in errors


def test_connections_without_a_request_neither_stop_the_service_nor_fill_its_log(file: Path) -> None:
    with served(file, limit_of_files=200) as (process, address):
        connections = [connected(address, b"GET /health HTTP/1.1\r\nHo") for _ in range(251)]
        limit = time.monotonic() + SECONDS
        answer = None
        while answer is None and time.monotonic() < limit:
            with suppress(httpx.TransportError):
                answer = httpx.get(f"{address}/health", trust_env=False)
            time.sleep(0.2)
        assert answer is not None
        assert answer.json()["status"] == "ok"
        for connection in connections:
            connection.close()
        assert len(ended(process).splitlines()) < 9


def test_what_cannot_be_served_is_refused_in_a_line(file: Path) -> None:
    with served(file) as (process, address):
        port = address.rpartition(":")[2]
        for overrides, words in (
            (
                [f"port={port}", f"checkpoint={file}"],
                f"error: cannot listen at 127.0.0.1, port {port}: Address already",
            ),
            (["port=0", "checkpoint=/nowhere.ckpt"], "error: checkpoint=/nowhere.ckpt does not exist; "),
        ):
            second = subprocess.run(
                command("task=serve", *overrides), env=environment(), capture_output=True, text=True, timeout=SECONDS
            )
            assert second.returncode == 1
            assert second.stderr.startswith(words)
            assert len(second.stderr.splitlines()) == 1
        ended(process)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("port=true", "port must be a whole number from 0"),
        ("port=70000", "port must be a whole number from 0"),
        ("host=", "host must be a name or an address, got ''"),
        ("host=null", "host must be a name or an address, got None"),
        ("limits=null", "limits must have the keys max_tokens, .*; got None"),
        ("+limits.more=1", "limits must have the keys max_tokens, "),
        ("~limits.max_batch", "limits must have the keys max_tokens, "),
        ("limits.max_tokens=true", r"limits\.max_tokens must be a whole number of at least 1, got True"),
    ],
)
def test_what_means_nothing_is_refused_before_a_checkpoint_is_read(override: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        serve(composed("task=serve", "checkpoint=/nowhere.ckpt", "port=0", override))


@pytest.mark.parametrize("width", [1200, 380])
def test_a_person_types_a_sentence_and_sees_what_the_model_makes_of_it(
    file: Path, alone: dict[str, list[str]], chromium: str, tmp_path: Path, width: int
) -> None:
    sentence = SENTENCES[-1]
    with served(file, "limits.max_attention_tokens=31", "limits.max_tokens=97") as (process, address):
        browser = Browser(chromium, tmp_path / "profile", width)
        try:
            browser.call("Page.navigate", url=address)
            assert "7" in browser.until("document.getElementById('about')?.textContent")
            browser.type(sentence)
            assert browser.until("document.getElementById('translation').textContent") == alone[sentence][0]
            rows = browser.value("[...document.querySelectorAll('#candidates tr')].map((row) => row.innerText)")
            assert [row.split("\t")[0] for row in rows] == alone[sentence]
            # A narrow page leaves the second figure out.
            assert all(re.fullmatch(r"-\d+\.\d+(\t-\d+\.\d+)?", row.split("\t", 1)[1]) for row in rows)
            labels = browser.value(
                "[...document.querySelectorAll('#attention svg text')].map((one) => one.textContent)"
            )
            drawn = re.sub("[\u00b7\u2423]", "", "".join(labels))  # marks of what goes on a word, and of a space alone
            assert drawn.count(sentence.replace(" ", "")) == 2  # the encoder's queries and keys
            assert browser.value("document.querySelectorAll('#attention svg line').length") > 0
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.complaints() == []

            browser.value("document.getElementById('text').select()")
            browser.type("<b onclick=x>&" + " dogs" * 20)  # too long for attention, not for the model
            assert "attention is for at most 31 tokens" in browser.until(
                "document.getElementById('unseen').textContent"
            )
            assert browser.value("document.querySelectorAll('#attention *').length") == 0
            browser.value("document.getElementById('text').select()")
            browser.type("dogs " * 100)
            assert "at most 97" in browser.until("document.getElementById('message').textContent")
            assert browser.value("document.getElementById('result').hidden")
            ended(process)
            browser.type(sentence)
            assert browser.until("document.getElementById('message').textContent.includes('does not answer')")
        finally:
            browser.close()
