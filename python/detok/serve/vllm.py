"""vLLM's `AsyncLLM`, with its own detokenizer off. vLLM is imported when an engine is made, and not before."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any

from detok import EngineUpdate, Tokenizer
from detok.adapters._updates import AsyncUpdates
from detok.adapters.vllm import OutputReader
from detok.serve.engine import AbortCause, Message, SamplingParams
from detok.serve.error import ApiError
from detok.serve.template import refusals

__all__ = ["VllmEngine"]


class VllmEngine:
    """A model in vLLM.

    Args:
        model: A folder, or a name that vLLM finds.

    Raises:
        ModuleNotFoundError: vLLM is not installed.
    """

    def __init__(self, model: str) -> None:
        try:
            vllm = import_module("vllm")
        except ModuleNotFoundError as error:
            if error.name != "vllm":
                raise
            raise ModuleNotFoundError("vllm is not installed: pip install vllm", name=error.name) from None
        arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs(model=model)
        self._params: Any = vllm.SamplingParams
        self._delta = import_module("vllm.sampling_params").RequestOutputKind.DELTA
        self._llm: Any = import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(arguments)
        self._chat: Any = import_module("transformers").AutoTokenizer.from_pretrained(model)
        self.model = model
        self.tokenizer = Tokenizer.load(self._chat)
        self.max_context = int(self._llm.model_config.max_model_len)
        self.max_logprobs = int(self._llm.model_config.max_logprobs)

    async def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[EngineUpdate]:
        is_taken = False
        try:
            outputs = self._llm.generate(
                {"prompt_token_ids": list(prompt_token_ids)},
                self._params(
                    max_tokens=params.max_tokens,
                    min_tokens=params.min_tokens,
                    temperature=params.temperature,
                    # Zero is no share of anything there; of the likeliest token, anything is.
                    top_p=params.top_p or 1e-6,
                    top_k=params.top_k,
                    seed=params.seed,
                    logprobs=params.logprobs,
                    prompt_logprobs=params.prompt_logprobs,
                    ignore_eos=params.ignore_eos,
                    stop_token_ids=list(params.stop_token_ids),
                    detokenize=False,
                    output_kind=self._delta,
                ),
                params.request_id,
            )
            updates = AsyncUpdates(outputs, OutputReader(output_kind=self._delta).read)
            async with aclosing(updates):
                async for update in updates:
                    is_taken = True
                    yield update
        except ValueError as error:
            if is_taken:
                raise
            # Before the first update, it is the request that is wrong.
            raise ApiError(str(error)) from error

    async def abort(self, request_id: str, cause: AbortCause) -> None:
        await self._llm.abort(request_id)

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        # Its text, and not its ids: a template names the special tokens that there are to be, and no more are added.
        with refusals():
            text = self._chat.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self.tokenizer.encode(text)

    async def close(self) -> None:
        self._llm.shutdown()
