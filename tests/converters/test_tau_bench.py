from __future__ import annotations

import json

import pytest
from converters.left_out import LeftOut
from converters.tau_bench import read_runs
from made_pace import make_pace

from agentcache.errors import InputError

CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"seat": 4}'}}
CHAT = (
    {"role": "system", "content": "Airline."},
    {"role": "user", "content": "Book."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "done", "tool_call_id": "c1", "name": "book"},
    {"role": "assistant", "content": "Booked. More?"},
    {"role": "user", "content": "No."},
    {"role": "assistant", "content": "Bye."},
    {"role": "user", "content": "###STOP###"},
)


def run(task=0, trial=0, chat=CHAT, **fields):
    return {"task_id": task, "trial": trial, "traj": list(chat), "reward": 1.0, "info": {}, **fields}


def load(folder, entries, *, jobs=None, seed=0, left_out=None):
    path = folder / "runs.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), encoding="utf-8")
    return read_runs(path, jobs=jobs, pace=make_pace(seed=seed), left_out=left_out or LeftOut())


def test_a_run_is_a_job_with_tools_and_a_user(tmp_path):
    [job] = load(tmp_path, [run(3, 1)])
    assert job.id == "task-3-trial-1"
    assert [tool["function"]["name"] for tool in job.tools] == ["book"]
    assert [(turn.content, turn.pause_s) for turn in job.turns] == [("", 0.0), ("Booked. More?", 7.0), ("Bye.", 0.0)]
    [call], [result] = job.turns[0].tool_calls, job.turns[0].results
    assert (call.arguments, result.content, result.duration_s) == ('{"seat": 4}', "done", 2.0)


def test_all_jobs_begin_with_the_same_tools(tmp_path):
    jobs = load(tmp_path, [run(0), run(1, chat=[*CHAT[:2], {"role": "assistant", "content": "No."}])])
    assert jobs[0].tools == jobs[1].tools
    assert jobs[0].messages == jobs[1].messages


def test_the_seed_draws_runs_without_repeating_one(tmp_path):
    runs = [run(task) for task in range(20)]
    drawn = {seed: [job.id for job in load(tmp_path, runs, seed=seed)] for seed in (0, 1)}
    assert drawn[0] != drawn[1]
    assert set(drawn[0]) == set(drawn[1]) == {f"task-{task}-trial-0" for task in range(20)}
    assert [job.id for job in load(tmp_path, runs, jobs=4)] == drawn[0][:4]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("5", "Input should be a valid array"),
        ("{}", "info: Field required"),
        ([], "holds no entries"),
        ([run(), {**run(), "trial": -1}], r"\[1\].trial: .*greater than or equal to 0"),
        ([run(), {"task_id": 1, "trial": 0}], r"\[1\].traj: Field required"),
        ([run(chat=[{"role": "robot", "content": ""}])], r"\[0\].traj\[0\].role: Input should be 'system'"),
        ([run(chat=[{"role": "user"}])], r"\[0\].traj\[0\].content: Field required"),
        ([run(chat=CHAT[2:])], r"\[0\].traj\[0\]: is a reply; it needs a message before it"),
        ([run(chat=[]), run(1, chat=CHAT[:2])], "holds 2 runs, all of which failed"),
        ([run(4), run(5), run(4)], r"\[2\].traj: task-4-trial-0 again, after \[0\].traj"),
    ],
)
def test_a_bad_run_is_named_by_number_and_field(tmp_path, entries, problem):
    with pytest.raises(InputError, match=rf"runs\.json: {problem}") as caught:
        load(tmp_path, entries)
    assert "\n" not in str(caught.value)


def test_failed_runs_and_unknown_fields_are_left_out_and_counted(tmp_path):
    # As the benchmark writes a task that raised, and LiteLLM a message of a reasoning model.
    failed = run(9, chat=[], info={"error": "litellm.Timeout", "traceback": "Traceback"})
    thinking = {**CHAT[2], "reasoning_content": "Which seat?", "function_call": None}
    left_out = LeftOut()
    jobs = load(tmp_path, [failed, run(0), run(1, chat=[*CHAT[:2], thinking, *CHAT[3:]])], left_out=left_out)
    assert {job.id for job in jobs} == {"task-0-trial-0", "task-1-trial-0"}
    assert jobs[0].turns == jobs[1].turns
    failed_line, fields = left_out.describe()
    assert failed_line == "Runs that failed and hold nothing to replay, left out: 1."
    assert "reasoning_content 1, function_call 1" in fields


def simulate(task, messages, **fields):
    return {
        "id": f"run-{task}",
        "task_id": task,
        "trial": 1,
        "termination_reason": "user_stop",
        "messages": messages,
        **fields,
    }


def test_simulations_of_tau2_are_read(tmp_path):
    call = {"id": "c1", "name": "book", "arguments": {"seat": 4}, "requestor": "assistant"}
    own = {"id": "u1", "name": "restart_phone", "arguments": {}, "requestor": "user"}
    messages = [
        {"role": "assistant", "content": "Hi! How can I help?", "tool_calls": None, "turn_idx": 0},
        {"role": "user", "content": "Book."},
        {"role": "assistant", "content": None, "tool_calls": [call], "usage": {"prompt_tokens": 9}, "raw_data": None},
        {"role": "tool", "id": "c1", "content": "done", "requestor": "assistant", "error": False},
        {"role": "assistant", "content": "Restart your phone."},
        {"role": "user", "content": None, "tool_calls": [own]},
        {"role": "tool", "id": "u1", "content": "restarted", "requestor": "user"},
        {"role": "user", "content": "I did. ###STOP###"},
        {"role": "assistant", "content": "Bye."},
    ]
    failed = simulate("9", None, termination_reason="infrastructure_error")
    greeted = simulate("8", messages[:1], termination_reason="infrastructure_error")
    info = {"environment_info": {"domain_name": "airline", "policy": "Book seats."}, "num_trials": 2}
    results = {"info": info, "tasks": [], "simulations": [failed, greeted, simulate("3", messages)]}
    left_out = LeftOut()
    [job] = load(tmp_path, json.dumps(results, indent=4), left_out=left_out)
    assert (job.id, left_out.failed) == ("task-3-trial-1", 2)
    assert [message["content"] for message in job.messages] == ["Book seats.\n\nHi! How can I help?", "Book."]
    assert [(turn.content, [result.content for result in turn.results]) for turn in job.turns] == [
        ("", ["done"]),
        ("Restart your phone.", []),
        ("Bye.", []),
    ]
    del results["info"]["environment_info"]["policy"]
    with pytest.raises(InputError, match=r"runs\.json: info\.environment_info\.policy: Field required"):
        load(tmp_path, json.dumps(results))


def test_more_jobs_than_runs_and_packed_files_are_refused(tmp_path):
    (tmp_path / "packed.json.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(InputError, match=r"--jobs 3: .*runs\.json has 2 recordings; give 1 to 2"):
        load(tmp_path, [run(0), run(1)], jobs=3)
    for name, problem in (("gone.json", "cannot be read"), ("packed.json.zst", "unpack it first")):
        with pytest.raises(InputError, match=problem):
            read_runs(tmp_path / name, jobs=None, pace=make_pace(), left_out=LeftOut())
