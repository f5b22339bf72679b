"""Rendering prompts and evaluating expressions.

Values are data: text that contains "{{" is copied as it stands and never rendered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, UndefinedError

from agentflow.workflow.meter import CostlyTemplateError, check_length, metered
from agentflow.workflow.references import (
    TemplateError,
    environment,
    is_expression,
    names,
    parsed,
    parsed_expression,
)
from agentflow.workflow.sandbox import FILE_NAME

__all__ = ["TemplateError", "evaluate", "names", "render", "render_value"]


def render(template: str, context: Mapping[str, Any], *, where: str | None = None) -> str:
    """Return the template filled in with `context`.

    `where` names the template in errors, such as `str(workflow.location(("nodes", "read", "prompt")))`.
    Raises `TemplateError` for anything wrong: undefined names, unsafe access, more than 4 MB of text,
    a million steps, or ten seconds.
    """
    if "{" not in template:
        return template
    try:
        compiled = _compiled(template)
        pieces, length = [], 0
        with metered():
            for piece in compiled.generate(dict(context)):
                length += len(piece)
                check_length(length)
                pieces.append(piece)
    except Exception as error:  # noqa: BLE001 - the template is the user's code, so its errors are theirs
        _raise(error, where)
    return "".join(pieces)


def evaluate(expression: str, context: Mapping[str, Any], *, where: str | None = None) -> Any:
    """Return the value of an expression such as `inputs.questions`. Raises `TemplateError`."""
    try:
        compiled = _compiled_expression(expression)
        with metered():
            scope = compiled.new_context(dict(context))
            deque(compiled.root_render_func(scope), maxlen=0)
        value = scope.vars["result"]
        if isinstance(value, jinja2.Undefined):
            str(value)  # raises, saying what is undefined
    except Exception as error:  # noqa: BLE001 - as above
        _raise(error.with_traceback(None), where)  # the lines of an expression's code mean nothing to anybody
    return value


def render_value(template: str, context: Mapping[str, Any], *, where: str | None = None) -> Any:
    """Return what a single `{{ expression }}` stands for, a list as a list; any other template as text."""
    fill = evaluate if is_expression(template) else render
    return fill(template, context, where=where)


@lru_cache(maxsize=1024)
def _compiled(template: str) -> jinja2.Template:
    return _compile(parsed(template))


@lru_cache(maxsize=1024)
def _compiled_expression(expression: str) -> jinja2.Template:
    return _compile(parsed_expression(expression))


def _compile(tree: nodes.Template) -> jinja2.Template:
    env = environment()
    code = env.compile(tree, filename=FILE_NAME)
    return jinja2.Template.from_code(env, code, env.globals)


def _raise(error: Exception, where: str | None) -> NoReturn:
    fix: str | None = None
    line = _line(error)
    if isinstance(error, TemplateError):
        what, fix, line = error.what, error.fix, error.line
        where = where or error.where
    elif isinstance(error, CostlyTemplateError | UndefinedError | SecurityError):
        what = str(error)
    elif isinstance(error, RecursionError | MemoryError | SyntaxError):
        what = "the template is nested too deeply"
    else:
        what = f"the template failed: {error}"
    at = f"line {line} of the template: " if line and line > 1 else ""
    stop = "" if what.endswith(("?", ".")) else "."
    raise TemplateError(f"{at}{what}{stop}", where=where, fix=fix, line=line) from None


def _line(error: Exception) -> int | None:
    """Return the template's line that was running, from the frames jinja has renamed."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
