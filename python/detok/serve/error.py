"""What a server refuses or fails at, as OpenAI's API says it."""

import logging
from typing import Any

from detok.errors import DetokError, RequestError, UnknownTokenError

__all__ = ["ApiError", "api_error"]

logger = logging.getLogger("detok.serve")

# The statuses whose `type` is not that of a wrong request.
_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class ApiError(Exception):
    """An answer that is an error object.

    Args:
        message: The parameter or its place, the value, and what to do.
        status: Of HTTP.
        param: The parameter that is wrong.
        code: A word for programs, where there is one.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: Exception) -> ApiError:
    """Any error as the client is told of it; what the client could not help is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError) and isinstance(error.__cause__, ApiError):
        # An engine that refuses a request says so in the same words.
        return error.__cause__
    logger.error("a request failed", exc_info=error)
    if isinstance(error, UnknownTokenError):
        # Its own words are for who calls the decoder.
        told = f"the engine gave the id {error.token_id}, which the model's tokenizer does not have"
    else:
        told = str(error) if isinstance(error, DetokError) else "the server failed; its log says why"
    is_engines = isinstance(error, RequestError | UnknownTokenError)
    return ApiError(told, status=500, code="engine_error" if is_engines else None)
