"""`detok serve`: its options, and a server that runs until it is interrupted."""

import argparse
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from detok.serve.limits import Limits

if TYPE_CHECKING:
    from detok.serve.engine import Engine
    from detok.serve.service import Service

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `detok serve`."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="replay",
        help="replay: recorded streams, without a model (default); smollm2: a small model on the CPU (needs "
        "detok[demo] and its model); vllm: a model in vLLM (needs vllm and --model)",
    )
    parser.add_argument("--model", metavar="NAME", help="with --engine vllm: the model, a folder or a name")
    parser.add_argument(
        "--pace",
        metavar="N",
        type=_number(float),
        default=30.0,
        help="with --engine replay: tokens a second of each answer, 0 for no pause (default: 30)",
    )
    parser.add_argument(
        "--reasoning",
        metavar="FAMILY",
        help="split what the model thinks from what it answers, by the markers of this family of models: "
        "qwen3, glm, deepseek, kimi_k2, kimi_k3, mistral or gpt_oss",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--port", metavar="N", type=_number(int, 65535), default=8000, help="0: one that is free (default: 8000)"
    )
    parser.add_argument(
        "--grpc-port",
        metavar="N",
        type=_number(int, 65535),
        help="serve gRPC too, at this port (needs detok[grpc])",
    )
    limits = parser.add_argument_group("limits", "Requests that pass one are refused with an error that names it.")
    for limit in fields(Limits):
        limits.add_argument(
            f"--{limit.name.replace('_', '-')}",
            metavar="N",
            type=_number(float if isinstance(limit.default, float) else int),
            default=limit.default,
            help=f"{limit.metadata['about']} (default: {limit.default})",
        )


def run(arguments: argparse.Namespace) -> None:
    """Serves until SIGINT or SIGTERM, then lets open requests end for a few seconds.

    Raises:
        ModuleNotFoundError: A package is not installed; the message says which, and how.
        ValueError: Options that do not go together.
        OSError: An address cannot be listened at.
    """
    if (arguments.engine == "vllm") is (arguments.model is None):
        raise ValueError("--engine vllm and --model go together: the model is a folder or a name")
    app, server = (_import(f"detok.serve.{name}", "serve") for name in ("app", "server"))
    limits = Limits(**{limit.name: getattr(arguments, limit.name) for limit in fields(Limits)})
    markers, beside = _markers(arguments.reasoning), _beside(arguments)
    with _listening(arguments.host, arguments.port) as listening:
        if arguments.grpc_port is not None:
            # gRPC listens later, when the server runs: this tells at once that it cannot.
            _listening(arguments.host, arguments.grpc_port).close()
        engine = ENGINES[arguments.engine](arguments)
        splitter = _harmony(engine) if arguments.reasoning == "gpt_oss" else None
        served = server.Server(app.create_app(engine, limits, reasoning=markers, splitter=splitter, beside=beside))
        host, port = listening.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        _say(f"{engine.model} at http://{host}:{port}/ (a page) and /v1 (OpenAI's API); Ctrl-C ends it")
        served.run([listening])
        if not served.started:
            raise OSError("the server could not start; its log says why")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def _beside(arguments: argparse.Namespace) -> Any:
    if arguments.grpc_port is None:
        return None
    grpc = _import("detok.serve.grpc", "grpc")

    @asynccontextmanager
    async def beside(service: "Service") -> AsyncIterator[None]:
        async with grpc.serve_grpc(service, arguments.host, arguments.grpc_port) as port:
            _say(f"gRPC at port {port}")
            yield

    return beside


def _import(module: str, extra: str) -> Any:
    """A module of ours; if a package of its extra is missing, the error says how to get it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("detok"):
            raise
        raise ModuleNotFoundError(f"{missing} is not installed: pip install 'detok[{extra}]'", name=missing) from None


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _markers(family: str | None) -> Any:
    if family is None:
        return ()
    from detok.markers import PRESETS

    if family not in PRESETS:
        raise ValueError(f"--reasoning {family}: there are {', '.join(PRESETS)}")
    return PRESETS[family]


def _harmony(engine: "Engine") -> Any:
    """Any header that gpt-oss may write, where markers are for those that are as they should be."""
    from detok.adapters.harmony import HarmonyParser, HarmonySections

    return lambda prompt: HarmonySections(HarmonyParser(engine.tokenizer, prompt_token_ids=prompt))


def _replay(arguments: argparse.Namespace) -> "Engine":
    from detok.serve.replay import ReplayEngine

    return ReplayEngine(pace=arguments.pace)


def _smollm2(arguments: argparse.Namespace) -> "Engine":
    from detok.serve.smollm2 import Smollm2Engine

    return Smollm2Engine()


def _vllm(arguments: argparse.Namespace) -> "Engine":
    from detok.serve.vllm import VllmEngine

    return VllmEngine(arguments.model)


ENGINES: dict[str, Callable[[argparse.Namespace], "Engine"]] = {"replay": _replay, "smollm2": _smollm2, "vllm": _vllm}


def _number(kind: type[float], most: float = float("inf")) -> Callable[[str], float]:
    def read(word: str) -> float:
        with suppress(ValueError):
            if 0 <= (value := kind(word)) <= most and value != float("inf"):
                return value
        upwards = "on" if most == float("inf") else f"to {most}"
        raise argparse.ArgumentTypeError(f"{word!r} is no {'whole ' if kind is int else ''}number from 0 {upwards}")

    return read
