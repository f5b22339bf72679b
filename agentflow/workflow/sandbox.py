"""The environment templates run in: no files, no Python internals, no chance, and a bounded cost.

Jinja's sandbox keeps templates away from Python's internals. It does not bound their cost, so three things
are added: every operator, filter and call goes through `guards`; every loop pays for its length before it
starts; and what the sandbox does not see (`~`, comparisons, slices, `{% set %}` blocks) is rewritten or joined
within bounds.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from jinja2 import StrictUndefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing
from jinja2.visitor import NodeTransformer

from agentflow.errors import did_you_mean
from agentflow.workflow import guards
from agentflow.workflow.meter import charge, counted
from agentflow.workflow.problems import quoted

FILE_NAME = "<template>"


class PromptUndefined(StrictUndefined):
    """A name that is not there; using it is an error that says what is there."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return str(self._undefined_hint)
        name, holder = quoted(self._undefined_name), self._undefined_obj
        if holder is missing:
            return f"{name} is not defined"
        if isinstance(holder, Mapping):
            advice = did_you_mean(str(self._undefined_name), map(str, holder))
            return f"there is no {name} here. {advice}".rstrip()
        if isinstance(holder, list | tuple):
            return f"there is no {name} in a list of {len(holder)}"
        return f"there is no {name} in a value of type {type(holder).__name__}"


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Templates of prompts: plain text out, block tags leave no blank lines behind."""

    intercepted_binops = guards.OPERATORS

    def __init__(self) -> None:
        super().__init__(
            undefined=PromptUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would compute constants at compile time, unguarded
            finalize=guards.finalize,
            cache_size=0,
        )
        self.filters = guards.filters() | {"_counted": counted, "_measured": guards.measured}
        self.tests = cast(Any, guards.tests())
        self.globals = {"range": guards.bounded_range, "dict": dict, "namespace": Namespace}
        self._callable_types = (Macro, LoopContext, types.BuiltinMethodType)
        self._callable_functions = tuple(self.globals.values())

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return self.bounded(super()._parse(source, name, filename))

    def bounded(self, tree: nodes.Template) -> nodes.Template:
        """Rewrite loops and `~` so that they are counted."""
        _Bounding(self).visit(tree)
        return tree

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a `{% set %}` block or a macro."""
        return guards.joined(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator within bounds."""
        return guards.binary(operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`; a mapping's keys come before its methods: a node may be called `items`."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow what the sandbox allows, and of texts and numbers only what can't grow unbounded."""
        for kind, allowed in guards.ATTRIBUTES.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> PromptUndefined:
        """Return what raises as soon as it is used."""
        hint = f"{quoted(attribute)} of a {type(obj).__name__} can't be used in a template"
        return PromptUndefined(hint, name=attribute, obj=obj, exc=SecurityError)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Leave `str.format` to `is_safe_attribute`, which refuses it."""
        return None

    def is_safe_callable(self, obj: Any) -> bool:
        """Allow macros, `loop`, methods of plain values and the few global functions; nothing else."""
        if isinstance(obj, types.MethodType):
            return isinstance(obj.__self__, LoopContext)
        return isinstance(obj, self._callable_types) or any(obj is known for known in self._callable_functions)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call within bounds."""
        charge()
        if isinstance(obj, StrictUndefined):
            return obj()  # raises, saying what is undefined
        owner = getattr(obj, "__self__", None)
        charge(guards.work(owner) + sum(map(guards.work, args)))
        if not self.is_safe_callable(obj):
            raise SecurityError("a template can call only macros, filters and methods of plain values")
        if isinstance(obj, types.BuiltinMethodType) and isinstance(owner, str):
            return guards.call_text_method(obj, args, kwargs)
        if isinstance(obj, LoopContext) and args:  # a recursive loop
            args = (counted(args[0]), *args[1:])
        return context.call(obj, *args, **kwargs)


class _Bounding(NodeTransformer):
    def __init__(self, environment: PromptEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (jinja's naming)
        self.generic_visit(node)
        node.iter = self._filter("_counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return self._filter("join", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Operand(self, node: nodes.Operand) -> nodes.Operand:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._filter("_measured", node.expr)  # `x in y` and `x == y` look at all of y
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._filter("_measured", node.node)
        return node

    def _filter(self, name: str, value: nodes.Node) -> nodes.Filter:
        made = nodes.Filter(cast(nodes.Expr, value), name, [], [], None, None, lineno=value.lineno)
        made.set_environment(self._environment)
        return made
