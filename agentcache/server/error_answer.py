"""Errors as vLLM answers them, but without a traceback in the log."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse

from agentcache.engine.vllm.serving import create_error_response


def answer_error(message: str, status: HTTPStatus) -> JSONResponse:
    """Answer with an error of vLLM's form, named after the status."""
    error = create_error_response(message, err_type=status.phrase, status_code=status)
    return JSONResponse(error.model_dump(), status)
