"""Tracks jobs: which job a request belongs to, and which blocks its last turn left.

`tracker.py` keeps the books: of each request in the engine a `RequestState`. `job_finder.py` finds the job of a
request, by its name or by what the API server tells (`engine/marks.py`), or by the tokens that it repeats of the turns
in `turn_chains.py`. `finish_classes.py` tells the evictor how a turn ended; `duration_files.py` finds the files that
keep tool durations over restarts.
"""
