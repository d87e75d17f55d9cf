"""The routes of the server, as an application of ASGI."""

from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from time import time
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from detok import DetokError, Marker, SectionSplitter
from detok.adapters.openai import sse
from detok.adapters.openai.chat import Splitter
from detok.serve.answer import Answer, prepare
from detok.serve.body import read_json
from detok.serve.engine import Engine
from detok.serve.error import ApiError, api_error
from detok.serve.limits import Limits
from detok.serve.metrics import CONTENT_TYPE
from detok.serve.patience import IdleClientError, patience
from detok.serve.request import Request, read_chat, read_completion
from detok.serve.service import Service
from detok.serve.stream import EventStream, send_json, while_connected

__all__ = ["create_app"]

# No status of HTTP: the client went away before its answer.
CLIENT_GONE = 499


def create_app(
    engine: Engine,
    limits: Limits | None = None,
    *,
    reasoning: Sequence[Marker] = (),
    splitter: Callable[[Sequence[int]], Splitter] | None = None,
    beside: Callable[[Service], AbstractAsyncContextManager[object]] | None = None,
) -> Starlette:
    """An application that serves an engine, and closes it at the end.

    Args:
        engine: Generates.
        limits: How much a request may ask for.
        reasoning: Markers of what the model thinks, which chats have as `reasoning_content`, and of its calls of
            tools, which stay in `content`; `detok.markers` has those of known models.
        splitter: Splits chats instead of these markers, which `stop_scope` then goes on to use; see
            `ChatCompletionBuilder`. For gpt-oss `detok.adapters.harmony` has one.
        beside: Makes what is open for as long as the application is, such as `serve_grpc`.

    Raises:
        ValueError: The tokenizer is not one that these sections are for.
    """
    if splitter is not None:
        splitter(())
    elif reasoning:
        SectionSplitter(engine.tokenizer, reasoning)
    service = Service(engine, limits)
    answer = partial(prepare, service, reasoning=reasoning, splitter=splitter)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # The first text that is encoded loads what encoding needs. A tokenizer may have nothing of the kind: prompts
        # are ids then.
        with suppress(DetokError):
            engine.tokenizer.encode("")
        async with AsyncExitStack() as opened:
            opened.push_async_callback(engine.close)
            if beside is not None:
                await opened.enter_async_context(beside(service))
            yield
            service.is_stopping = True

    created = int(time())
    model = {"id": engine.model, "object": "model", "created": created, "owned_by": "detok"}

    async def models(request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: HttpRequest) -> Response:
        service.check_model(request.path_params["name"])
        return JSONResponse(model)

    async def health(request: HttpRequest) -> Response:
        status = "stopping" if service.is_stopping else "ok"
        return JSONResponse({"status": status, "model": engine.model}, 503 if service.is_stopping else 200)

    async def metrics(request: HttpRequest) -> Response:
        return Response(service.metrics.text(service.open_requests.count), media_type=CONTENT_TYPE)

    async def page(request: HttpRequest) -> Response:
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    app = Starlette(
        routes=[
            Route("/v1/completions", Endpoint(service, "completions", read_completion, answer), methods=["POST"]),
            Route("/v1/chat/completions", Endpoint(service, "chat", read_chat, answer), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/", page),
        ],
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
        lifespan=lifespan,
    )
    # A redirection would name whatever host the request names.
    app.router.redirect_slashes = False
    app.state.service = service
    return app


PAGE = (files("detok.serve") / "page.html").read_text(encoding="utf-8")
PAGE_HEADERS = {
    # The page has its script and its style within it, and talks to its own server only.
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}


class Endpoint:
    """Answers requests of one kind. Speaks ASGI itself, for it writes and watches at once."""

    def __init__(
        self,
        service: Service,
        name: str,
        read: Callable[[Mapping[str, Any]], Request],
        prepare: Callable[[Request], Coroutine[Any, Any, Answer]],
    ) -> None:
        self._service, self._name, self._read, self._prepare = service, name, read, prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with patience(self._service.limits.idle_seconds, send) as patient_send:
                await self._answer(scope, receive, patient_send)
        except IdleClientError:
            pass
        except CancelledError:
            # A server that stops, and a client that does not even read that it does: no fault to be logged.
            if not self._service.is_stopping:
                raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._service.limits
        status = CLIENT_GONE
        events = EventStream(send)
        is_whole = False

        async def answer() -> None:
            nonlocal status, is_whole
            prepared = await self._prepare(request)
            if request.stream:
                await prepared.stream(events)
            else:
                body = await prepared.body()
                is_whole = True
                await send_json(send, body)
            status, is_whole = 200, True

        try:
            async with self._service.admit():
                request = self._read(await read_json(scope, receive, limits.body_bytes, limits.idle_seconds))
                await while_connected(receive, answer())
        except ConnectionError:
            pass
        except Exception as error:
            told = api_error(error)
            status = told.status
            if events.is_torn or is_whole:
                # Without an end it is known to be broken off. With one, it came just before the server stopped.
                pass
            elif events.is_open:
                await events.write(sse(told.body()) + sse(None), is_last=True)
            else:
                await _error_response(told)(scope, receive, send)
        finally:
            self._service.metrics.requests.add(self._name, str(status))


def _error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status)


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    return _error_response(cast(ApiError, error))


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    error = cast(HTTPException, error)
    what = f"{request.method} {request.url.path}"
    message = {
        404: f"there is no {request.url.path} here: the API is below /v1",
        405: f"{what} is not allowed",
    }.get(error.status_code, f"{what}: {error.detail}")
    return JSONResponse(ApiError(message, status=error.status_code).body(), error.status_code, headers=error.headers)
