"""The alert rules in docs/alerts.yml have Prometheus's format, and ask for metrics and labels that a server has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from asked_metrics import TARGET_LABELS, find_exported, list_samples, series_of
from background_server import SharedServer

import agentcache

DOCS = Path(agentcache.__file__).parents[1] / "docs"
FILE: dict[str, Any] = yaml.safe_load((DOCS / "alerts.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in FILE["groups"] for rule in group["rules"]]
PANELS = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
ASKED = [
    *(target["expr"] for panel in PANELS for target in panel.get("targets", ())),
    *(rule["expr"] for rule in RULES),
]
DURATION = re.compile(r"\d+(ms|[smhdwy])")
SELECTED = re.compile(r'(agentcache:\w+)\{(\w+)="([^"]*)"[,}]')
# Of what is grouped by, these labels are left; else all that the series have.
GROUPED = re.compile(r"sum by \(([^)]*)\)")


def test_rules_have_what_promtool_asks_for() -> None:
    assert set(FILE) == {"groups"}
    assert [set(group) for group in FILE["groups"]] == [{"name", "rules"}]
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 5
    for rule in RULES:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}, rule
        assert DURATION.fullmatch(rule.get("for", "0s")), rule
        assert re.fullmatch(r"\w+", rule["alert"])
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        for opening, closing in ("()", "{}", "[]"):
            assert rule["expr"].count(opening) == rule["expr"].count(closing), rule
        assert " > " in rule["expr"]


def test_rules_ask_for_exported_series() -> None:
    for rule in RULES:
        names = list(series_of(rule["expr"]))
        assert names, rule
        assert set(names) <= set(find_exported()), rule
        # A counter as it is only ever grows.
        for counter in (name for name in names if name.endswith("_total") and "failures" not in name):
            assert re.search(rf"(rate|increase)\({counter}(\{{[^}}]*\}})?\[\w+\]\)", rule["expr"]), rule


def test_annotations_name_labels_that_alerts_have() -> None:
    for rule in RULES:
        kept = GROUPED.search(rule["expr"])
        names = series_of(rule["expr"])
        labels = set(kept[1].split(", ")) if kept else find_exported()[next(names)] | TARGET_LABELS
        asked = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert asked <= labels, rule
        assert "instance" in asked, rule


def test_values_asked_for_are_there() -> None:
    asked = [found for expression in ASKED for found in SELECTED.findall(expression)]
    assert ("agentcache:missed_tokens_total", "reason", "evicted") in asked
    for name, label, value in asked:
        assert any((sample.name, sample.labels.get(label)) == (name, value) for sample in list_samples()), (name, value)


@pytest.mark.engine
def test_a_real_server_has_all_metrics_that_are_asked_for(shared_server: SharedServer) -> None:
    shared_server.use("agentcache")
    served = set(re.findall(r"^# TYPE ([\w:]+) ", httpx.get(f"{shared_server.url}/metrics").text, re.MULTILINE))
    asked = {name for expression in ASKED for name in series_of(expression)}
    assert {name for name in asked if {name, re.sub(r"_(bucket|sum|count)$", "", name)}.isdisjoint(served)} == set()
