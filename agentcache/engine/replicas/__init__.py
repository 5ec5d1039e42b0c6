"""Replicas: vLLM's data-parallel client asks `agentcache/policy/replicas/` which engine gets a request.

`placer.py` translates vLLM's requests and outputs; `client.py` puts it into the client of an API server. Several of
them share one placement, which `placement_process.py` runs, with what `job_places.py` adds. Nothing here runs in an
engine core.
"""
