"""Finds in a server's counts what is wrong with its clients or its settings: plain values in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentcache.doctor.facts import Values, add_up, share, tell_places, tell_tokens, tell_waits
from agentcache.report.verdict import judge_server

# Shares below these are not worth a finding.
_LEAST_CHANGED_TURNS = 0.02
_LEAST_EVICTED = 0.1
_LEAST_BEHIND_GAP = 0.05
_LEAST_ELSEWHERE = 0.05
_LEAST_HELD = 0.05
_LEAST_NOT_READ = 0.05
_MOST_UNMATCHED = 0.5
_MOST_BROKEN = 0.5
_LEAST_TURNS = 10

# Of the parts that may fail, the one that counts jobs.
_JOB_STATS = "job_stats"

_ADVICE = {
    "adapter changed": "The client asks another LoRA adapter, or one was loaded anew: what one has computed is of no "
    "use to another. Give each adapter jobs of its own.",
    "tools left out": "The client leaves tools out that it had declared, as at its last step: declare them at every "
    'turn. tool_choice "none" forbids calls, if the server runs without --exclude-tools-when-tool-choice-none.',
    "tool text changed": "The client changes a tool's description or parameters: keep dates, counters and lists out of "
    "them.",
    "options changed": "The client changes what the chat template is given beside the messages: keep "
    "chat_template_kwargs, reasoning_effort and documents as they are within a job.",
    "rendered anew": "The client repeats its messages; the server or the chat template writes them anew, as it merges "
    "system messages, hides earlier reasoning, or renders what it stored for previous_response_id. Another "
    "--chat-template may not, nor may clients that send their history themselves.",
    "tools reordered": "The client lists its tools in another order each time: have it send them in one order.",
    "tools changed": "The client declares other tools from turn to turn: declare all of them at the first turn.",
    "system message changed": "The client rewrites its system message: put a date, a counter or a list of files "
    "into the latest message instead.",
    "history summarised": "The client replaces its history by a summary: have it do so late and seldom, and ask for "
    "the summary with the same system message and tools, so that the call finds the history cached.",
    "history truncated": "The client cuts earlier messages, and all behind the cut is computed again: have it cut "
    "seldom, and much at a time.",
    "history edited": "The client edits earlier messages, as where it clears old results of tools, and all behind is "
    "computed again: have it do so seldom, many at a time, or in the latest alone.",
    "history changed": "The client edits or shortens earlier messages: have it do so rarely and much at a time.",
    "reply not repeated": "Replies come back in other words: have the client return them as they came, with their "
    "reasoning and the arguments of calls as text. Where it does, the chat template writes them anew.",
    "unknown": "The client changes its prompts before the end: compare two requests in a row there.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend, in a line, and one line of advice. `example` are lines that show what is meant."""

    text: str
    advice: str
    example: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`facts` are lines that hold in any case; `healthy` says why there is no finding; both sentences may be empty."""

    facts: tuple[str, ...]
    findings: tuple[Finding, ...]
    healthy: str = ""
    verdict: str = ""


def diagnose(engines: Sequence[Values], jobs: Sequence[Values]) -> Diagnosis:
    """Diagnose a server by the engines of `GET /agentcache/state` and the jobs of `GET /agentcache/jobs`."""
    broken = _find_broken(engines)
    failures = tuple(_judge_broken(broken))
    runtimes = [runtime for engine in engines if (runtime := engine.get("runtime"))]
    if not runtimes and _JOB_STATS in broken:
        return Diagnosis(("No job is counted any more.",), (*failures, *_judge_setup(engines)))
    if not runtimes:
        policy = engines[0]["policy"] if engines else "unknown"
        nothing = Finding(
            f"Policy {policy} follows no jobs, so nothing is known of their misses.",
            "Start the server with --policy observe, which leaves order and evictions as they are in stock vLLM.",
        )
        return Diagnosis((), (*failures, nothing))
    prompt, hit = (sum(each[name] for each in runtimes) for name in ("prompt_tokens", "hit_tokens"))
    missed, found = add_up(runtimes, "missed_tokens"), add_up(runtimes, "found_jobs")
    if not prompt:
        return Diagnosis(("No turn of a job has ended yet.",), (*failures, *_judge_setup(engines)))
    findings = (
        *failures,
        *_judge_clients(runtimes, jobs),
        *_judge_matches(found),
        *_judge_ends(jobs),
        *_judge_cache(prompt, missed, runtimes),
        *_judge_load(runtimes),
        *_judge_setup(engines),
    )
    return Diagnosis(
        (*tell_tokens(prompt, hit, missed), *tell_places(prompt, runtimes), *tell_waits(found.total(), runtimes)),
        findings,
        "" if findings else _explain_health(prompt, missed, found, runtimes),
        judge_server(engines, sum(job.get("last_prompt_tokens") or 0 for job in jobs if not job.get("is_over"))) or "",
    )


def _explain_health(prompt: int, missed: Counter[str], found: Counter[str], runtimes: Sequence[Values]) -> str:
    """Say what was looked at, and from where on it would be a finding."""
    evicted, behind = (share(missed[reason], prompt) for reason in ("evicted", "behind a gap"))
    most = [f"{100 * least:.0f} %" for least in (_LEAST_EVICTED, _LEAST_BEHIND_GAP, _LEAST_CHANGED_TURNS)]
    return (
        f"Nothing to mend: {evicted} of the prompt tokens were evicted and computed again ({most[0]} would be told), "
        f"{behind} were cached behind a gap ({most[1]}), {add_up(runtimes, 'changed_prompts').total():,} of "
        f"{found.total():,} prompts left the last turn of their job ({most[2]}); tool calls are read, no part failed."
    )


def _find_broken(engines: Sequence[Values]) -> list[str]:
    """Find the parts that only explain and have failed at any engine."""
    failures = [engine.get("observer_failures") or {} for engine in engines]
    return sorted({name for each in failures for name, count in each.items() if count})


def _judge_broken(broken: Sequence[str]) -> Iterator[Finding]:
    if broken:
        yield Finding(
            f"Failed, and off since: {', '.join(broken)}. Requests are served as before, but what these counted has "
            "stopped.",
            "Report the traceback after “failed, and is off” in the server's log; restart the server to count again.",
        )


def _judge_clients(runtimes: Sequence[Values], jobs: Sequence[Values]) -> Iterator[Finding]:
    requests = add_up(runtimes, "found_jobs").total()
    left = add_up(runtimes, "left_tokens")
    for cause, turns in add_up(runtimes, "changed_prompts").most_common():
        if turns >= _LEAST_CHANGED_TURNS * requests:
            job = _find_example(cause, jobs)
            why = "cause not known" if cause == "unknown" else cause
            text = f"{turns:,} of {requests:,} prompts left the last turn of their job: {why}{_name(job)}"
            text += f"; {left[cause]:,} of its tokens were left behind." if left[cause] else "."
            yield Finding(text, _ADVICE.get(cause, _ADVICE["unknown"]), _show_text(job))


def _find_example(cause: str, jobs: Sequence[Values]) -> Values | None:
    """Find a job whose last prompt changed so; one with text, if there is any."""
    changed = [job for job in jobs if (job.get("last_change") or {}).get("cause") == cause]
    return next((job for job in changed if job["last_change"].get("text")), changed[0] if changed else None)


def _name(job: Values | None) -> str:
    if job is None:
        return ""
    change = job["last_change"]
    role = f" ({change['role']})" if change.get("role") else ""
    at_token = (change.get("text") or change)["at_token"]
    return f"; for example at token {at_token:,}{role} of session {_quote(job['session'])}"


def _show_text(job: Values | None) -> tuple[str, ...]:
    """Show what the last prompt had there, and this one, if the server shows text."""
    text = None if job is None else job["last_change"].get("text")
    if not text:
        return ()
    return tuple(f"{name}: …{_clean(text['before'] + text[name])}…" for name in ("was", "now"))


def _judge_matches(found: Counter[str]) -> Iterator[Finding]:
    going_on = found.total() - found["first"]
    if going_on and found["unmatched"] > _MOST_UNMATCHED * going_on:
        yield Finding(
            f"{found['unmatched']:,} of {going_on:,} requests that hold an earlier reply were matched with no job.",
            "Have clients name their session: X-Session-ID, session_id, or in their own way (docs/clients.md).",
        )


def _judge_ends(jobs: Sequence[Values]) -> Iterator[Finding]:
    """Judge how the turns of the latest jobs ended: what is cut off at its token limit is no turn to go on from."""
    broken = sum(job.get("failure_count", 0) for job in jobs)
    turns = broken + sum(job.get("turn_count", 0) for job in jobs)
    if turns >= _LEAST_TURNS and broken > _MOST_BROKEN * turns:
        yield Finding(
            f"{broken:,} of {turns:,} replies to the latest jobs were cut off, broken off or failed: nothing is learnt "
            "from these, and what their clients change is not told.",
            "Have clients give a higher max_tokens, or none; load generators may set ignore_eos (docs/clients.md).",
        )


def _judge_cache(prompt: int, missed: Counter[str], runtimes: Sequence[Values]) -> Iterator[Finding]:
    if missed["evicted"] >= _LEAST_EVICTED * prompt:
        yield Finding(
            f"The cache is too small for these jobs: {share(missed['evicted'], prompt)} of the prompt tokens had been "
            "evicted when they were wanted again.",
            _advise_on_size(add_up(runtimes, "hits"), add_up(runtimes, "evicted_from")),
        )
    if missed["behind a gap"] >= _LEAST_BEHIND_GAP * prompt:
        yield Finding(
            f"{share(missed['behind a gap'], prompt)} of the prompt tokens were cached, but behind a gap.",
            "Reuse segments: --policy agentcache, and segments.enabled not off.",
        )
    if missed["not read"] >= _LEAST_NOT_READ * prompt:
        yield Finding(
            f"{share(missed['not read'], prompt)} of the prompt tokens were cached, and not to be read.",
            "Requests with prompt_logprobs read nothing from the cache, by vLLM's rule: ask for these only where they "
            "are needed. Drafters, and layers with windows or states, cannot go on from every cached block.",
        )
    if missed["at another engine"] >= _LEAST_ELSEWHERE * prompt:
        yield Finding(
            f"{share(missed['at another engine'], prompt)} of the prompt tokens were cached at the engine that their "
            "job had left for one with less to do.",
            "Have fewer jobs move: raise replicas.spill_factor, or give the engines room for more of them.",
        )


def _judge_load(runtimes: Sequence[Values]) -> Iterator[Finding]:
    requests = add_up(runtimes, "found_jobs").total()
    held = sum(each.get("held_turns", 0) for each in runtimes)
    if requests and held >= _LEAST_HELD * requests:
        yield Finding(
            f"{held:,} of {requests:,} requests waited to compute their contexts: jobs want more than the caches hold.",
            "Serve fewer jobs at a time, or raise --kv-offloading-size; the higher order.recompute_share, the shorter "
            "these waits (docs/tuning.md).",
        )


def _advise_on_size(hits: Counter[str], losses: Counter[str]) -> str:
    if losses["evicted"] > losses.total() / 2:
        return "Most of these were evicted from the CPU cache: raise --kv-offloading-size."
    # Places are known of two caches only.
    host = "" if hits else "add --kv-offloading-size, "
    return f"Raise --gpu-memory-utilization, {host}serve fewer jobs at a time, or add a GPU."


def _judge_setup(engines: Sequence[Values]) -> Iterator[Finding]:
    for obstacle in dict.fromkeys(engine.get("segments_obstacle") for engine in engines):
        if obstacle:
            yield Finding(
                f"Cached blocks are reused as prefixes only: {obstacle}.",
                "What the option behind it gives may be worth more; README.md says which features exclude it.",
            )
    for obstacle in dict.fromkeys(engine.get("tier_obstacle") for engine in engines):
        if obstacle:
            yield Finding(
                f"The CPU cache is vLLM's own tier, not steered: {obstacle}.",
                "Turn that off if it is an option; what agentcache would keep by value goes least recently used first.",
            )
    if not any(engine["knobs"]["runtime"]["tool_parser"] for engine in engines):
        yield Finding(
            "Tool calls are not read, so nothing is kept while tools run.",
            "Start the server with --enable-auto-tool-choice and the model's --tool-call-parser.",
        )


def _quote(session: str) -> str:
    """Quote a name that a client has made up, for a terminal: short, without control characters."""
    shown = _clean(session)
    return f"“{shown[:40]}{'…' if len(shown) > 40 else ''}”"


def _clean(text: str) -> str:
    return "".join(sign if sign.isprintable() else "·" for sign in text)
