"""By how much the simulator was off where it stood beside a GPU: docs/results/simulator-error.md and families.md."""

from __future__ import annotations

# Single runs of Llama-3.1-8B and BFCL on an H200 or H100, at the knee and past it; the worst has blocks of 128 tokens.
MEAN_SHARE = 0.14
# Plans of recordings of the same; all policies but continuum-code are within 4.
HIT_POINTS = 6

KNOWN_ERROR = (
    f"Known error of the simulator beside GPUs (the ±, of Llama-3.1-8B and BFCL): one run's mean job latency is off by "
    f"up to {MEAN_SHARE:.0%}, the mean of six seeds by 3%; hits are off by up to {HIT_POINTS} points. Elsewhere it is "
    "more: hits of coding sessions 15 points, mean job latency of Qwen3-30B-A3B 9%, of Gemma-3-12B 21%, of Qwen3.5-9B "
    "21% (hits 18 points; 51% before its steps were corrected)."
).replace("%", " %")
