"""The exceptions of detok: one type per thing a caller can act on."""


class DetokError(Exception):
    """Base of all errors of detok's own."""


class TokenizerLoadError(DetokError, ValueError):
    """A file, folder or object is no tokenizer; the message names it and says what is wrong."""


class UnknownTokenError(DetokError, ValueError):
    """A token id that the tokenizer cannot map, or that is no token id at all.

    Attributes:
        token_id: The id as it was given.
        index: Its position in the call.
    """

    token_id: int
    index: int

    def __init__(self, message: str, token_id: int, index: int) -> None:
        super().__init__(message, token_id, index)
        self.token_id = token_id
        self.index = index

    def __str__(self) -> str:
        return str(self.args[0])


class RequestError(DetokError, RuntimeError):
    """A request failed: the engine said so, its updates ended too early, or it has no prompt.

    Attributes:
        request_id: The caller's name of the request.
    """

    request_id: str

    def __init__(self, message: str, request_id: str) -> None:
        super().__init__(message, request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return str(self.args[0])


class StreamFinishedError(DetokError, RuntimeError):
    """A push or a flush after the end. `reset()` of a stream starts over; a request or a slot stays finished."""


class StateError(DetokError, ValueError):
    """The stream cannot do this as it was opened, a saved state does not fit, or a batch has no such slot."""


class InternalError(DetokError, RuntimeError):
    """A bug of detok, caught before it became a panic of the interpreter."""


class DetokWarning(UserWarning):
    """Something a user should know of a tokenizer that loads all the same."""
