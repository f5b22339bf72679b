"""A comparison as one JSON document: the figures, and the rows that they were computed from."""

from __future__ import annotations

import json
import math
from typing import Any

from agentflow.evaluation.rows import Comparison
from agentflow.evaluation.summary import Summary

FORMAT = "agentflow-comparison/1"


def json_report(summary: Summary, comparison: Comparison) -> str:
    """The document; strict JSON, so what is no finite number is null."""
    document = {"format": FORMAT, "summary": summary.to_json(), "comparison": comparison.to_json()}
    return json.dumps(_strict(document), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
