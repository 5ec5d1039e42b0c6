from __future__ import annotations

from agentcache.policy.replicas.job_homes import LiveJobs


def test_what_follows_answers_is_learnt_anew() -> None:
    """A thousand jobs that ended do not outweigh the latest two hundred, which went on."""
    live = LiveJobs(60.0)
    for _ in range(1000):
        live.learn_answer()
    assert not live.go_on
    for _ in range(200):
        live.learn_answer()
        live.learn_return()
    assert live.go_on
