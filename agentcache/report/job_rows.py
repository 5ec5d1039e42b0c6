"""Says in a row what a job took: in a run's report, and in a server's live one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from agentcache.report.content import MAX_LISTED, Listing, Report
from agentcache.report.events import RequestEvent
from agentcache.report.policy_run import PolicyRun
from agentcache.report.table import NO_DATA, format_number, show_share

COLUMNS = ("Turns", "Latency (s)", "TTFT, mean (s)", "Prompt tokens", "Cached", "Output tokens", "Waited (s)")


class JobFigures(NamedTuple):
    """What a job took, in the order of `COLUMNS`; tokens of all its prompts and replies, turns by sub-agent."""

    turns: int
    latency_s: float
    ttft_mean_s: float | None
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    waited: str
    agent_turns: Sequence[int] = ()

    def tell(self) -> tuple[str, ...]:
        """Write the figures as cells of a table."""
        ttft = NO_DATA if self.ttft_mean_s is None else format_number(self.ttft_mean_s)
        cached = NO_DATA if self.cached_tokens is None else show_share(self.cached_tokens, self.prompt_tokens)
        tokens = f"{self.prompt_tokens:,}", cached, f"{self.output_tokens:,}"
        return self._tell_turns(), format_number(self.latency_s), ttft, *tokens, self.waited or NO_DATA

    def _tell_turns(self) -> str:
        if not self.agent_turns:
            return f"{self.turns:,}"
        agents = len(self.agent_turns)
        return f"{self.turns:,} ({sum(self.agent_turns):,} by {agents} sub-agent{'' if agents == 1 else 's'})"


def list_slowest_jobs(report: Report) -> Listing:
    """List the finished jobs that took longest, as many of each policy; none of closed loops."""
    most = MAX_LISTED // max(1, len(report.policies)) or 1
    rows = [(policy, *row) for policy, run in report.policies.items() for row in _list_jobs(run, most)]
    jobs = sum(len(run.finished_jobs) for run in report.policies.values())
    return Listing(("Policy", "Job", *COLUMNS), rows, jobs - len(rows))


def _list_jobs(run: PolicyRun, most: int) -> Iterator[tuple[str, ...]]:
    requests: dict[str, list[RequestEvent]] = defaultdict(list)
    for request in run.answered:
        requests[request.job].append(request)
    for job in sorted(run.finished_jobs, key=lambda job: job.started_s - job.finished_s)[:most]:
        own = requests[job.job]
        ttfts = [each.ttft_s for each in own if each.ttft_s is not None]
        cached = [each.cached_tokens for each in own if each.cached_tokens is not None]
        queued = [each.queue_s for each in own if each.queue_s is not None]
        prompt, output = (sum(getattr(each, f"{name}_tokens") for each in own) for name in ("prompt", "output"))
        latency_s, ttft_s = job.finished_s - job.started_s, fmean(ttfts) if ttfts else None
        waited = format_number(sum(queued)) if queued else ""
        agents = Counter(each.thread for each in own if each.thread is not None)
        tokens = prompt, sum(cached) if cached else None, output
        yield job.job, *JobFigures(len(own), latency_s, ttft_s, *tokens, waited, list(agents.values())).tell()
