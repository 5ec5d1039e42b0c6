"""Text in the place of token ids: what is written, of how many changes, and where it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from made_engine import FakeCore, connect, make_engine, make_job, make_turn

from agentcache.engine.views import ChangeText, ChangeView, JobView
from agentcache.server import change_text
from agentcache.server.change_text import write_all

HOSTILE = "<script>alert(1)</script>"
# A token is the code of a character, or one of these.
WORDS = {1: "Today", 2: " is", 3: " Monday", 4: " Tuesday", 5: "\n\x1b[31m\u202e\ud800", 6: HOSTILE, 7: "x" * 500}


def decode(tokens: Sequence[int]) -> str:
    """As tokenizers of SentencePiece do: without the space at the beginning."""
    return "".join(WORDS[token] for token in tokens).removeprefix(" ")


def make_change(before: Sequence[int] = (1, 2), was: Sequence[int] = (3,), now: Sequence[int] = (4,)) -> ChangeView:
    text = ChangeText(at_token=34, before=tuple(before), was=tuple(was), now=tuple(now))
    return ChangeView(at_token=32, cause="system message changed", role="system", text=text)


def write(change: ChangeView) -> Any:
    job = make_job("mine", make_turn(0, 1.0, change=change)).model_dump(mode="json")
    write_all([job], decode)
    return job["turns"][0]["change"]["text"]


def test_text_is_written_with_the_spaces_it_has() -> None:
    assert write(make_change()) == {"at_token": 34, "before": "Today is", "was": " Monday", "now": " Tuesday"}
    assert write(make_change(was=()))["was"] == ""


def test_control_characters_are_escaped() -> None:
    assert write(make_change(was=(5,)))["was"] == r"\n\x1b[31m\u202e\ud800"


def test_text_is_bounded_near_the_change() -> None:
    text = write(make_change(before=(7, 2), was=(3, 7)))
    assert text["before"] == "x" * 157 + " is"
    assert text["was"] == " Monday" + "x" * 153


def test_a_character_of_several_tokens_may_be_cut() -> None:
    found = {(1,): "caf\ufffd", (1, 2): "café au lait", (1, 3): "cafè", (2,): "\ufffd au lait", (3,): "\ufffd"}
    job = make_job("mine", make_turn(0, 1.0, change=make_change((1,), (2,), (3,)))).model_dump(mode="json")
    write_all([job], lambda tokens: found[tuple(tokens)])
    assert job["turns"][0]["change"]["text"] == {
        "at_token": 34,
        "before": "caf\ufffd",
        "was": "\ufffd au lait",
        "now": "\ufffd",
    }


def make_jobs(count: int) -> list[JobView]:
    """Each with two changes and a turn behind them."""
    turns = (make_turn(0, 1.0, change=make_change()), make_turn(1, 5.0, change=make_change()), make_turn(2, 9.0))
    return [make_job(f"job {number}", *turns) for number in range(count)]


def test_a_session_shows_the_text_of_all_its_turns() -> None:
    with connect(FakeCore((make_engine(), make_jobs(1))), decode) as client:
        (job,) = client.get("/agentcache/jobs/job 0").json()["jobs"]
    assert [turn["change"] and turn["change"]["text"]["was"] for turn in job["turns"]] == [" Monday", " Monday", None]


@pytest.mark.usefixtures("without_plots")
def test_lists_decode_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_text, "_MAX_LISTED_TEXTS", 2)
    calls = list[Sequence[int]]()

    def count(tokens: Sequence[int]) -> str:
        calls.append(tokens)
        return decode(tokens)

    last = [make_job(f"last {number}", make_turn(0, 1.0, change=make_change())) for number in range(3)]
    with connect(FakeCore((make_engine(), last)), count) as client:
        jobs = client.get("/agentcache/jobs").json()["jobs"]
    assert [bool(job["last_change"]["text"]) for job in jobs] == [True, True, False]
    per_text = len(calls) // 2
    with connect(FakeCore((make_engine(), make_jobs(1))), count) as client:
        client.get("/agentcache/report")
    assert len(calls) == 3 * per_text, "the latest change alone"


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("path", ["/agentcache/jobs", "/agentcache/jobs/last", "/agentcache/report"])
def test_without_a_tokenizer_no_token_is_told(path: str) -> None:
    change = make_change(was=(777_001,), now=(777_002,))
    with connect(FakeCore((make_engine(), [make_job("last", make_turn(0, 1.0, change=change))]))) as client:
        page = client.get(path).raise_for_status().text
    assert "system message changed" in page
    assert "77700" not in page


def read_table(page: str) -> list[str]:
    """Read the cells of the table of changes, heads first."""
    table = page.partition("Where prompts left their last turn")[2].partition("</table>")[0]
    return re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", table)


@pytest.mark.usefixtures("without_plots")
def test_the_live_page_shows_text_and_escapes_it() -> None:
    jobs = [make_job("mine", make_turn(3, 1.0, change=make_change(was=(6,)))), make_job("same", make_turn(0, 9.0))]
    with connect(FakeCore((make_engine(), jobs)), decode) as client:
        page = client.get("/agentcache/report").text
    assert read_table(page)[-8:] == [
        *("mine", "3", "34", "system", "system message changed", "Today is"),
        *("&lt;script&gt;alert(1)&lt;/script&gt;", " Tuesday"),
    ]
    assert "<script" not in page


@pytest.mark.usefixtures("without_plots")
def test_the_live_page_shows_changes_without_text() -> None:
    change = ChangeView(at_token=1024, cause="unknown", role=None)
    with connect(FakeCore((make_engine(), [make_job("mine", make_turn(0, 1.0, change=change))]))) as client:
        cells = read_table(client.get("/agentcache/report").text)
    assert cells == ["Job", "Turn", "Token", "Message", "What changed", "mine", "0", "1,024", "–", "unknown"]
