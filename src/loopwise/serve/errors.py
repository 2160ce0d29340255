"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from loopwise.config import InputError
from loopwise.engine.async_engine import EngineFault

_LOG = logging.getLogger(__name__)
RETRY_S = 1


class ApiError(Exception):
    """A refusal: HTTP status, message, and what `param` and `code` say of it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object."""
        return body(self.status, self.message, self.param, self.code)

    def response(self) -> JSONResponse:
        """As an HTTP response."""
        return JSONResponse(self.body, self.status, dict(self.headers) if self.headers else None)


KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The JSON object of an error; its type follows from the status. Halves of surrogate pairs, which a client can name
    and no answer can hold, become question marks."""
    message, param = _sound(message), None if param is None else _sound(param)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    """A 503 that asks to come back, here or at another replica."""
    return ApiError(503, message, code=code, headers={"retry-after": str(RETRY_S)})


def install(app: FastAPI) -> None:
    """Give every kind of failure the shape."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def unusable(request: Request, error: Exception) -> JSONResponse:
        return from_input(error).response()

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return from_validation(error).response()

    async def other(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return ApiError(error.status_code, str(error.detail), headers=error.headers).response()

    async def gone(request: Request, error: Exception) -> JSONResponse:
        return unavailable(str(error), "engine_unavailable").response()

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _LOG.error("request failed", exc_info=error)
        return ApiError(500, "the server failed at this request; its log says more", code="internal_error").response()

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(InputError, unusable)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)
    app.add_exception_handler(EngineFault, gone)
    app.add_exception_handler(Exception, unexpected)


def from_input(error: Exception) -> ApiError:
    """Bad input found further in; a request that does not fit says so in OpenAI's words."""
    text = str(error)
    return bad(text, code="context_length_exceeded" if "exceed the context" in text else "invalid_value")


def from_validation(error: RequestValidationError) -> ApiError:
    """The first thing wrong with a body, by the name of its field."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    # A union reports each of its branches; their names are no fields of the request.
    field = ".".join(part for part in where if part.isidentifier() or part.isdigit()) or None
    if first["type"] == "extra_forbidden":
        return bad(f"unknown parameter '{field}': remove it", field, "unknown_parameter")
    if first["type"] == "missing":
        return bad(f"parameter '{field or 'body'}' is missing: give it", field, "missing_parameter")
    if first["type"] == "json_invalid":
        return bad(f"the body is no JSON ({first.get('ctx', {}).get('error', 'malformed')})", None, "invalid_json")
    said = str(first["msg"]).removeprefix("Value error, ")
    return bad(f"parameter '{field or 'body'}': {said}", field, "invalid_value")
