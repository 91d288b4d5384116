"""The Grafana dashboard asks for metrics and labels that the service exports, by Prometheus' parser."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from dsearch.engine import Collection

DASHBOARD = Path(__file__).parents[3] / "scripts" / "deploy" / "grafana.json"
FUNCTIONS = {"sum", "by", "rate", "histogram_quantile"}
OF_HISTOGRAM = ("_bucket", "_sum", "_count")
ABSENT_HERE = {"dsearch_query_drift": {"collection", "model"}}  # until a trained model had 30 queries


def exported(client: TestClient) -> dict[str, set[str]]:
    """Name of each sample → its labels."""
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        if family.type == "histogram":
            names |= {family.name + suffix: set() for suffix in OF_HISTOGRAM}
        elif family.type == "counter":
            names[f"{family.name}_total"] = set()
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def test_every_expression_names_what_is_exported(client: TestClient, papers: Collection) -> None:
    client.post("/v1/collections/papers/search", json={"query": "cat"})
    names = exported(client) | ABSENT_HERE
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 12
    used: set[str] = set()
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            asked = set(re.findall(r"dsearch_\w+", expression))
            assert asked, expression
            assert asked <= names.keys(), expression
            used |= asked
            known = {"le", *(label for name in asked for label in names[name])}
            grouped = ",".join(re.findall(r"by \(([^)]*)\)", expression))
            labels = {*re.split(r"\W+", grouped), *re.findall(r"(\w+)[=!]~?\"", expression)} - {""}
            labels |= {*re.findall(r"{{(\w+)}}", target["legendFormat"])}
            assert labels <= known, (expression, labels - known)
            assert expression.count("(") == expression.count(")")
            words = set(re.findall(r"\b([a-z_]+)\b(?=\s*\()", expression))
            assert words <= FUNCTIONS, expression
    kinds = {re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in names}
    shown = {re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in used}
    left_out = {name for name in kinds - shown if name.startswith("dsearch_")}
    assert left_out == {
        "dsearch_requests_accepted",
        "dsearch_query_cache_entries",
        "dsearch_collection_generation",
        "dsearch_collection_sequence",
    }
