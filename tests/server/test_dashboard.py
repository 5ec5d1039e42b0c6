"""The Grafana dashboard asks only for metrics that are there, with labels that they have."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from asked_metrics import TARGET_LABELS, find_exported, series_of
from vllm.v1.metrics import loggers

import agentcache

FILE = Path(agentcache.__file__).parents[1] / "docs" / "grafana-dashboard.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
GROUPING = re.compile(r"\bby \(([^)]*)\)")


@cache
def find_vllm_names() -> set[str]:
    names = re.findall(r'name="(vllm:\w+)"', Path(loggers.__file__).read_text(encoding="utf-8"))
    assert names
    return set(names)


def test_every_series_of_ours_is_exported() -> None:
    for expression in EXPRESSIONS:
        names = list(series_of(expression))
        assert names, expression
        for name in names:
            if name.startswith("agentcache:"):
                assert name in find_exported(), expression
            else:
                assert re.sub(r"_(total|bucket|sum|count)$", "", name) in find_vllm_names(), expression


def test_labels_asked_for_are_there() -> None:
    for expression in (one for one in EXPRESSIONS if "agentcache:" in one):
        for part in re.split(r"\s/\s", expression):
            asked = {label.strip() for found in GROUPING.findall(part) for label in found.split(",")}
            for name in series_of(part):
                assert asked <= find_exported().get(name, set()) | TARGET_LABELS, expression
        assert "instance=~" in expression, expression


def test_expressions_are_whole() -> None:
    for expression in EXPRESSIONS:
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
        assert set(re.findall(r"\$\w+", expression)) <= {"$instance", "$__rate_interval"}, expression
        # A counter as it is only ever grows.
        for counter in re.findall(r"agentcache:\w+_(?:total|bucket|sum|count)\b", expression):
            assert f"rate({counter}{{" in expression


def test_legends_name_labels_that_the_series_keep() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {label for found in GROUPING.findall(target["expr"]) for label in found.split(", ")}
            assert wanted <= (kept if "sum" in target["expr"] else {"instance", "engine"})


def test_the_exported_metrics_are_all_shown() -> None:
    shown = {name for expression in EXPRESSIONS for name in series_of(expression)}
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in find_exported()}
    # The policy stands in the list of servers, the next is the old name of one that is shown, the last has an alert.
    others = {"agentcache:policy_info", "agentcache:observer_failures_total"}
    assert exported - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == others


def test_it_can_be_imported_for_any_data_source() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["instance"]["query"]["query"] == "label_values(agentcache:policy_info, instance)"
    sources = [where["datasource"]["uid"] for panel in PANELS for where in (panel, *panel["targets"])]
    assert set(sources) == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in places)
