"""A tool: a Python function whose parameters are typed, called with JSON values, and giving one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from blake3 import blake3
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from agentflow.errors import UserError, did_you_mean

LARGEST_RESULT = 1 << 20
"""Bytes of a result as JSON: results are kept in the run's folder, and shown to templates."""


class ToolError(UserError):
    """A tool can't be used, was called wrongly, or gave what can't be kept."""


@dataclass(frozen=True)
class Misuse:
    """An argument that a tool does not take as it is given; `argument` is None where one is missing."""

    argument: str | None
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Parameter:
    """What a tool wants to know: a name, the check of its type, and whether it must be given."""

    name: str
    type: TypeAdapter[Any]
    required: bool

    def checked(self, value: Any) -> Any:
        """The value as the function wants it: a JSON list where it takes a tuple, and nothing converted otherwise.

        Raises:
            ValueError: in words, what it should have been.
        """
        try:
            return self.type.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            inside = "".join(f"[{step!r}]" for step in first["loc"])
            message = first["msg"]
            raise ValueError(f"{inside}{': ' if inside else ''}{message[:1].lower()}{message[1:]}") from None
        except TypeError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, eq=False)
class Tool:
    """A function by its name in workflows.

    Attributes:
        function: called with keyword arguments, on a thread of its own, perhaps several at once. Where it has a
            `close`, that is called when nobody will use it any more.
    """

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, Parameter]

    @classmethod
    def of(cls, function: Any, name: str = "") -> Tool:
        """The tool that a function (or an object that can be called) is.

        Raises:
            ToolError: it can't be called, or a parameter has no type, or can't be given by name.
        """
        called = name or getattr(function, "__name__", type(function).__name__)
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ToolError(f"The tool '{called}' is no plain function.")
        inner = function if inspect.isroutine(function) else type(function).__call__
        try:
            hints = get_type_hints(inner, include_extras=True)
        except (NameError, TypeError) as error:
            raise ToolError(f"The types of the tool '{called}' can't be read: {error}.") from None
        found = {p.name: _parameter(called, p, hints) for p in inspect.signature(function).parameters.values()}
        return cls(called, function, found)

    @cached_property
    def mark(self) -> str:
        """A digest of its source: what it said before it was changed is not its answer now."""
        inner = self.function if inspect.isroutine(self.function) else type(self.function)
        try:
            return blake3(inspect.getsource(inner).encode()).hexdigest(16)
        except (OSError, TypeError):
            return ""

    def misuses(self, names: Mapping[str, Any]) -> Iterator[Misuse]:
        """Arguments of these names that it does not take, and those that are missing."""
        for name in names:
            if name not in self.parameters:
                fix = did_you_mean(name, self.parameters) or "It takes none."
                yield Misuse(name, f"the tool '{self.name}' takes no argument '{name}'", fix)
        for name, parameter in self.parameters.items():
            if parameter.required and name not in names:
                yield Misuse(None, f"the tool '{self.name}' needs the argument '{name}'", f"Add `{name}: ...`.")

    def misfit(self, name: str, value: Any) -> str:
        """Why a value can't be given as this argument, in words; "" where it can."""
        try:
            self.parameters[name].checked(value)
        except ValueError as error:
            return f"the argument '{name}' of the tool '{self.name}' does not fit: {error}"
        return ""

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Call it; the result as plain JSON values.

        Raises:
            ToolError: an argument does not fit, or the result is no JSON, or too large.
            Exception: whatever the function raises.
        """
        given = {}
        for misuse in self.misuses(arguments):
            raise ToolError(f"{misuse.what[:1].upper()}{misuse.what[1:]}.", fix=misuse.fix)
        for name, value in arguments.items():
            try:
                given[name] = self.parameters[name].checked(value)
            except ValueError as error:
                raise ToolError(f"The argument '{name}' of the tool '{self.name}' does not fit: {error}.") from None
        return self._kept(self.function(**given))

    def _kept(self, result: Any) -> Any:
        try:
            text = json.dumps(result, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"The tool '{self.name}' gave something that is no JSON: {error}.") from None
        if len(text) > LARGEST_RESULT:
            what = f"The tool '{self.name}' gave {len(text):,} bytes, and {LARGEST_RESULT:,} are the most."
            raise ToolError(what, fix="Return less, or write a file and return its name.")
        return json.loads(text)


def text_of(result: Any) -> str:
    """How a tool's result reads: a text as it stands, a mapping with a `text` as that, anything else as JSON."""
    if isinstance(result, dict) and isinstance(result.get("text"), str):
        return str(result["text"])
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _parameter(tool: str, found: inspect.Parameter, hints: Mapping[str, Any]) -> Parameter:
    if found.kind not in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY):
        raise ToolError(f"The parameter '{found.name}' of the tool '{tool}' can't be given by name.")
    if found.name not in hints:
        raise ToolError(
            f"The parameter '{found.name}' of the tool '{tool}' has no type.",
            fix=f"Write for example `{found.name}: str`.",
        )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hints[found.name])
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        raise ToolError(f"The type of '{found.name}' of the tool '{tool}' is not JSON's: {reason}") from None
    return Parameter(found.name, adapter, found.default is found.empty)
