"""report.html and summary.json as they are written from the folders of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_run import make_events, make_job, make_request, write_run
from shown_page import read_page

from agentcache.errors import InputError
from agentcache.report.builder import read_report, write_report
from agentcache.report.content import MAX_LISTED
from agentcache.report.events import EVENTS_FILE, Event, PolicyEvent
from agentcache.report.figure import render_svg
from agentcache.report.html import PLOTS

pytestmark = pytest.mark.usefixtures("without_plots")

FILES = ("summary.json", "report.html")
HOSTILE = '<script>alert("x")</script> | `</td>` http://evil.example/x.png\n# head'


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcache.report.html.PLOTS", PLOTS)
    monkeypatch.setattr("agentcache.report.html.render_svg", render_svg)


class Links(HTMLParser):
    """Every tag, and every attribute by which a page could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        loading = {"src", "href", "xlink:href", "srcset", "data", "action"}
        self.links += [value or "" for name, value in attrs if name in loading]


def report_of(tmp_path: Path, events: Sequence[Event], **changes: object) -> dict[str, str]:
    folder = write_run(tmp_path / "run", events, **changes)
    write_report([folder], folder)
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES}


def two_policies() -> list[Event]:
    return [*make_events("lru", 8, hit=0.3), *make_events("agentcache", 8, hit=0.8)]


def test_summary_json_is_what_is_returned(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", two_policies())
    summary = write_report([folder], folder).summary
    written = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert list(written["policies"]) == ["lru", "agentcache"]
    assert written["policies"]["lru"]["jobs"] == 8
    assert written["run"]["command"].startswith("agentcache replay")
    assert written == json.loads(summary.model_dump_json())


def test_pages_say_what_was_run(tmp_path: Path) -> None:
    pages = report_of(tmp_path, two_policies(), device="NVIDIA H200", notes=("cache bounded on purpose",))
    for text in (
        "NVIDIA H200",
        "agentcache replay --workload bfcl",
        "65,536",
        "2.13.0",
        "2026-11-21T10:30:00+00:00",
        "cache bounded on purpose",
        "ratio to lru",
    ):
        assert text in pages["report.html"]
    assert "| lru | V1 | 16 | 65,536 | 21.4 |" in read_page(tmp_path / "run" / "report.html")


def test_the_table_has_a_cell_for_every_value_and_ratio(tmp_path: Path) -> None:
    report_of(tmp_path, two_policies())
    text = read_page(tmp_path / "run" / "report.html")
    (rows,) = re.findall(r"Results\n(.*)\n↓ lower", text, flags=re.DOTALL)
    assert "| Metric | lru | agentcache | \n" in rows
    metrics = [row for row in rows.splitlines() if row.count("|") == 5]
    assert len(metrics) > 10
    assert any(re.fullmatch(r"\| Token hit rate \(%\) ↑ \| [\d.]+ \| [\d.]+ \| [\d.]+× \| ", row) for row in metrics)


@pytest.mark.usefixtures("plots")
def test_html_needs_nothing_else(tmp_path: Path) -> None:
    links = Links()
    links.feed(report_of(tmp_path, two_policies())["report.html"])
    assert links.links
    assert [link for link in links.links if not link.startswith(("#", "data:"))] == []
    assert not links.tags & {"script", "link", "iframe", "object", "embed"}


@pytest.mark.usefixtures("plots")
def test_text_of_the_record_is_never_markup(tmp_path: Path) -> None:
    events = [*make_events(HOSTILE, 3), make_job("lru", HOSTILE, 0.0, 1.0, status="failed", error=HOSTILE)]
    pages = report_of(tmp_path, events, command=HOSTILE, workload=HOSTILE, notes=(HOSTILE,))
    links = Links()
    links.feed(pages["report.html"])
    assert "script" not in links.tags
    assert "&lt;script&gt;alert(" in pages["report.html"]
    assert [link for link in links.links if not link.startswith(("#", "data:"))] == []


@pytest.mark.usefixtures("plots")
def test_same_events_make_the_same_bytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_events("lru", 3))
    write_report([folder], tmp_path / "first")
    write_report([folder], tmp_path / "second")
    for name in FILES:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_events("lru", 4)[:-1])
    whole = write_report([folder], folder).summary
    with (folder / EVENTS_FILE).open("ab") as file:
        # In the middle of a character.
        file.write('{"type": "job", "policy": "lru", "job": "Ø'.encode()[:-1])
    assert write_report([folder], folder).summary == whole


def test_a_cut_off_line_is_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_events("lru", 24), notes=("Mine.",))
    assert write_report([folder], folder).losses == {"run": []}
    with (folder / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"type": "job", "policy": "lru", "jo')
    (line,) = write_report([folder], folder).losses["run"]
    assert line == "events.jsonl: the last line is cut off, and what it recorded is left out."
    assert f"{line}\nMine.\n" in read_page(folder / "report.html")


def test_jobs_without_a_line_are_counted(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", [*make_events("lru", 24), *make_events("asymcache", 20)])
    second = write_run(tmp_path / "second", make_events("lru", 24))
    losses = write_report([first, second], tmp_path / "both").losses
    line = (
        "events.jsonl: no line tells of 4 of the 24 jobs under asymcache: they never began, or their lines were lost."
    )
    assert losses == {"first": [line], "second": []}
    assert f"first: {line}\n" in read_page(tmp_path / "both" / "report.html")


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--out /proc/report: cannot be written \(.*\); give another folder"):
        write_report([tmp_path / "none"], Path("/proc/report"))


@pytest.mark.parametrize(
    "line", [b'{"type": "\xff"}', b'{"type": "\\ud800"}', b"[" * 200_000, b"9" * 5000, b"\xff\xfe{\x00"]
)
def test_a_line_that_is_no_json_is_named(tmp_path: Path, line: bytes) -> None:
    folder = write_run(tmp_path / "run", make_events("lru", 1))
    (folder / EVENTS_FILE).write_bytes(line + b"\n")
    with pytest.raises(InputError, match=r"events\.jsonl:1: not an event \(Invalid JSON: .*\)$"):
        write_report([folder], folder)


def test_broken_line_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_events("lru", 1))
    lines = (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    (folder / EVENTS_FILE).write_text("\n".join([lines[0], "{}", *lines[1:]]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"events\.jsonl:2: not an event"):
        write_report([folder], folder)


@pytest.mark.usefixtures("plots")
def test_interrupted_run_says_so(tmp_path: Path) -> None:
    events = [event for event in make_events("lru", 24) if not isinstance(event, PolicyEvent) and event.finished_s < 20]
    begun = {event.job for event in events} - {event.job for event in events if event.type == "job"}
    assert begun
    pages = report_of(tmp_path, events)
    text = (
        f"lru: the run broke before this policy ended, with {len(begun)} jobs begun and not ended; job latency is over"
    )
    assert text in pages["report.html"]
    assert "job interrupted" in pages["report.html"]


def test_run_without_a_finished_job_makes_a_report(tmp_path: Path) -> None:
    pages = report_of(tmp_path, [make_request("lru", "a", 0, 0.0, 1.0, reply_s=1.0, prompt_tokens=64, output_tokens=4)])
    assert json.loads(pages["summary.json"])["policies"]["lru"]["job_latency_s"]["mean"] is None
    assert "no job finished, so there is no job latency" in pages["report.html"]
    assert "| Job latency, mean (s) ↓ | – |" in read_page(tmp_path / "run" / "report.html")


def test_run_without_events_makes_a_report(tmp_path: Path) -> None:
    pages = report_of(tmp_path, [])
    assert "No events were recorded" in pages["report.html"]


def test_failed_jobs_are_listed_with_their_cause_up_to_a_count(tmp_path: Path) -> None:
    failed = [
        make_job("lru", f"job-{n}", 0.0, 1.0, status="failed", error=f"cause {n}.") for n in range(MAX_LISTED + 5)
    ]
    pages = report_of(tmp_path, [*failed, make_job("lru", "good", 0.0, 1.0)])
    page = pages["report.html"]
    assert f"cause {MAX_LISTED - 1}." in page
    assert f"cause {MAX_LISTED}." not in page
    assert "5 more are in" in page
    assert "lru: the run broke before this policy ended, with 0 jobs" in page
    assert f"of {MAX_LISTED + 6} jobs {MAX_LISTED + 5} failed; job latency is over the 1 finished only" in page


def test_diverged_prompts_are_listed(tmp_path: Path) -> None:
    pages = report_of(tmp_path, [make_request("lru", "job-a", 3, 0.0, 1.0, diverged_at=12_345)])
    assert "<td>lru</td><td>job-a</td><td>3</td><td>12,345</td>" in pages["report.html"]
    assert "1 prompt diverged" in pages["report.html"]


def test_several_runs_are_compared(tmp_path: Path) -> None:
    first = write_run(tmp_path / "h200", make_events("lru", 4), device="NVIDIA H200", settings={"concurrency": 8})
    second = write_run(tmp_path / "cpu", make_events("lru", 4, seed=1), settings={"concurrency": 4})
    summary = write_report([first, second], tmp_path / "compared").summary
    assert list(summary.policies) == ["h200: lru", "cpu: lru"]
    written = json.loads((tmp_path / "compared" / "summary.json").read_text(encoding="utf-8"))
    assert {name: run["device"] for name, run in written["run"].items()} == {
        "h200": "NVIDIA H200",
        "cpu": "CPU backend",
    }
    page = (tmp_path / "compared" / "report.html").read_text(encoding="utf-8")
    assert "The runs differ in device: NVIDIA H200, CPU backend." in page
    assert "The runs differ in these settings: concurrency." in page
    assert "ratio to h200: lru" in page


def test_folders_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / day / "run", make_events("lru", 2)) for day in ("monday", "tuesday")]
    report = read_report(folders)
    assert len(report.runs) == len(report.policies) == 2


def test_folder_given_twice_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_events("lru", 2))
    with pytest.raises(InputError, match="given twice"):
        write_report([folder, tmp_path / "run" / ".." / "run"], tmp_path / "out")


def test_folder_without_a_run_is_refused_before_any_writing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        write_report([tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(InputError, match="no run given"):
        write_report([], tmp_path / "out")
    assert not (tmp_path / "out").exists()
