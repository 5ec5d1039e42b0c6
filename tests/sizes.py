"""How much a test tries: little in every run, more in `make test-thorough`."""

from __future__ import annotations

from hypothesis import settings

# A test of what costs much and hardly ever breaks may be skipped elsewhere.
IS_THOROUGH = settings.get_current_profile_name() == "thorough"


def pick_size(fast: int, thorough: int) -> int:
    """The examples of a property test, or the length of a long run, in the profile in use: see tests/conftest.py."""
    return thorough if IS_THOROUGH else fast
