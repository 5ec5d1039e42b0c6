from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.marks import job_name, shorten
from tool_runtime.learning.job_table import MAX_ID, bounded_id

TEXT = st.text(st.characters(), max_size=2 * MAX_ID)
SALTS = st.none() | st.text(min_size=1, max_size=MAX_ID)


@given(TEXT, SALTS)
def test_the_table_keeps_every_name_as_it_is(session: str, salt: str | None) -> None:
    assert bounded_id(job_name(session, salt)) == job_name(session, salt)


@given(TEXT, SALTS, SALTS)
def test_tenants_share_no_job(session: str, one: str | None, other: str | None) -> None:
    assert (job_name(session, one) == job_name(session, other)) == (one == other)


@pytest.mark.parametrize("session", ["mine", "x" * 100])
def test_no_session_has_the_name_of_a_tenants_job(session: str) -> None:
    salted = job_name(session, "tenant")
    guesses = [salted, salted.partition(":")[2], f"6 tenant {session}", f"- {session}", shorten(session)]
    assert salted not in [job_name(guess, None) for guess in guesses]
    assert salted not in [job_name(guess, "other") for guess in guesses]


def test_no_session_has_the_name_of_a_long_one() -> None:
    session = "x" * (MAX_ID + 1)
    assert job_name(shorten(session), None) != shorten(session)


def test_a_short_name_stays_readable() -> None:
    assert job_name("x" * MAX_ID, None) == "x" * MAX_ID
