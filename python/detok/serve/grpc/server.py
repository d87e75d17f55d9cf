"""Listening for calls, on the event loop that runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from detok.serve.grpc.inference_pb2_grpc import add_InferenceServicer_to_server
from detok.serve.grpc.servicer import InferenceServicer
from detok.serve.service import Service

__all__ = ["serve_grpc"]


@asynccontextmanager
async def serve_grpc(service: Service, host: str, port: int, *, grace: float = 5.0) -> AsyncIterator[int]:
    """Serves `service` over gRPC while the context is open; its value is the port.

    The engine stays open: it is its owner's to close, behind this.

    Args:
        service: Has the engine and the limits.
        host: Address to listen at.
        port: 0: one that is free.
        grace: Seconds that open calls may go on at the end.

    Raises:
        OSError: The address cannot be listened at.
    """
    options = [
        ("grpc.max_receive_message_length", service.limits.body_bytes),
        # Otherwise two servers share a port, and neither knows.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    servicer = InferenceServicer(service)
    add_InferenceServicer_to_server(servicer, server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{address} cannot be listened at: {error}") from None
    await server.start()
    try:
        yield bound
    finally:
        # What is ended from here on is not ended by its client.
        service.is_stopping = True
        await server.stop(grace)
        # Which does not wait for the calls that it cancels.
        await servicer.ended()
