"""Which classes of blocks are copied to the CPU cache."""

from __future__ import annotations

from agentcache.policy.price import Usefulness


def test_class_is_tried_until_too_few_are_fetched() -> None:
    usefulness = Usefulness(least_share=0.05)
    assert usefulness.is_useful(7)
    usefulness.note_lost([7] * 3600)
    assert usefulness.is_useful(7)
    usefulness.note_lost([7])
    assert not usefulness.is_useful(7)
    assert usefulness.is_useful(8)
    usefulness.note_fetched([7])
    assert usefulness.is_useful(7)


def test_class_that_was_given_up_is_tried_again() -> None:
    usefulness = Usefulness(least_share=0.05)
    usefulness.note_lost([7] * 5000)
    assert not usefulness.is_useful(7)
    usefulness.note_avoided(44_999)
    assert not usefulness.is_useful(7)
    usefulness.note_avoided(1)
    assert usefulness.is_useful(7)


def test_class_whose_copies_are_fetched_outlives_losses() -> None:
    usefulness = Usefulness(least_share=0.2)
    for _ in range(100):
        usefulness.note_lost([7] * 600)
        usefulness.note_fetched([7] * 400)
        assert usefulness.is_useful(7)


def test_nothing_is_stored_where_copies_cost_more_than_they_save() -> None:
    assert not Usefulness(least_share=1.5).is_useful(1)
