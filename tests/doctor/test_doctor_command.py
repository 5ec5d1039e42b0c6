"""`agentcache doctor` against our routes, and against what is no server of ours."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from made_engine import FakeCore, make_app, make_engine, make_job, make_runtime, make_turn
from starlette.testclient import TestClient

from agentcache.cli import main
from agentcache.doctor import command
from agentcache.doctor.findings import Diagnosis, Finding
from agentcache.engine.views import ChangeView

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def answer_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """What the doctor asks is answered by a function."""

    def use(answer: Answer) -> None:
        make = httpx.Client
        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(command.httpx, "Client", lambda **options: make(transport=transport, **options))

    return use


def test_it_prints_findings_of_a_running_server(
    answer_by: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change = ChangeView(at_token=32, cause="tools reordered", role=None)
    knobs = {**make_engine().knobs, "runtime": {"tool_parser": "hermes"}}
    engine = make_engine(knobs=knobs, runtime=make_runtime(held_turns=0))
    core = FakeCore((engine, [make_job("mine", make_turn(0, 1.0, change=change))]))
    with TestClient(make_app(core)) as server:
        keys = list[str | None]()

        def ask(request: httpx.Request) -> httpx.Response:
            keys.append(request.headers.get("Authorization"))
            answer = server.get(request.url.raw_path.decode())
            return httpx.Response(answer.status_code, content=answer.content)

        answer_by(ask)
        assert main(["doctor", "http://host:8000/v1/", "--api-key", "secret"]) == 0
    assert keys == ["Bearer secret"] * 2
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "10,000 prompt tokens, of which 75.0 % came from the cache."
    assert printed[-7:] == [
        "",
        "1. 2 of 15 prompts left the last turn of their job: tools reordered; for example",
        "   at token 32 of session “mine”.",
        "   The client lists its tools in another order each time: have it send them in",
        "   one order.",
        "",
        "Too few jobs: 9 so far, and 40 are the least that tell; pressure below 0.1.",
    ]
    assert max(map(len, printed)) <= 80


def test_an_example_stands_below_the_advice(capsys: pytest.CaptureFixture[str]) -> None:
    command.print_diagnosis(Diagnosis((), (Finding("It changes.", "Keep it.", ("was: …1…", "now: …2…")),)))
    assert capsys.readouterr().out == "\n1. It changes.\n   Keep it.\n   was: …1…\n   now: …2…\n"


def test_a_healthy_server_ends_with_why_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    command.print_diagnosis(Diagnosis(("  9 % new",), (), "Nothing to mend: " + "word " * 20 + "end.", "Keep it on."))
    assert capsys.readouterr().out == (
        "  9 % new\n\nNothing to mend:"
        + " word" * 12
        + "\nword word word word word word word word end.\n\nKeep it on.\n"
    )


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (refuse, "no server answers there (refused); give http://host:port"),
        (lambda _: httpx.Response(401), "the server wants its key; give --api-key, or set VLLM_API_KEY"),
        (lambda _: httpx.Response(404), "GET /agentcache/state gave no engines (status 404)"),
        (lambda _: httpx.Response(200, text="<html>"), "GET /agentcache/state gave no engines (status 200)"),
        (lambda _: httpx.Response(200, json=[]), "GET /agentcache/state gave no engines (status 200)"),
    ],
)
def test_what_is_no_server_of_ours_is_one_line(
    answer: Answer, line: str, answer_by: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer_by(answer)
    assert main(["doctor", "http://host:8000"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentcache: http://host:8000: ")
    assert line in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("host:8000/v1/", "http://host:8000"),
        ("http://host:8000/agentcache/report", "http://host:8000"),
        ("http://host:8000/agentcache/report?refresh=5", "http://host:8000"),
        ("host:8000/agentcache-live#key=secret", "http://host:8000"),
        ("https://agentcache/agentcache", "https://agentcache"),
        ("agentcache.example/proxy/agentcache/state", "http://agentcache.example/proxy"),
        ("http://host/v1beta", "http://host/v1beta"),
    ],
)
def test_any_address_of_the_server_will_do(answer_by: Callable[[Answer], None], given: str, base: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, json={"engines": []})

    answer_by(answer)
    assert main(["doctor", given]) == 0
    assert asked == [f"{base}/agentcache/state"]


@pytest.mark.parametrize("url", ["", "http://[", "ftp://host"])
def test_what_is_no_address_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", url]) == 2
    assert capsys.readouterr().err.count("\n") == 1
