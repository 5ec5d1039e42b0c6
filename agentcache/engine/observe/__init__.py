"""Explains and counts what happened to requests, and decides nothing.

An error in one of these observers turns it off (`engine/parts.py`):

- `misses`, with `losses` of two caches (`misses.py`): why a prompt was not cached. They also count for the price of a
  return, which keeps what it has learnt if they fail.
- `prompt_changes` (`prompt_change.py`): what a client has changed, and the text of it.
- `job_stats` and `hit_places` (`stats.py`): turns and counts of jobs, and which cache supplied hits.
- `lru_comparison` (`lru_comparison.py`): what a shadow LRU would have hit.
- `recording` (`recorder.py`): lines of a recording, which `workloads/recording/writer.py` writes in a thread.
- `snapshot` (`engine/rpc/snapshot.py`): what is read for metrics.
"""
