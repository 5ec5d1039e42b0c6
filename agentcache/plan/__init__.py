"""Simulates in parallel what other policies and caches would have made of recorded traffic: `agentcache plan`."""
