"""Listening for calls, on the event loop that runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from detok.serve.grpc import inference_pb2 as pb
from detok.serve.grpc.servicer import InferenceServicer
from detok.serve.service import Service

__all__ = ["serve_grpc"]

# Seconds for the errors that calls end with; who does not read them is cut off.
LAST = 1.0


@asynccontextmanager
async def serve_grpc(service: Service, host: str, port: int, *, grace: float = 5.0) -> AsyncIterator[int]:
    """Serves `service` over gRPC while the context is open; its value is the port.

    The engine stays open: it is its owner's to close, behind this.

    Args:
        service: Has the engine and the limits.
        host: Address to listen at.
        port: 0: one that is free.
        grace: Seconds that open calls may go on at the end, unless the service was already told to stop.

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
    server.add_generic_rpc_handlers((_handler(servicer),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{address} cannot be listened at: {error}") from None
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(service.stop(grace) + LAST)
        # Which does not wait for the calls that it cancels.
        await servicer.ended()


def _handler(servicer: InferenceServicer) -> grpc.GenericRpcHandler:
    """That of the generated code, but for requests: gRPC would answer one that it cannot read with UNKNOWN."""
    write = pb.GenerateResponse.SerializeToString
    methods = {
        "Generate": grpc.unary_unary_rpc_method_handler(servicer.Generate, None, write),
        "GenerateStream": grpc.unary_stream_rpc_method_handler(servicer.GenerateStream, None, write),
    }
    name = pb.DESCRIPTOR.services_by_name["Inference"].full_name
    return grpc.method_handlers_generic_handler(name, methods)
