"""A server of decoded text over gRPC: the service `Inference` of `inference.proto`. Needs `detok[grpc]`.

    service = Service(ReplayEngine())
    async with serve_grpc(service, "127.0.0.1", 50051):
        await asyncio.Event().wait()

A `Service` has what all ways into a server share, HTTP among them. Clients in Python:

    from detok.serve.grpc.inference_pb2 import GenerateRequest
    from detok.serve.grpc.inference_pb2_grpc import InferenceStub

    async with grpc.aio.insecure_channel("127.0.0.1:50051") as channel:
        async for message in InferenceStub(channel).GenerateStream(GenerateRequest(text="Hello")):
            ...
"""

from detok.serve.grpc.server import serve_grpc
from detok.serve.grpc.servicer import InferenceServicer

__all__ = ["InferenceServicer", "serve_grpc"]
