"""What a template refers to, found without running it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from jinja2 import TemplateSyntaxError, meta, nodes
from jinja2.parser import Parser

from agentflow.errors import UserError, did_you_mean
from agentflow.workflow.guards import bounded_range
from agentflow.workflow.meter import CostlyTemplateError
from agentflow.workflow.problems import quoted
from agentflow.workflow.sandbox import FILE_NAME, PromptEnvironment

ROOTS = ("inputs", "nodes")
_LOADING = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
_WRAPPED = re.compile(r"\{\{[-+]?(.*?)[-+]?\}\}", re.DOTALL)
_ENVIRONMENT = PromptEnvironment()


class TemplateError(UserError):
    """A template is wrong or failed; `line` (from 1) and the words `near` it say where, when known."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        line: int | None = None,
        near: str = "",
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.line, self.near = line, near


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of `root.name` (or of `root` alone): the `occurrence`-th of what is `written` in the tags.

    Attributes:
        inner: what it takes of that, as in `root.name.inner`; None where it takes all.
    """

    root: str
    name: str | None
    line: int
    written: str
    occurrence: int
    inner: str | None = None


@dataclass(frozen=True, slots=True)
class References:
    """All uses of `inputs.x` and `nodes.x`, and of names that the template does not define itself."""

    members: tuple[Reference, ...] = ()
    names: tuple[Reference, ...] = ()


def environment() -> PromptEnvironment:
    """Return the one environment of the package; it keeps no templates."""
    return _ENVIRONMENT


@lru_cache(maxsize=4096)
def references(template: str) -> References:
    """Return what a template refers to. Raises `TemplateError` when it can't be read."""
    if "{" not in template:
        return References()
    return _references(parsed(template))


@lru_cache(maxsize=4096)
def expression_references(expression: str) -> References:
    """Return what an expression (without braces) refers to. Raises `TemplateError`."""
    return _references(parsed_expression(expression))


def names(template: str) -> set[tuple[str, str]]:
    """Return the pairs ("inputs", "question"), ("nodes", "read") that a template refers to."""
    return {(ref.root, ref.name) for ref in references(template).members if ref.name is not None}


def used(template: str, root: str, *, is_expression: bool = False) -> dict[str, set[str] | None] | None:
    """Return the NAMEs of all `root.NAME` in a template, and of each the names it takes of it, None for all.

    The whole is None when the template also looks at `root` itself. Raises `TemplateError` when it can't be read.
    """
    found = (expression_references if is_expression else references)(template)
    members = [ref for ref in found.members if ref.root == root]
    if sum(ref.root == root for ref in found.names) > len(members):
        return None
    uses: dict[str, set[str] | None] = {}
    for ref in members:
        if ref.name is None:
            continue
        known = uses.setdefault(ref.name, set())
        if ref.inner is None or known is None:
            uses[ref.name] = None
        else:
            known.add(ref.inner)
    return uses


def mentions(template: str, name: str, *, is_expression: bool = False) -> bool:
    """Whether a template uses a name that it does not define itself. Raises `TemplateError`."""
    found = (expression_references if is_expression else references)(template)
    return any(ref.root == name for ref in found.names)


def parsed(template: str) -> nodes.Template:
    """Parse and check a template. Raises `TemplateError`."""
    try:
        tree = _ENVIRONMENT.parse(template, filename=FILE_NAME)
        _check(tree)
    except (TemplateSyntaxError, RecursionError, ValueError) as error:
        _raise(error)
    return tree


def parsed_expression(expression: str) -> nodes.Template:
    """Parse an expression into a template that assigns it to `result`. Raises `TemplateError`."""
    try:
        parser = Parser(_ENVIRONMENT, unwrapped(expression), state="variable", filename=FILE_NAME)
        value = parser.parse_expression()
        if not parser.stream.eos:
            raise TemplateSyntaxError(f"unexpected {quoted(parser.stream.current.value)}", 1)
        target = nodes.Name("result", "store", lineno=1)
        tree = nodes.Template([nodes.Assign(target, value, lineno=1)], lineno=1)
        tree.set_environment(_ENVIRONMENT)
        _check(_ENVIRONMENT.bounded(tree))
    except (TemplateSyntaxError, RecursionError, ValueError) as error:
        _raise(error, "expression")
    return tree


def unwrapped(expression: str) -> str:
    """Return the expression without `{{ }}` around it, which people write by habit."""
    wrapped = _WRAPPED.fullmatch(expression.strip())
    return wrapped[1] if wrapped and "{{" not in wrapped[1] else expression.strip()


def is_expression(template: str) -> bool:
    """Whether a template is a single `{{ expression }}` and nothing else."""
    return unwrapped(template) != template.strip()


def _references(tree: nodes.Template) -> References:
    members: list[Reference] = []
    found: list[tuple[str, int]] = []
    stored: set[str] = set()
    seen: Counter[str] = Counter()
    uses = list(tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)))
    looked_into = {id(n.node): _constant(n) for n in uses if isinstance(n, nodes.Getattr | nodes.Getitem)}
    for node in uses:
        if isinstance(node, nodes.Name):
            if node.ctx == "load":
                found.append((node.name, node.lineno))
            else:
                stored.add(node.name)
        elif isinstance(node, nodes.Getattr | nodes.Getitem) and (member := _member(node)):
            root, name = member
            written = f"{root}.{name}" if isinstance(node, nodes.Getattr) else name
            members.append(Reference(root, name, node.lineno, written, seen[written], looked_into.get(id(node))))
            seen[written] += 1
    free = meta.find_undeclared_variables(tree) if stored else {name for name, _ in found}
    free -= {node.name for node in tree.find_all(nodes.Macro)}  # inside itself a macro counts as undeclared there
    names_found: list[Reference] = []
    for name, line in found:
        if name in free and name not in _ENVIRONMENT.globals:
            names_found.append(Reference(name, None, line, name, seen[name]))
        seen[name] += 1
    return References(tuple(members), tuple(names_found))


def _member(node: nodes.Getattr | nodes.Getitem) -> tuple[str, str] | None:
    if not isinstance(node.node, nodes.Name) or node.node.name not in ROOTS:
        return None
    name = _constant(node)
    return (node.node.name, name) if name is not None else None


def _constant(node: nodes.Getattr | nodes.Getitem) -> str | None:
    """Return the name that is looked up in something, where it is written out."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None


def _check(tree: nodes.Template) -> None:
    """Refuse what can be seen to fail: other files, unknown filters and tests, Python's internals, endless ranges."""
    for node in tree.find_all((*_LOADING, nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem, nodes.Call)):
        if isinstance(node, nodes.Call):
            _check_call(node)
        elif isinstance(node, nodes.Getattr | nodes.Getitem):
            _check_attribute(node)
        elif isinstance(node, nodes.Filter | nodes.Test):
            kind = "filter" if isinstance(node, nodes.Filter) else "test"
            known = _ENVIRONMENT.filters if kind == "filter" else _ENVIRONMENT.tests
            if node.name not in known:
                public = [name for name in known if name.isidentifier() and not name.startswith("_")]
                fix = did_you_mean(node.name, public)
                raise TemplateError(f"unknown {kind} {quoted(node.name)}", fix=fix, line=node.lineno, near=node.name)
        else:
            raise TemplateError(
                "templates can't read other files",
                fix="Write the text here, or pass it as an input.",
                line=node.lineno,
            )


def _check_attribute(node: nodes.Getattr | nodes.Getitem) -> None:
    is_attribute = isinstance(node, nodes.Getattr)
    name = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
    if isinstance(name, str) and re.fullmatch(r"__\w+__", name):
        near = f".{name}" if is_attribute else name
        fix = "Templates see data, not Python."
        raise TemplateError(f"a template can't use {quoted(name)}", fix=fix, line=node.lineno, near=near)


def _check_call(node: nodes.Call) -> None:
    if not isinstance(node.node, nodes.Name) or node.node.name != "range":
        return
    limits = [arg.value for arg in node.args if isinstance(arg, nodes.Const) and isinstance(arg.value, int)]
    if len(limits) == len(node.args) and limits:
        try:
            bounded_range(*limits[:3])
        except (CostlyTemplateError, ValueError) as error:
            raise TemplateError(str(error), line=node.lineno, near="range") from None


def _raise(error: Exception, kind: str = "template") -> NoReturn:
    if isinstance(error, TemplateSyntaxError):
        what, fix = _syntax(str(error.message))
        raise TemplateError(f"the {kind} can't be read: {what}", fix=fix, line=error.lineno) from None
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
    raise TemplateError(f"the {kind} can't be read: {reason}") from None


def _syntax(message: str) -> tuple[str, str | None]:
    """Say jinja's message in the user's terms."""
    if message.startswith("Unexpected end of template"):
        opened = message.rpartition(" is ")[2].strip("'.")
        return f"{{% {opened} %}} is never closed", f"Add {{% end{opened} %}}."
    if message.startswith("Encountered unknown tag"):
        tag = message.split("'")[1]
        return f"unknown tag {quoted(tag)}", "Known: for, if, set, macro, call, filter."
    for token, sign in (("print statement", "}}"), ("statement block", "%}")):
        message = message.replace(f"token 'end of {token}'", f"'{sign}'").replace(f"'end of {token}'", f"'{sign}'")
    message = message.replace("end of template", "end of text").replace("expected token ", "expected ")
    message = message.rstrip(".")
    return message[:1].lower() + message[1:], None
