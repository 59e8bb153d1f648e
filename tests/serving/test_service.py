"""The service over HTTP, with a small random model: what it answers, and what it refuses and how."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from aiayn.commands.serve import attention_of
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.data.trees import leaves
from aiayn.inference.translation import Translator, translator
from aiayn.model.model import Model
from aiayn.model.position.learned import LearnedPosition
from aiayn.serving import service as service_module
from aiayn.serving.service import Limits, Service

SENTENCES = ["one dog runs", "two cats play in the snow", "ein Hund rennt", "zwei Katzen spielen im Schnee"]
LIMITS = {
    "max_tokens": 23,
    "max_attention_tokens": 19,
    "max_sentences": 5,
    "max_bytes": 3001,
    "max_waiting": 7,
    "max_batch": 3,
}
BEAM = 3


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    return Vocabularies.joint(Tokenizer.train(SENTENCES, vocab_size=43))


@pytest.fixture
def model(build: Callable[..., Model], vocabularies: Vocabularies) -> Model:
    return build(**vocabularies.sizes)


@pytest.fixture
def own(model: Model, vocabularies: Vocabularies) -> Translator:
    return translator(model, vocabularies, beam=BEAM, alpha=0.6, max_extra_length=5, tokens_per_batch=101)


@pytest.fixture
def service(own: Translator, model: Model) -> Service:
    shows = attention_of(model, own.vocabularies)
    return Service(own, beam=BEAM, limits=Limits(**LIMITS), about={"model": "random", "step": 7}, attend=shows)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(service.app()) as client:
        yield client


def test_sentences_get_the_translations_of_the_translator_in_order(client: TestClient, own: Translator) -> None:
    answer = client.post("/translate", json={"sentences": SENTENCES}).json()
    assert [found["text"] for found in answer["translations"]] == own.translate(SENTENCES)
    assert all(set(found) == {"text", "score", "log_probability", "n_best"} for found in answer["translations"])


def test_a_parsers_answers_have_the_tree_of_their_words(build: Callable[..., Model]) -> None:
    text = ["the dog ( runs", "(S (NP XX XX )NP XX XX )S"]
    vocabularies = Vocabularies.joint(Tokenizer.train(text, vocab_size=27, symbols=["(S", "(NP", ")NP", ")S", "XX"]))
    own = translator(
        build(**vocabularies.sizes), vocabularies, beam=BEAM, alpha=0.6, max_extra_length=5, tokens_per_batch=101
    )
    service = Service(own, beam=BEAM, limits=Limits(**LIMITS), about={}, attend=None)
    sentences = ["the  dog (", "", "runs"]
    with TestClient(service.app()) as client:
        found = client.post("/translate", json={"sentences": sentences, "n_best": 2}).json()["translations"]
    assert [one["tree"] for one in found] == own.parse(sentences)
    assert leaves(found[0]["tree"])[0] == ["the", "dog", "-LRB-"]
    assert found[1]["tree"] == ""


def test_an_n_best_list_has_scores_and_begins_with_the_best(client: TestClient, own: Translator) -> None:
    (found,) = client.post("/translate", json={"text": SENTENCES[1], "n_best": BEAM}).json()["translations"]
    expected = own.n_best([SENTENCES[1]], BEAM)[0]
    assert [one["text"] for one in found["n_best"]] == [one.text for one in expected]
    assert [one["score"] for one in found["n_best"]] == pytest.approx([one.score for one in expected])
    assert {key: found[key] for key in found["n_best"][0]} == found["n_best"][0]


def test_attention_has_a_row_for_each_token_and_rows_sum_to_one(
    client: TestClient, own: Translator, model: Model
) -> None:
    question: dict[str, Any] = {"sentences": [SENTENCES[0], ""], "attention": True}
    translations = client.post("/translate", json=question).json()["translations"]
    for sentence, found in zip(question["sentences"], translations, strict=True):
        attention = found["attention"]
        source, target = attention["source"], attention["target"]
        assert (source[-1], target[0]) == ("</s>", "<s>")
        expected = own.n_best([sentence], 1)[0][0].tokens
        assert [len(source), len(target)] == [len(own.vocabularies.source.encode([sentence])[0]) + 1, len(expected) + 1]
        for kind, query, key in (("encoder", source, source), ("decoder", target, target), ("cross", target, source)):
            layers = attention[kind]
            assert len(layers) == len(model.encoder.layers)
            for head in (head for layer in layers for head in layer):
                assert [len(row) for row in head] == [len(key)] * len(query)
                assert [sum(row) for row in head] == pytest.approx([1] * len(query), abs=1e-2)  # rounded


@pytest.mark.parametrize(
    "text", ["", " \t ", "\u0000\u0007\u001b[31m", "\u4f60\u597d \U0001f600", "a\rb\u2028c\u0085d\n", "<b>&"]
)
def test_any_text_gets_an_answer(client: TestClient, own: Translator, text: str) -> None:
    response = client.post("/translate", json={"text": text})
    assert response.status_code == 200
    assert response.json()["translations"][0]["text"] == own.translate([text])[0]


LONG = " ".join(["dog"] * 30)


@pytest.mark.parametrize(
    ("question", "code", "words"),
    [
        ({"text": LONG}, 413, r"sentence 1 has \d\d tokens; at most 23"),
        ({"sentences": ["dog", LONG]}, 413, "sentence 2 has"),
        ({"sentences": ["dog"] * 6}, 413, "6 sentences are too many; at most 5"),
        ({"sentences": [SENTENCES[1]] * 2, "attention": True}, 413, "attention is for at most 19 tokens together"),
        ({"text": "x" * 3001}, 413, "more than 3,001 bytes"),
        ({"sentences": ["a", "b\nc"]}, 422, "sentence 2 has a line feed inside; give each line as a sentence"),
        ({"text": "a\n\n"}, 422, "sentence 1 has a line feed"),
        ({}, 422, 'either "text"'),
        ({"text": "a", "sentences": ["b"]}, 422, 'either "text"'),
        ({"sentences": []}, 422, "sentences: .*at least 1"),
        ({"sentences": ["a", 1, None, 2, 3]}, 422, r"sentences\.1: .*string.*; and 1 more"),
        ({"text": "a", "n_best": 0}, 422, "n_best: .*greater than or equal to 1"),
        ({"text": "a", "n_best": 4}, 422, "n_best must be from 1 to the beam's width 3, got 4"),
        ({"text": "a", "n_best": "2"}, 422, "n_best: .*integer"),
        ({"text": "a", "nbest": 2}, 422, "nbest: "),
        ([], 422, "object"),
    ],
)
def test_what_is_refused_is_told_in_words(client: TestClient, question: Any, code: int, words: str) -> None:
    response = client.post("/translate", json=question)
    assert response.status_code == code
    assert set(response.json()) == {"error"}
    assert re.search(words, response.json()["error"])


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 2000, b'{"text": "\\ud800"}', b'{"text": "a", "n_best": NaN}']
)
def test_a_body_that_is_no_json_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post("/translate", content=body)
    assert response.status_code == 422
    assert "\n" not in response.json()["error"]


@pytest.mark.parametrize("key", ["k" * 2000, "two\nlines"])
def test_an_error_is_one_short_line_whatever_was_sent(client: TestClient, key: str) -> None:
    words = client.post("/translate", json={"text": "a", key: 1}).json()["error"]
    assert len(words) < 400
    assert "\n" not in words


def test_a_body_that_does_not_come_is_not_waited_for(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "BODY", 0.05)
    scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [], "query_string": b""}
    messages = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(service.app()(scope, receive, send), 10))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert sent[1]["body"] == b'{"error":"the body did not come in 0.05 seconds"}'


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 200),  # what curl -d says
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "https://TESTSERVER"}, 200),  # a proxy may have taken the encryption off
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "http://testserver:81"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Host": "evil.com", "Origin": "http://evil.com"}, 200),  # not local: it may be called so
    ],
)
def test_pages_of_other_sites_are_refused(client: TestClient, headers: dict[str, str], code: int) -> None:
    response = client.post("/translate", content=b'{"text": "dog"}', headers=headers)
    assert response.status_code == code
    assert client.get("/health", headers=headers).status_code == code
    if code == 403:
        assert "may not use the service at Host: testserver" in response.json()["error"]


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("127.3.5.7", 200),
        ("[::1]:8000", 200),
        ("evil.com", 403),
        ("127.0.0.1.evil.com:8000", 403),
        ("localhost.evil.com", 403),
        ("192.168.0.7", 403),
        ("[::1", 403),
        ("evil@127.0.0.1", 403),
        ("localhost/evil.com", 403),
        ("localhost:evil.com", 403),
        ("", 403),
    ],
)
def test_a_local_service_answers_to_local_names_only(own: Translator, host: str, code: int) -> None:
    service = Service(own, beam=BEAM, limits=Limits(**LIMITS), about={}, attend=None, local=True)
    client = TestClient(service.app())
    for path in ("/", "/health", "/openapi.json"):
        assert client.get(path, headers={"Host": host}).status_code == code
    if code == 200:
        origin = {"Host": host, "Origin": f"http://{host}"}
        assert client.post("/translate", json={"text": "dog"}, headers=origin).status_code == 200


def test_attention_is_left_out_where_the_model_never_read_the_sentence_as_a_whole(
    build: Callable[..., Model], vocabularies: Vocabularies
) -> None:
    model = build(**vocabularies.sizes, position=partial(LearnedPosition, max_length=7))
    own = translator(model, vocabularies, beam=BEAM, alpha=0.6, max_extra_length=5, tokens_per_batch=101)
    limits = Limits(**{**LIMITS, "max_attention_tokens": 101})
    service = Service(own, beam=BEAM, limits=limits, about={}, attend=attention_of(model, vocabularies))
    question = {"sentences": ["dog", " ".join(["dog"] * 7), ""], "attention": True}
    with TestClient(service.app()) as client:
        short, long, empty = client.post("/translate", json=question).json()["translations"]
        silent = client.post("/translate", json={**question, "attention": False}).json()["translations"]
    assert "attention" not in long
    assert "was translated in pieces" in long["note"]
    assert all("attention" in found and "note" not in found for found in (short, empty))
    assert not any("note" in found for found in silent)


def test_a_model_without_attention_says_so_and_translates(own: Translator) -> None:
    service = Service(own, beam=BEAM, limits=Limits(**LIMITS), about={}, attend=None)
    with TestClient(service.app()) as client:
        refused = client.post("/translate", json={"text": "dog", "attention": True})
        assert (refused.status_code, refused.json()["error"][:27]) == (422, "this model has no attention")
        assert client.post("/translate", json={"text": "dog"}).status_code == 200
        assert client.get("/health").json()["attention"] is False


def test_a_failing_model_is_told_and_the_service_goes_on(own: Translator, caplog: pytest.LogCaptureFixture) -> None:
    decode = own.decode

    def fails_once(*arguments: Any, **options: Any) -> Any:
        own.decode = decode
        raise RuntimeError("out of memory")

    own.decode = fails_once
    service = Service(own, beam=BEAM, limits=Limits(**LIMITS), about={}, attend=None)
    with TestClient(service.app()) as client:
        response = client.post("/translate", json={"text": "dog"})
        assert response.status_code == 500
        assert response.json() == {"error": "the model failed: RuntimeError: out of memory"}
        assert client.post("/translate", json={"text": "dog"}).status_code == 200
    assert "Traceback" in caplog.text


def held(own: Translator) -> tuple[threading.Event, threading.Event]:
    """Let the model begin, and go on, only when these are set: that it began, and that it may go on."""
    decode, began, may_go_on = own.decode, threading.Event(), threading.Event()

    def wait(*arguments: Any, **options: Any) -> Any:
        began.set()
        assert may_go_on.wait(10)
        return decode(*arguments, **options)

    own.decode = wait
    return began, may_go_on


def test_while_too_much_waits_requests_are_sent_away_for_a_while(own: Translator) -> None:
    began, may_go_on = held(own)
    service = Service(own, beam=BEAM, limits=Limits(**LIMITS), about={}, attend=None)
    codes: list[int] = []
    with TestClient(service.app()) as client:

        def ask(sentences: int) -> None:
            codes.append(client.post("/translate", json={"sentences": ["dog"] * sentences}).status_code)

        threads = [threading.Thread(target=ask, args=(count,)) for count in (1, 5)]
        for thread in threads:
            thread.start()
            assert began.wait(10)
        limit = time.monotonic() + 10
        while client.get("/health").json()["waiting"] < 5:
            assert time.monotonic() < limit
            time.sleep(0.01)
        refused = client.post("/translate", json={"sentences": ["dog"] * 3})
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"] == "5 sentences wait, and at most 7 may; ask again in a second"
        may_go_on.set()
        for thread in threads:
            thread.join()
        health = client.get("/health").json()
    assert codes == [200, 200]
    assert (health["waiting"], health["served"]) == (0, 6)


def test_a_client_that_goes_away_is_dropped(own: Translator) -> None:
    began, may_go_on = held(own)
    service = Service(own, beam=BEAM, limits=Limits(**LIMITS), about={}, attend=None)
    scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [], "query_string": b""}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def request(*messages: dict[str, Any]) -> None:
        left = list(messages)

        async def receive() -> dict[str, Any]:
            return left.pop(0) if left else await asyncio.Event().wait()

        await app(dict(scope), receive, send)

    body, gone = {"type": "http.request", "body": b'{"text": "dog"}'}, {"type": "http.disconnect"}
    app = service.app()

    async def play() -> None:
        stays = asyncio.create_task(request(body))
        await asyncio.to_thread(began.wait, 10)
        await request(body, gone)
        await request({**body, "more_body": True}, gone)
        assert service.batcher.waiting == 0
        may_go_on.set()
        await stays

    asyncio.run(asyncio.wait_for(play(), 20))
    assert [message["status"] for message in sent if "status" in message] == [499, 499, 200]
    assert service.batcher.served == 1


def test_health_says_what_is_served(client: TestClient) -> None:
    client.post("/translate", json={"sentences": ["dog"] * 2})
    health = client.get("/health").json()
    assert health.pop("uptime") > 0
    about = {"model": "random", "step": 7, "beam": BEAM, "attention": True}
    assert health == {"status": "ok", **about, "waiting": 0, "served": 2}


def test_the_page_needs_nothing_else_and_lets_nothing_else_run(client: TestClient) -> None:
    first, second = client.get("/"), client.get("/")
    policy = first.headers["Content-Security-Policy"]
    (nonce,) = set(re.findall("nonce-([^']+)", policy))
    assert nonce not in second.text
    assert "default-src 'none'" in policy
    assert first.text.count(f'nonce="{nonce}"') == len(re.findall("<(?:script|style)", first.text)) == 3
    assert "function drawAttention(" in first.text
    assert "const abilities" in first.text
    assert not re.findall(r"\$nonce|\$script|(?:src|href)=(?!\"data:,)|https?://(?!www\.w3\.org/2000/svg)", first.text)


def test_other_paths_and_methods_are_told_in_words(client: TestClient) -> None:
    assert client.get("/nothing").json() == {"error": "Not Found"}
    assert client.get("/translate").status_code == 405
    for path in ("/", "/health"):
        head = client.head(path)
        assert (head.status_code, head.text) == (200, "")
    assert client.get("/docs").status_code == 404  # it would load scripts from elsewhere
    interface = client.get("/openapi.json").json()["paths"]["/translate"]["post"]
    assert "n_best" in interface["requestBody"]["content"]["application/json"]["schema"]["properties"]


@pytest.mark.parametrize("value", [0, -1, "many", None, 1.5, True])
def test_a_limit_that_means_nothing_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"limits\.max_tokens must be a whole number of at least 1"):
        Limits(**{**LIMITS, "max_tokens": value})


def test_a_request_that_could_never_wait_is_no_limit() -> None:
    with pytest.raises(ValueError, match=r"limits\.max_waiting must be at least limits\.max_sentences, got 4 and 5"):
        Limits(**{**LIMITS, "max_waiting": 4})
