"""Fill requests that lose their blocks: what they had computed is used as far as it is whole."""

from __future__ import annotations

from gapped_scheduler import PROMPT, cache_prompt, make_lone, rows_of, run_until_idle


def test_a_block_that_was_half_filled_is_not_used(tiny_model_path: str) -> None:
    engine = {"long_prefill_token_threshold": 24, "max_num_batched_tokens": 200}
    lone = make_lone(tiny_model_path, blocks=24, engine=engine)
    cache_prompt(lone, *range(1, 12))
    # The request fits beside these, but not beside the second block of each, which they take while its gap is filled.
    for number in range(4):
        lone.add(f"growing {number}", [1000 * number + token for token in range(400, 414)], output_tokens=16)
    lone.add("job", PROMPT, output_tokens=1)
    steps = run_until_idle(lone)
    # Its ninth block had eight tokens then.
    rows = [row for step in steps for name, row in rows_of(step).items() if "fill" in name]
    assert [name for step in steps for name in step.preempted] == ["job#fill-0"]
    assert [before for _, before in rows] == [16, 40, 64, 88, 112, 128]
