"""The calls of the service `Inference`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from detok import Start, TextDelta
from detok.serve.error import ApiError, api_error
from detok.serve.grpc import inference_pb2 as pb
from detok.serve.grpc.message import Messages
from detok.serve.grpc.request import parsed, read_call
from detok.serve.patience import IdleClientError, patience
from detok.serve.service import Service

__all__ = ["InferenceServicer"]

STATUSES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
# Beyond 8 KiB of metadata a client may see another error than the one it is told of, and a character can take 12 bytes.
MOST_DETAILS = 500


class InferenceServicer:
    """Answers calls from an engine that other ways into the server may share.

    Requests may come as bytes, so that one that is no message is refused as others are.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: set[asyncio.Task[Any]] = set()

    async def ended(self) -> None:
        """Waits for the calls that are open."""
        while self._open:
            await asyncio.wait(self._open)

    async def Generate(
        self, request: pb.GenerateRequest | bytes, context: grpc.aio.ServicerContext
    ) -> pb.GenerateResponse:
        """The whole answer in one message."""
        async with self._answering("grpc_generate", context):
            request = parsed(request)
            call = await read_call(self._service, request)
            messages = Messages(request.response)
            deltas: list[list[TextDelta]] = [[] for _ in call.choices]
            answer = pb.GenerateResponse()

            async def collect(index: int, event: Start | TextDelta) -> None:
                if isinstance(event, TextDelta):
                    deltas[index].append(event)
                elif not answer.HasField("prompt_info"):
                    answer.prompt_info.CopyFrom(messages.prompt_info(event))

            await self._service.generate(call.choices, call.options, collect)
            answer.outputs.extend(messages.output(index, own) for index, own in enumerate(deltas))
        return answer

    async def GenerateStream(self, request: pb.GenerateRequest | bytes, context: grpc.aio.ServicerContext) -> None:
        """The answer as it comes.

        Whoever writes waits while the reader lags, and fetches nothing from the engine, where updates of a lagging
        reader are joined to one.
        """
        async with self._answering("grpc_generate_stream", context):
            request = parsed(request)
            call = await read_call(self._service, request)
            messages = Messages(request.response)
            is_started = False
            # Choices of one answer write by turns, in the order in which they came to it.
            turn = asyncio.Lock()

            async def write(index: int, event: Start | TextDelta) -> None:
                nonlocal is_started
                message = pb.GenerateResponse()
                if isinstance(event, TextDelta):
                    if not (event.sampled.token_ids or event.decoded or event.finished):
                        return
                    message.outputs.append(messages.output(index, [event]))
                elif is_started:
                    return
                else:
                    is_started = True
                    message.prompt_info.CopyFrom(messages.prompt_info(event))
                async with turn:
                    try:
                        await patient_write(message)
                    except grpc.aio.BaseError as error:
                        # It is not always told of by a cancellation first.
                        raise ConnectionError("the client went away") from error

            async with patience(self._service.limits.idle_seconds, context.write) as patient_write:
                await self._service.generate(call.choices, call.options, write)

    @asynccontextmanager
    async def _answering(self, method: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """Counts a call while it is open; an error ends it with a status."""
        status = grpc.StatusCode.CANCELLED
        refused = None
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            async with self._service.admit():
                yield
            status = grpc.StatusCode.OK
        except IdleClientError as error:
            # Should it read on, it must not take what it has for all.
            refused = ApiError(str(error), code="client_gone")
        except ConnectionError:
            pass
        except Exception as error:
            refused = api_error(error)
            status = STATUSES.get(refused.status, grpc.StatusCode.INTERNAL)
        finally:
            # Before the client hears of it.
            self._service.metrics.requests.add(method, status.name)
        if refused is not None:
            named = (("detok-param", refused.param), ("detok-code", refused.code))
            metadata = tuple((name, word) for name, word in named if word)
            await context.abort(status, refused.message[:MOST_DETAILS], metadata)
