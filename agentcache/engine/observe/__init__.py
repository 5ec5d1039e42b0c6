"""Explains and counts what happened to requests, and decides nothing.

An error in one of these observers turns it off (`engine/parts.py`):

- `misses` and `hit_places` (`misses.py`), with `losses` of two caches (`ledger.py`): why a prompt was not cached, and
  which cache supplied hits. They also count for the price of a return, which keeps what it has learnt if they fail.
- `prompt_changes` (`prompt_change.py`): what a client has changed, and the text of it. If it fails, prompts are
  expected to repeat replies, as those of a new client.
- `job_stats` (`stats.py`): turns, counts and views of jobs.
- `lru_comparison` (`lru_comparison.py`): what a shadow LRU would have hit.
- `recording` (`recorder.py`): lines of a recording, which `record_writer.py` writes in a thread.
- `snapshot` (`snapshot.py`): what is read for metrics.

`views.py` has what leaves the engine's process, as plain values.
"""
