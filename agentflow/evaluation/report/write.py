"""The reports of a comparison as files."""

from __future__ import annotations

import os
from pathlib import Path

from agentflow.errors import RunError
from agentflow.evaluation.report.html import html_report
from agentflow.evaluation.report.json_report import json_report
from agentflow.evaluation.report.markdown import markdown_report
from agentflow.evaluation.rows import Comparison
from agentflow.evaluation.summary import Summary, summarize


def write_reports(comparison: Comparison, folder: Path, summary: Summary | None = None) -> dict[str, Path]:
    """Write report.html, report.md and report.json; each appears whole or not at all.

    Args:
        summary: of this comparison, where it is at hand already.

    Returns:
        The files, by "html", "md" and "json".

    Raises:
        RunError: the folder can't be written to.
    """
    known = summary or summarize(comparison)
    texts = {
        "html": html_report(known, comparison),
        "md": markdown_report(known, comparison),
        "json": json_report(known, comparison),
    }
    paths = {kind: folder / f"report.{kind}" for kind in texts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, text in texts.items():
            _write(paths[kind], text)
    except OSError as error:
        raise RunError(f"The report can't be written: {error.strerror or error}.", where=str(folder)) from None
    return paths


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Lone surrogates can't be encoded: a broken answer must not cost the report.
        part.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
