"""Mooncake's request traces, each request a job of one turn."""
