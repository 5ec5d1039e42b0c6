"""To which family a session belongs: what is known of it first counts."""

from __future__ import annotations

from agentcache.front_end.family_roots import FamilyRoots


def test_children_and_theirs_belong_to_the_root() -> None:
    roots = FamilyRoots()
    assert [roots.find("root", None, None), roots.find("a", "root", None), roots.find("b", "a", None)] == ["root"] * 3
    assert roots.find("b", None, None) == "root", "it needs no more to say so"
    assert roots.find("other", None, None) == "other"


def test_a_parent_is_a_root_before_it_comes() -> None:
    roots = FamilyRoots()
    assert roots.find("a", "late", None) == "late"
    assert roots.find("late", None, None) == "late"


def test_what_is_known_first_counts() -> None:
    roots = FamilyRoots()
    assert roots.find("a", "root", None) == "root"
    assert roots.find("a", "other", None) == "root"
    assert roots.find("root", "other", None) == "root", "it has been taken for a root"


def test_circles_are_none() -> None:
    roots = FamilyRoots()
    assert roots.find("a", "a", None) == "a"
    assert [roots.find(*link, None) for link in (("a", "b"), ("b", "c"), ("c", "a"))] == ["b", "b", "b"]
    assert roots.find("c", "b", None) == "b"


def test_a_root_that_the_client_names_counts_for_unknown_parents() -> None:
    roots = FamilyRoots()
    assert roots.find("b", "a", None, "root") == "root"
    assert roots.find("c", "b", None, "elsewhere") == "root"
    assert roots.find("root", None, None, "root") == "root"


def test_no_tenant_sees_the_families_of_others() -> None:
    roots = FamilyRoots()
    assert roots.find("a", "root", "one") == "root"
    assert roots.find("a", None, "two") == roots.find("a", None, None) == "a"


def test_chains_and_crowds_take_bounded_room() -> None:
    roots = FamilyRoots(max_bytes=400_000)
    assert {roots.find(f"{depth}", f"{depth - 1}", None) for depth in range(1, 10_000)} == {"0"}
    assert len(roots) < 1000
    for child in range(10_000):
        roots.find(f"child {child}", "x" * 4096, None)
    assert 0 < len(roots) < 30
