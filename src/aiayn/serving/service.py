"""The HTTP service: `POST /translate`, `GET /health`, and a page for people at `GET /`.

Every error is a JSON object with one key, `error`, a line in words: 413 for what is too long, 422 for what cannot be
read, 429 while too much waits, 503 while the service ends, 500 when the model failed. A client that goes away is
noticed, and what it asked for is dropped unless the model works on it already.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from aiayn.inference.translation import Translation, Translator
from aiayn.serving.batching import Batcher, FullError, ModelError, StoppedError
from aiayn.serving.messages import Answer, Attention, Question, explain, translated

Attend = Callable[[str, Translation], Attention]
Result = TypeVar("Result")
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
            if not isinstance(value, int) or value < 1:
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
        attend: Attention weights of a translation; None if the model has none to show.
    """

    def __init__(
        self, translator: Translator, *, beam: int, limits: Limits, about: Mapping[str, Any], attend: Attend | None
    ) -> None:
        self.tokenizer = translator.tokenizer
        self.beam = beam
        self.limits = limits
        self.about = about
        self.attend = attend
        self.batcher = Batcher(translator.n_best, max_waiting=limits.max_waiting, max_batch=limits.max_batch)
        self.start = time.monotonic()

    def app(self) -> FastAPI:
        """The application that a server runs."""

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            yield
            self.batcher.stop()

        # FastAPI's pages about an interface load their scripts from elsewhere.
        app = FastAPI(title="aiayn", lifespan=lifespan, docs_url=None, redoc_url=None)
        body = {"content": {"application/json": {"schema": Question.model_json_schema()}}, "required": True}
        app.get("/")(page)
        app.get("/health")(self.health)
        app.post("/translate", response_model=Answer, openapi_extra={"requestBody": body})(self.translate)
        app.add_exception_handler(AnyHTTPException, in_words)
        return app

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
        async for part in request.stream():
            body += part
            if len(body) > self.limits.max_bytes:
                raise HTTPException(413, f"the request has more than {self.limits.max_bytes:,} bytes")
        return bytes(body)

    def _check(self, question: Question) -> None:
        """Refuse what the model will not be asked.

        Raises:
            HTTPException: that says what is too much, and how much may be.
        """
        sentences, limits = question.all(), self.limits
        if question.n_best > self.beam:
            raise HTTPException(422, f"n_best must be from 1 to the beam's width {self.beam}, got {question.n_best}")
        if question.attention and self.attend is None:
            raise HTTPException(422, "this model has no attention to show: it is an ensemble, or of another kind")
        if len(sentences) > limits.max_sentences:
            raise HTTPException(413, f"{len(sentences)} sentences are too many; at most {limits.max_sentences}")
        lengths = [len(tokens) for tokens in self.tokenizer.encode(sentences)]
        for number, length in enumerate(lengths, 1):
            if length > limits.max_tokens:
                raise HTTPException(413, f"sentence {number} has {length} tokens; at most {limits.max_tokens}")
        if question.attention and sum(lengths) > limits.max_attention_tokens:
            most = limits.max_attention_tokens
            raise HTTPException(413, f"attention is for at most {most} tokens together, and these are {sum(lengths)}")

    async def _answer(self, question: Question) -> Answer:
        sentences = question.all()
        attention: Sequence[Attention | None] = [None] * len(sentences)
        try:
            found = await self.batcher.translate(sentences, question.n_best)
            if question.attention and self.attend is not None:
                best = [translations[0] for translations in found]
                attention = await self.batcher.run(list, map(self.attend, sentences, best))
        except FullError:
            waiting = f"{self.batcher.waiting} sentences wait, and at most {self.limits.max_waiting} may"
            raise HTTPException(429, f"{waiting}; ask again in a second", {"Retry-After": "1"}) from None
        except StoppedError:
            raise HTTPException(503, "the service ends; nothing was translated") from None
        except ModelError as error:
            raise HTTPException(500, f"the model failed: {error}") from None
        return Answer(translations=list(map(translated, found, attention)))


async def in_words(request: Request, error: Exception) -> Response:
    """An HTTP error as JSON."""
    assert isinstance(error, AnyHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


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
    html = resources.files("aiayn.serving").joinpath("page.html").read_text("utf-8")
    script = resources.files("aiayn.analysis").joinpath("attention.js").read_text("utf-8")
    headers = {"Content-Security-Policy": POLICY.format(nonce=nonce), "Cache-Control": "no-store"}
    return HTMLResponse(html.replace("{{nonce}}", nonce).replace("{{attention.js}}", script), headers=headers)
