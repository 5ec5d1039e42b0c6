from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from urllib.parse import quote

import pytest
from made_engine import FakeCore, connect, make_app, make_engine, make_job, make_pin, make_summary, make_turn
from starlette.testclient import TestClient
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler

from agentcache.engine.constants import JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.observe.stats import MAX_TURNS
from agentcache.engine.views import ChangeView
from agentcache.front_end.client_sessions import MAX_SESSION_CHARACTERS
from agentcache.server import job_reader
from agentcache.server.job_reader import MAX_JOBS, JobReader
from agentcache.server.snapshot_reader import MIN_INTERVAL_S, Reading

SESSIONS = [
    "plain",
    "tenant/agent/7",
    "/",
    "a//b/",
    "50 % of? it#&=+;",
    "ünïcode 会话 🙂",
    "two\nlines\n",
    "..a",
    "x" * MAX_SESSION_CHARACTERS,
]


def find_path(session: str) -> str:
    return f"/agentcache/jobs/{quote(session, safe='')}"


@pytest.mark.parametrize("session", SESSIONS)
def test_a_job_is_found_whatever_its_session_is_called(session: str) -> None:
    job = make_job(session, make_turn(0, 10.0), pins=(make_pin(0, 12.0),))
    others = [make_job(name, make_turn(0, 10.0)) for name in ("a", "two\nlines", "two", "")]
    with connect(FakeCore((make_engine(3), [*others, job]))) as client:
        answer = client.get(find_path(session))
        assert answer.status_code == 200
        jobs = [{"engine": 3, **job.model_dump(mode="json")}]
        assert answer.json() == {"session": session, "jobs": jobs, "ended": []}
        ended = [{**make_summary(), "engine": 3}]
        assert client.delete(find_path(session)).json() == {"released": True, "ended": ended}


def test_jobs_that_are_over_stand_apart_with_their_summary() -> None:
    over = make_job("mine", make_turn(0, 10.0), is_over=True, summary=make_summary())
    with connect(FakeCore((make_engine(), [make_job("mine", make_turn(0, 20.0)), over]))) as client:
        answer = client.get(find_path("mine")).json()
    assert [job["arrived_s"] for job in answer["jobs"]] == [20.0]
    assert [(job["engine"], job["summary"]) for job in answer["ended"]] == [(0, make_summary())]


def test_a_form_asks_for_one_job_as_its_address_does() -> None:
    core = FakeCore((make_engine(), [make_job("mine/2", make_turn(0, 10.0))]))
    with connect(core) as client:
        assert client.get("/agentcache/jobs", params={"of": "mine/2"}).json() == client.get(find_path("mine/2")).json()
        assert client.get("/agentcache/jobs", params={"of": "other"}).status_code == 404


def test_jobs_carry_their_engine_s_rank_and_release_reaches_all() -> None:
    mine, another = make_job("mine", make_turn(0, 10.0)), make_job("mine", make_turn(0, 20.0))
    core = FakeCore((make_engine(4), [mine]), (make_engine(5), []), (make_engine(6), [another, another]))
    with connect(core) as client:
        jobs = client.get(find_path("mine")).json()["jobs"]
        assert [(job["engine"], job["arrived_s"]) for job in jobs] == [(4, 10.0), (6, 20.0), (6, 20.0)]
        ended = client.delete(find_path("mine")).json()["ended"]
        assert [job["engine"] for job in ended] == [4, 6, 6]
    assert core.calls[-1] == (RELEASE_METHOD, "mine", None)


@pytest.mark.parametrize(
    ("headers", "tenants"),
    [
        ({}, None),
        ({"X-Cache-Salt": "tenant"}, ["tenant"]),
        ({"X-Cache-Salt": ""}, [None]),
        ({"X-Cache-Salt": "café☃".encode()}, ["café☃"]),
    ],
)
def test_a_request_may_be_limited_to_one_tenant(headers: dict[str, str], tenants: list[str | None] | None) -> None:
    core = FakeCore((make_engine(), [make_job("mine", make_turn(0, 10.0))]))
    with connect(core) as client:
        assert client.get(find_path("mine"), headers=headers).status_code == 200
        assert core.calls[-1] == (JOB_METHOD, "mine", tenants)
        assert client.delete(find_path("mine"), headers=headers).status_code == 200
    assert core.calls[-1] == (RELEASE_METHOD, "mine", tenants)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_unknown_session_is_not_found(method: str, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(FakeCore((make_engine(), [make_job("known", make_turn(0, 10.0))])))
    init_exception_handler(app)
    # What vLLM's --log-error-stack sets.
    app.state.args = Namespace(log_error_stack=True)
    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        with TestClient(app) as client:
            answer = client.request(method, find_path("unknown"))
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("No job of this session is known")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("path", ["jobs/known", "report"])
@pytest.mark.parametrize(
    ("core", "text"),
    [
        (FakeCore((make_engine(runtime=None, policy="lru"), [])), "Policy lru has no agent runtime"),
        (FakeCore(None), "The engine runs without agentcache's scheduler."),
    ],
)
def test_without_a_runtime_the_answer_says_so(core: FakeCore, text: str, path: str) -> None:
    with connect(core) as client:
        answer = client.get(f"/agentcache/{path}")
        assert answer.status_code == 404
        assert text in answer.json()["detail"]
        assert path == "report" or client.delete(f"/agentcache/{path}").json() == answer.json()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_endless_session_id_never_reaches_the_engine(method: str) -> None:
    core = FakeCore((make_engine(), []))
    with connect(core) as client:
        answer = client.request(method, find_path("x" * (MAX_SESSION_CHARACTERS + 1)))
    assert answer.status_code == 414
    assert answer.json()["detail"] == "The session id is longer than 4,096 characters."
    assert core.calls == []


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_engine_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(job_reader, "ANSWER_WAIT_S", 0.01)
    core = FakeCore((make_engine(), []))
    with connect(core) as client:
        assert client.get("/agentcache/state").status_code == 200
        core.is_silent = True
        answer = client.request(method, find_path("known"))
    assert (answer.status_code, answer.json()["detail"]) == (503, "The engine did not answer within 0.01 s; try again.")


def test_what_failed_in_the_engine_is_not_told_to_clients() -> None:
    core = FakeCore((make_engine(), []))
    with connect(core) as client:
        assert client.get("/agentcache/state").status_code == 200
        core.failure = Exception("Call failed: KeyError('session-of-somebody')")
        answer = client.get(find_path("known"))
    assert answer.status_code == 503
    assert "somebody" not in answer.text


def test_a_changed_number_of_engines_is_not_misnumbered() -> None:
    core = FakeCore((make_engine(0), []), (make_engine(1), [make_job("known", make_turn(0, 10.0))]))
    with connect(core) as client:
        assert client.get("/agentcache/state").status_code == 200
        core.engines = core.engines[1:]
        answer = client.get(find_path("known"))
    assert (answer.status_code, answer.json()["detail"]) == (503, "The number of engines has changed; try again.")


def test_jobs_are_listed_without_turns_and_lead_to_one() -> None:
    change = ChangeView(at_token=32, cause="tools reordered", role="system")
    turn = make_turn(0, 10.0, misses={"new": 20, "changed": 16}, change=change)
    core = FakeCore((make_engine(3), [make_job(name, turn) for name in SESSIONS]))
    with connect(core) as client:
        listed = client.get("/agentcache/jobs").json()["jobs"]
        assert {job["session"] for job in listed} == set(SESSIONS)
        for job in listed:
            assert (job["engine"], job["last_prompt_tokens"]) == (3, 100)
            assert job["last_misses"] == {"new": 20, "changed": 16}
            assert job["last_change"] == {**change.model_dump(), "text": None}
            assert "turns" not in job
            assert client.get(job["url"]).json()["session"] == job["session"]
        assert len(client.get("/agentcache/jobs?limit=2").json()["jobs"]) == 2
        for limit in (0, 501):
            assert client.get(f"/agentcache/jobs?limit={limit}").status_code == 400


def test_who_lists_jobs_at_once_shares_one_short_answer() -> None:
    jobs = [make_job(str(number), *(make_turn(turn, 10.0 * turn) for turn in range(30))) for number in range(40)]
    core, now_s = FakeCore((make_engine(), jobs)), 0.0
    reading = Reading((make_engine(),), 0.0)
    reader = JobReader(core.call, clock=lambda: now_s)

    async def list_twice(limit: int) -> None:
        found = await asyncio.gather(*(reader.list_latest(reading, each) for each in (limit, 500)))
        assert [len(each) for each in found] == [limit, 40]
        assert {len(job["turns"]) for each in found for job in each} == {1}

    async def run() -> None:
        nonlocal now_s
        await list_twice(3)
        now_s += 0.9 * MIN_INTERVAL_S
        await list_twice(5)
        assert core.calls == [(JOBS_METHOD, 0, MAX_JOBS, 1)]
        now_s += 0.1 * MIN_INTERVAL_S
        await list_twice(5)
        assert core.calls == 2 * [(JOBS_METHOD, 0, MAX_JOBS, 1)]

    asyncio.run(run())


def test_who_stops_waiting_for_jobs_leaves_others_their_answer() -> None:
    core, reading = FakeCore((make_engine(), [make_job("known")])), Reading((make_engine(),), 0.0)
    reader = JobReader(core.call)

    async def run() -> None:
        gone, stays = (asyncio.create_task(reader.list_latest(reading, 10)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert len(await stays) == 1

    asyncio.run(run())


def test_the_report_asks_for_whole_jobs_a_few_at_a_time() -> None:
    jobs = [make_job(str(number), *(make_turn(turn, 10.0 * turn) for turn in range(30))) for number in range(70)]
    core = FakeCore((make_engine(), jobs), (make_engine(1), jobs[:3]))
    reading = Reading((make_engine(), make_engine(1)), 0.0)
    found = asyncio.run(JobReader(core.call).list_whole(reading))
    assert [(job["engine"], len(job["turns"])) for job in found] == [(0, 30)] * 70 + [(1, 30)] * 3
    assert len(core.calls) == 3
    assert {(jobs, turns) for _, _, jobs, turns in core.calls} == {(32, MAX_TURNS)}


def test_a_job_without_turns_is_listed() -> None:
    with connect(FakeCore((make_engine(), [make_job("new")]))) as client:
        (job,) = client.get("/agentcache/jobs").json()["jobs"]
        assert (job["last_misses"], job["turn_count"]) == (None, 0)
