"""Reuses cached blocks behind gaps, which fill requests compute (multi-segment reuse).

`cached_blocks.py` finds which of a queued request's blocks can be reused, by the rule of the model's layers
(`layer_rule.py`); `plan.py` chooses the gaps that are worth a fill request; `gap_filler.py` makes fill requests
(`fill_request.py`), and holds the blocks behind them; `stand_ins.py` shows them to vLLM, and `scheduler.py` hides them
from clients.
"""
