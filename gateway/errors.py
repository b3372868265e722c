"""Errors as clients see them: OpenAI's shape, so that the stock client raises its own classes."""

import orjson

from ratchet.errors import RatchetError

INVALID_REQUEST = "invalid_request_error"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
CLIENT_CLOSED_REQUEST = 499
"""Status of a row whose client left before its answer was whole; never sent."""


class ApiError(RatchetError):
    """What one request is refused or ended with.

    Attributes:
        status: HTTP status.
        code: OpenAI's `code`, or one of ours; a stable word.
        param: The field of the request that is meant.
        retry_after_s: Seconds after which a client may try again; sent as `Retry-After`.
        refused: We never began with the request, or it was wrong: its row says `rejected`, not `error`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        refused: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.refused = status < 500 if refused is None else refused

    def body(self) -> bytes:
        """The JSON document: `{"error": {"message", "type", "param", "code"}}`."""
        kind = TYPES.get(self.status, INVALID_REQUEST if self.status < 500 else "server_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


def bad_request(param: str | None, message: str, *, code: str = "invalid_value") -> ApiError:
    """400: the request cannot be served as it stands."""
    return ApiError(400, code, message, param=param)


def unknown_model(name: str) -> ApiError:
    """404: no plan and no engine knows this name."""
    return ApiError(
        404, "model_not_found",
        f"the model {name!r} does not exist or no engine serves it; GET /v1/models lists what is served",
        param="model",
    )  # fmt: skip


def unavailable(code: str, message: str, *, retry_after_s: float, refused: bool = False) -> ApiError:
    """503: not now, but later."""
    return ApiError(503, code, message, retry_after_s=retry_after_s, refused=refused)
