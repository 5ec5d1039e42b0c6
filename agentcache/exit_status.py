"""The exit statuses of the command, beside 0 and 1."""

from __future__ import annotations

from typing import Final

USAGE_ERROR: Final = 2
"""What the user gave cannot work; one line on stderr says why."""
INTERRUPTED: Final = 130
"""Ctrl-C ended it, as shells count signals; what was done by then is kept."""
TERMINATED: Final = 143
"""SIGTERM ended it before it served, as shells count signals."""
