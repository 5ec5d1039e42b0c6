"""The one place where a scheduler's parts are made: each from those that it depends on, as constructor arguments.

`parts.py` has the order, `jobs.py` makes what follows jobs.
"""
