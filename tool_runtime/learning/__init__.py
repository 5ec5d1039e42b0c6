"""Learns of agents: their jobs and gaps, how long tools take, how long to keep a turn's KV."""
