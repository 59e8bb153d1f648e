"""The HTTP service: `POST /translate`, `GET /health`, and a page for people at `GET /`.

What is refused gets a JSON object with one key, `error`, a line in words: 403 for a web page of another site, 408 for a
body that does not come, 413 for what is too long, 422 for what cannot be read, 429 while too much waits, 503 while the
service ends, 500 when the model failed. (What is no HTTP is told so by the server, with 400 and plain text.) A client
that goes away is noticed, and what it asked for is dropped unless the model works on it already.

Every web page can have its reader's browser send requests here. So one whose `Origin` is not the `Host` that it was
sent to is refused; and, by a service that listens on this machine alone, one whose `Host` is another's name, which may
have been pointed here after the page was loaded. A proxy in front on the same machine has to do the first check itself,
to send no `Origin`, and to send its own `Host`, as nginx does unless told otherwise.
"""

import asyncio
import ipaddress
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from aiayn.analysis.page import script
from aiayn.inference.translation import Translation, Translator, check_sentences, words_of
from aiayn.serving.batching import Batcher, FullError, ModelError, StoppedError
from aiayn.serving.messages import Answer, Attention, Question, explain, translated

Attend = Callable[[str, Translation], Attention | None]
Result = TypeVar("Result")
HERE = Path(__file__).parent
BODY = 5  # seconds in which a request's body has to come
LONGEST = 300  # characters of an error; some of them repeat what the client sent
PIECES = "no attention: the sentence has more tokens than the model has positions, and was translated in pieces"
NOBODY = Response(status_code=499)  # nginx's code for a client that went away; nobody reads it
# The page brings all it needs, and what it shows is text; so nothing else may be loaded or run, whatever a text holds.
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Limits:
    """What may be asked of the service.

    Attributes:
        max_tokens: Of a sentence.
        max_attention_tokens: Of a request's sentences together, when it asks for attention, whose size is their square.
        max_sentences: Of a request.
        max_bytes: Of a request's body.
        max_waiting: Sentences that wait, all requests together, those that the model works on not counted.
        max_batch: Sentences that the model translates together.
    """

    max_tokens: int
    max_attention_tokens: int
    max_sentences: int
    max_bytes: int
    max_waiting: int
    max_batch: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:  # True is an int, too
                raise ValueError(f"limits.{name} must be a whole number of at least 1, got {value}.")
        if self.max_sentences > self.max_waiting:
            raise ValueError(
                f"limits.max_waiting must be at least limits.max_sentences, got {self.max_waiting} and "
                f"{self.max_sentences}; a request of so many sentences could never wait."
            )


class Service:
    """Answers requests with a translator.

    Args:
        translator: Of the model.
        beam: Its width: the most translations of a sentence that can be asked for.
        limits: On requests.
        about: What `GET /health` says about the model.
        attend: Attention weights of a translation, None for one in pieces; None if the model has none to show.
        local: Whether it can be reached from this machine alone, so that no other `Host` can be right.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        beam: int,
        limits: Limits,
        about: Mapping[str, Any],
        attend: Attend | None,
        local: bool = False,
    ) -> None:
        self.translator = translator
        self.tokenizer = translator.vocabularies.source
        self.beam = beam
        self.limits = limits
        self.about = about
        self.attend = attend
        self.local = local
        self.batcher = Batcher(translator.n_best, max_waiting=limits.max_waiting, max_batch=limits.max_batch)
        self.start = time.monotonic()

    def app(self) -> FastAPI:
        """The application that a server runs."""

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            yield
            self.batcher.stop()

        # FastAPI's pages about an interface load their scripts from elsewhere, and its own route asks no dependency.
        app = FastAPI(title="aiayn", lifespan=lifespan, openapi_url=None, dependencies=[Depends(self.admit)])
        app.get("/openapi.json", include_in_schema=False)(app.openapi)
        body = {"content": {"application/json": {"schema": Question.model_json_schema()}}, "required": True}
        for path, answer in (("/", page), ("/health", self.health)):
            app.get(path)(answer)
            app.head(path, include_in_schema=False)(answer)
        app.post("/translate", response_model=Answer, openapi_extra={"requestBody": body})(self.translate)
        app.add_exception_handler(AnyHTTPException, in_words)
        return app

    async def admit(self, request: Request) -> None:
        """Refuse what a web page of another site has sent.

        Raises:
            HTTPException: that says which header tells so.
        """
        host = request.headers.get("host", "")
        if self.local and not is_this_machine(host):
            raise HTTPException(403, f"this service is for this machine alone, and not for Host: {host}")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise HTTPException(403, f"a page of Origin: {origin} may not use the service at Host: {host}")

    async def health(self) -> dict[str, Any]:
        """What it translates with, how many sentences wait, how many were translated, and the seconds it is up."""
        return {
            "status": "stopping" if self.batcher.stopped else "ok",
            **self.about,
            "beam": self.beam,
            "attention": self.attend is not None,
            "waiting": self.batcher.waiting,
            "served": self.batcher.served,
            "uptime": round(time.monotonic() - self.start, 3),
        }

    async def translate(self, request: Request) -> Response:
        """Translate the sentences of a `Question`."""
        try:
            question = Question.model_validate_json(await self._body(request))
        except ValidationError as error:
            raise HTTPException(422, explain(error)) from None
        except ClientDisconnect:
            return NOBODY
        self._check(question)
        answer = await unless_gone(request, self._answer(question))
        if answer is None:
            return NOBODY
        return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(BODY):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.max_bytes:
                        raise HTTPException(413, f"the request has more than {self.limits.max_bytes:,} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the body did not come in {BODY} seconds", {"Connection": "close"}) from None
        return bytes(body)

    def _check(self, question: Question) -> None:
        """Refuse what the model will not be asked.

        Raises:
            HTTPException: that says what is too much, and how much may be.
        """
        sentences, limits = question.asked(), self.limits
        if question.n_best > self.beam:
            raise HTTPException(422, f"n_best must be from 1 to the beam's width {self.beam}, got {question.n_best}")
        if question.attention and self.attend is None:
            raise HTTPException(422, "this model has no attention to show: it is an ensemble, or of another kind")
        if len(sentences) > limits.max_sentences:
            raise HTTPException(413, f"{len(sentences)} sentences are too many; at most {limits.max_sentences}")
        try:
            check_sentences(sentences)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        lengths = [len(tokens) for tokens in self.tokenizer.encode(sentences)]
        for number, length in enumerate(lengths, 1):
            if length > limits.max_tokens:
                raise HTTPException(413, f"sentence {number} has {length} tokens; at most {limits.max_tokens}")
        if question.attention and sum(lengths) > limits.max_attention_tokens:
            most = limits.max_attention_tokens
            raise HTTPException(413, f"attention is for at most {most} tokens together, and these are {sum(lengths)}")

    async def _answer(self, question: Question) -> Answer:
        sentences, parses = question.asked(), self.translator.parses
        if parses:
            sentences = [words_of(sentence) for sentence in sentences]
        attention: Sequence[Attention | None] = [None] * len(sentences)
        try:
            found = await self.batcher.translate(sentences, question.n_best)
            if question.attention and self.attend is not None:
                first = [translations[0] for translations in found]
                attention = await self.batcher.run(list, map(self.attend, sentences, first))
        except FullError:
            waiting = f"{self.batcher.waiting} sentences wait, and at most {self.limits.max_waiting} may"
            raise HTTPException(429, f"{waiting}; ask again in a second", {"Retry-After": "1"}) from None
        except StoppedError:
            raise HTTPException(503, "the service ends; nothing was translated", {"Connection": "close"}) from None
        except ModelError as error:
            raise HTTPException(500, f"the model failed: {error}") from None
        notes = [PIECES if question.attention and weights is None else None for weights in attention]
        best = [translations[0].text for translations in found]
        trees = map(self.translator.tree, sentences, best) if parses else [None] * len(found)
        return Answer(translations=list(map(translated, found, trees, attention, notes)))


async def in_words(request: Request, error: Exception) -> Response:
    """An HTTP error as JSON."""
    assert isinstance(error, AnyHTTPException)
    words = " ".join(error.detail.split())
    shown = words if len(words) <= LONGEST else f"{words[:LONGEST]}..."
    return JSONResponse({"error": shown}, error.status_code, error.headers)


def is_this_machine(host: str) -> bool:
    """Whether a `Host`, with or without a port, means this machine wherever it is said."""
    try:
        parts = urlsplit(f"//{host}")
        name = parts.hostname or ""
        known = name == "localhost" or ipaddress.ip_address(name).is_loopback
        return known and parts.port != 0 and parts.netloc == host and "@" not in host  # no more than a name and a port
    except ValueError:  # another name, or none, or no port behind it
        return False


async def unless_gone(request: Request, answer: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `answer`; None if the client, whose request was read, goes away: `answer` is then cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(answer), asyncio.create_task(gone())
    await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait((working,))
        return None
    return working.result()


async def page() -> HTMLResponse:
    """The page, one file; a number used once lets its own script and style run, and no other."""
    nonce = secrets.token_urlsafe()
    html = Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        nonce=nonce, attention=script(), script=(HERE / "page.js").read_text(encoding="utf-8")
    )
    headers = {"Content-Security-Policy": POLICY.format(nonce=nonce), "Cache-Control": "no-store"}
    return HTMLResponse(html, headers=headers)
