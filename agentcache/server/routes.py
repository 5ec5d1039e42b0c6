"""Defines our routes beside the OpenAI API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.status import (
    HTTP_400_BAD_REQUEST,
    HTTP_403_FORBIDDEN,
    HTTP_404_NOT_FOUND,
    HTTP_414_URI_TOO_LONG,
    HTTP_503_SERVICE_UNAVAILABLE,
)

from agentcache.engine.vllm.serving import create_error_response
from agentcache.errors import ServerError
from agentcache.front_end.client_sessions import MAX_SESSION_CHARACTERS, find_job_path, read_header
from agentcache.front_end.tenant_salts import find_salting, find_tenant
from agentcache.server.job_reader import MAX_JOBS, JobReader, Tenants
from agentcache.server.live_report import LiveReport
from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import Reading, SnapshotReader

PREFIX = "/agentcache"
# Limits a request to one tenant. Not in the URL, which servers log: a salt is a secret.
SALT_HEADER = "X-Cache-Salt"
router = APIRouter(prefix=PREFIX)


class _AnyTextConvertor(Convertor[str]):
    """Matches any text: Starlette's own `path` stops at a line break, which a session id may have."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("agentcache_text", _AnyTextConvertor())
_JOBS_PATH = "/jobs/{session:agentcache_text}"


@router.get("")
async def list_places() -> dict[str, str]:
    """Say where things are."""
    places = {name: f"{PREFIX}/{name}" for name in ("report", "jobs", "jobs/SESSION", "state")}
    return places | {"metrics": "/metrics", "why prompts were not cached": "agentcache doctor URL"}


@router.get("/state")
async def get_state(request: Request) -> dict[str, Any]:
    """Return policy, knobs in force, counts, blocks and requests of every engine; `age_s` is how old they are."""
    _refuse_tenants(request)
    reading = await _read(request)
    return {"age_s": reading.age_s, "engines": [engine.model_dump(mode="json") for engine in reading.engines]}


@router.get("/jobs")
async def list_jobs(request: Request, limit: int = 100, of: str | None = None) -> Response:
    """List each engine's jobs, the most recently active first, without their turns; `url` has all of one session.

    With `of`, a session or the id of a reply, answer as that one's own address does.
    """
    if of is not None:
        return await get_jobs(request, of)
    _refuse_tenants(request)
    if not 1 <= limit <= MAX_JOBS:
        raise HTTPException(HTTP_400_BAD_REQUEST, f"limit: give a number of jobs from 1 to {MAX_JOBS}.")
    reading = await _read_runtime(request)
    try:
        found = await _get_jobs(request).list_latest(reading, limit)
    except ServerError as error:
        raise HTTPException(HTTP_503_SERVICE_UNAVAILABLE, str(error)) from None
    return JSONResponse({"jobs": [_shorten_job(job) for job in found]})


@router.get(_JOBS_PATH)
async def get_jobs(request: Request, session: str) -> Response:
    """Return the session's jobs with their latest turns and pins; `engine` is the data-parallel rank.

    Those in `ended` are over, the latest of each engine first, and have a summary. Where no session has this name, it
    is taken for the id of a reply. With several engines, `home` is where the next turn goes, how often the job has
    moved, and why it is there.
    """
    _check_length(session)
    reading = await _read_runtime(request)
    tenants = _find_tenants(request)
    try:
        found = await _get_jobs(request).find(reading, session, tenants)
        home = _get_jobs(request).find_home(session, tenants)
    except ServerError as error:
        raise HTTPException(HTTP_503_SERVICE_UNAVAILABLE, str(error)) from None
    if not found:
        return _make_unknown_session()
    shown = {} if home is None else {"home": {"engine": home.engine, "moves": home.moves, "reason": home.reason}}
    parts = {"jobs": [job for job in found if job["summary"] is None]}
    parts["ended"] = [job for job in found if job["summary"] is not None]
    return JSONResponse({"session": session, **parts, **shown})


@router.delete(_JOBS_PATH)
async def release_job(request: Request, session: str) -> Response:
    """End the session's jobs and release their pins; return the summaries of those that are over."""
    _check_length(session)
    await _read_runtime(request)
    try:
        ended = await _get_jobs(request).release(session, _find_tenants(request))
    except ServerError as error:
        raise HTTPException(HTTP_503_SERVICE_UNAVAILABLE, str(error)) from None
    return _make_unknown_session() if ended is None else JSONResponse({"released": True, "ended": ended})


@router.get("/report", response_class=HTMLResponse)
async def get_report(request: Request, refresh: int = 10) -> Response:
    """Return the latest jobs as an HTML page that reloads itself every `refresh` seconds."""
    _refuse_tenants(request)
    if refresh != 0 and not 2 <= refresh <= 3600:
        raise HTTPException(
            HTTP_400_BAD_REQUEST, "refresh: give seconds from 2 to 3600, or 0 for a page that stays as it is."
        )
    reading = await _read_runtime(request)
    report: LiveReport = request.app.state.agentcache_report
    try:
        page = await report.render(reading, refresh)
    except ServerError as error:
        raise HTTPException(HTTP_503_SERVICE_UNAVAILABLE, str(error)) from None
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})


class MetricsRoute:
    """Serves `GET /metrics`: vLLM's own answer, followed by the engines' counts."""

    def __init__(self, own: APIRoute) -> None:
        """Wrap `own`, vLLM's route."""
        self._own = own

    async def serve(self, request: Request) -> Response:
        """Serve the metrics of vLLM, then ours."""
        reading = await _get_snapshots(request).read()
        # With several API servers it reads files.
        answer: Response = await run_in_threadpool(self._own.endpoint, request)
        return Response(
            bytes(answer.body) + render_metrics(reading), headers={"Content-Type": answer.headers["Content-Type"]}
        )


async def _read(request: Request) -> Reading:
    reading = await _get_snapshots(request).read()
    if reading is None:
        raise HTTPException(HTTP_503_SERVICE_UNAVAILABLE, "The engine does not answer; try again.")
    if not reading.engines:
        raise HTTPException(HTTP_404_NOT_FOUND, "The engine runs without agentcache's scheduler.")
    return reading


async def _read_runtime(request: Request) -> Reading:
    reading = await _read(request)
    if all(engine.runtime is None for engine in reading.engines):
        policy = reading.engines[0].policy
        raise HTTPException(HTTP_404_NOT_FOUND, f"Policy {policy} has no agent runtime, so nothing follows jobs here.")
    return reading


def _check_length(session: str) -> None:
    if len(session) > MAX_SESSION_CHARACTERS:
        raise HTTPException(
            HTTP_414_URI_TOO_LONG, f"The session id is longer than {MAX_SESSION_CHARACTERS:,} characters."
        )


def _shorten_job(job: dict[str, Any]) -> dict[str, Any]:
    """Leave out turns, pins and summary, but for what the last turn tells."""
    last = job["turns"][-1] if job["turns"] else {}
    shown = {name: value for name, value in job.items() if name not in ("turns", "pins", "summary")}
    about_last = {f"last_{name}": last.get(name) for name in ("prompt_tokens", "cached_tokens", "misses", "change")}
    return {**shown, **about_last, "url": f"{PREFIX}/{find_job_path(job['session'])}"}


def _find_tenants(request: Request) -> Tenants:
    """Find the tenant that the request is limited to; an empty salt stands for requests without one."""
    given = request.headers.get(SALT_HEADER)
    salt = None if given is None else read_header(given) or None
    if given is None and not _is_of_tenant(request):
        return None
    return [find_salting(request.headers, _get_jobs(request).shares)(salt)]


def _is_of_tenant(request: Request) -> bool:
    """Tell whether a tenant asks, who may see its own jobs alone. A key of no known tenant is the operator's."""
    tenants = _get_jobs(request).shares
    if tenants is None or (tenant := find_tenant(request.headers, tenants)) is None:
        return False
    return tenants.by != "api_key" or tenants.knows(tenant)


def _refuse_tenants(request: Request) -> None:
    """Raise what is answered to a tenant that asks for what all do."""
    if _is_of_tenant(request):
        raise HTTPException(
            HTTP_403_FORBIDDEN, f"A tenant sees its own jobs alone; ask for {PREFIX}/jobs/SESSION of one of them."
        )


def _make_unknown_session() -> Response:
    """Clients ask for jobs that are over."""
    message = "No job of this session is known: none came, or it has been over or idle for too long."
    return answer_error(message, HTTPStatus.NOT_FOUND)


def _get_snapshots(request: Request) -> SnapshotReader:
    reader: SnapshotReader = request.app.state.agentcache_snapshots
    return reader


def _get_jobs(request: Request) -> JobReader:
    reader: JobReader = request.app.state.agentcache_jobs
    return reader


def answer_error(message: str, status: HTTPStatus) -> JSONResponse:
    """Answer with an error of vLLM's form, named after the status, but without a traceback in the log."""
    error = create_error_response(message, err_type=status.phrase, status_code=status)
    return JSONResponse(error.model_dump(), status)
