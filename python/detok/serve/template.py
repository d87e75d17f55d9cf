"""Chat templates: Jinja, as model files carry it, without a way out of the sandbox."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

__all__ = ["ChatTemplate", "refusals"]


@contextmanager
def refusals() -> Iterator[None]:
    """Has what a template raises as the refusal of its messages, a `ValueError`."""
    try:
        yield
    except Exception as error:
        # A template is a program: what it does with messages that it was not written for can be anything.
        raise ValueError(f"the model's chat template refuses the messages: {error}") from error


class ChatTemplate:
    """A template that makes the prompt of a chat.

    Args:
        source: Of the template.
        names: What else the template may name, such as `bos_token`.

    Raises:
        ModuleNotFoundError: jinja2 is not installed.
        ValueError: The source is no template.
    """

    def __init__(self, source: str, **names: str) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("jinja2 is not installed: pip install 'detok[serve]'", name=error.name) from None
        # As templates are written for.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            self._template = environment.from_string(source, globals=names)
        except TemplateError as error:
            raise ValueError(f"the chat template is none: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt, up to where the answer begins.

        Raises:
            ValueError: The template refuses the messages.
        """
        with refusals():
            return self._template.render(messages=messages, add_generation_prompt=True)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
