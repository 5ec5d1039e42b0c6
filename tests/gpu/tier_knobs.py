"""Knobs under which every block is worth a copy."""

from __future__ import annotations

# Everything is worth a fetch.
KNOBS = {"tier": {"enabled": True, "link_gb_s": 1e6}, "tuning": {"row_s": 0.0, "link_latency_s": 0.0}}
