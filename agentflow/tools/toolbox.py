"""Which tools there are: those of the entry-point group `agentflow.tools`, and functions that the user names.

A workflow can only name a tool. What code stands behind a name is decided by what is installed and by the command
line, never by YAML.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from blake3 import blake3

from agentflow.errors import did_you_mean
from agentflow.plugins import load_entry, plugin_names
from agentflow.tools.base import Tool, ToolError

GROUP = "agentflow.tools"


class Toolbox:
    """Tools by name, loaded when they are first asked for; a context manager that closes them.

    Args:
        functions: further tools, by their own names.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._lock = threading.Lock()
        for function in functions:
            self._add(Tool.of(function))

    @classmethod
    def from_file(cls, path: Path | None) -> Toolbox:
        """With the public functions that a Python file defines; the file is run. Without one, what is installed.

        Raises:
            ToolError: it can't be run, defines none, or takes the name of a tool that is installed.
        """
        if path is None:
            return cls()
        functions = _functions(_module(path))
        if not functions:
            fix = "A tool is a function whose name does not begin with '_'."
            raise ToolError("This file defines no tools.", where=str(path), fix=fix)
        try:
            return cls(functions)
        except ToolError as error:
            raise ToolError(error.what, where=str(path), fix=error.fix) from None

    @property
    def names(self) -> list[str]:
        """Every tool's name, sorted; nothing is imported."""
        return sorted({*plugin_names(GROUP), *self._tools})

    def get(self, name: str) -> Tool:
        """The tool of that name.

        Raises:
            ToolError: there is none, or it can't be loaded.
        """
        with self._lock:
            if name in self._tools:
                return self._tools[name]
            if name not in plugin_names(GROUP):
                fix = did_you_mean(name, self.names)
                fix = fix if fix.startswith("Did") else "`--tools FILE` adds the functions of a Python file."
                raise ToolError(f"Unknown tool '{name}'.", fix=fix)
            loaded = load_entry(GROUP, name, error=ToolError)
            tool = Tool.of(loaded() if inspect.isclass(loaded) else loaded, name)
            self._tools[name] = tool
            return tool

    def close(self) -> None:
        """Let tools that hold something (processes, connections) give it back."""
        for tool in self._tools.values():
            close = getattr(tool.function, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, tool: Tool) -> None:
        if tool.name in plugin_names(GROUP):
            raise ToolError(f"There is a tool '{tool.name}' already.", fix="Choose another name for the function.")
        self._tools[tool.name] = tool


def _module(path: Path) -> ModuleType:
    """Run a file as a module of its own."""
    name = f"agentflow_tools_{blake3(str(path.resolve()).encode()).hexdigest(6)}"
    spec = importlib.util.spec_from_file_location(name, path) if path.suffix == ".py" else None
    if spec is None or spec.loader is None or not path.is_file():
        raise ToolError("There is no such Python file.", where=f"--tools {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ToolError(f"The tools can't be loaded: {type(error).__name__}: {error}.", where=str(path)) from error
    return module


def _functions(module: ModuleType) -> list[Callable[..., Any]]:
    """The public functions that a module defines itself."""
    found = vars(module).values()
    return [f for f in found if inspect.isfunction(f) and f.__module__ == module.__name__ and f.__name__[:1] != "_"]
