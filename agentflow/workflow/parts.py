"""The parts of a workflow: agents, inputs, nodes, edges, the task and the defaults.

Each class is one mapping of the YAML file, field by field. Short forms (`question: string`, `channel: cache`,
`task: hotpotqa`) are unfolded before validation, so the rest of the package sees one form only.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from agentflow.errors import did_you_mean
from agentflow.workflow.fields import Generation, ModelRef, Name, NonEmpty, StrictModel, mistake, text_keys
from agentflow.workflow.problems import described, quoted

InputType = Literal["string", "integer", "number", "boolean", "list", "mapping"]
ErrorKind = Literal["timeout", "model", "channel", "template", "tool", "output", "memory", "other"]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)
INPUT_TYPES: tuple[str, ...] = get_args(InputType)
_KIND_SCHEMA: dict[str, Any] = {"enum": list(ERROR_KINDS)}
_KINDS_SCHEMA = {"anyOf": [_KIND_SCHEMA, {"type": "array", "minItems": 1, "items": _KIND_SCHEMA}]}
_OVER_SCHEMA = {"anyOf": [{"type": "string", "pattern": r"\S"}, {"type": "array"}]}

# Names a template already knows, or that its language has taken.
_KNOWN = ("inputs", "nodes", "index", "round", "rounds", "loop", "range", "dict", "namespace", "self", "caller")
_SYNTAX = ("true", "false", "none", "set", "macro", "call", "filter", "block", "include", "extends")
RESERVED = frozenset([*_KNOWN, *_SYNTAX, "varargs", "kwargs", *keyword.kwlist])


def _over(value: Any) -> Any:
    if isinstance(value, list) or (isinstance(value, str) and value.strip()):
        return value
    raise mistake(
        f"expected an expression or a list, got {described(value)}",
        'Write for example `over: "inputs.questions"`.',
    )


def _item_name(value: str) -> str:
    if value in RESERVED:
        raise mistake(f"{quoted(value)} already means something in templates", "Choose another name.")
    return value


def _error_kinds(value: Any) -> Any:
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list | tuple) or not kinds:
        raise mistake(f"expected a kind of error or a list of them, got {described(value)}", "Write `on: [timeout]`.")
    return tuple(kinds)


class MemorySpec(StrictModel):
    """How long an agent's conversation may become, and what is done with one that would become longer.

    `max_tokens` counts all that a turn holds: what it stands on, the prompt, and the longest answer it may give.
    """

    max_tokens: int = Field(ge=1)
    policy: Literal["fail", "drop_oldest", "compact"] = "fail"


class Agent(Generation):
    """Who speaks: a model with a role and a system prompt. The system prompt is plain text, no template."""

    role: Literal["orchestrator", "worker"] = "worker"
    model: ModelRef
    system: str = ""
    memory: MemorySpec | None = None
    description: str = ""


class InputSpec(StrictModel):
    """A value the caller must give, unless a `default` is written (`default: null` counts as written)."""

    type: InputType
    default: Any = None
    description: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"type": data}
        return {} if data is None else data

    @property
    def required(self) -> bool:
        """Whether the caller must give it."""
        return "default" not in self.model_fields_set


class MapSpec(StrictModel):
    """Run the node once for each item of `over`: an expression that gives a list, or the list itself."""

    over: Annotated[str | list[Any], BeforeValidator(_over), WithJsonSchema(_OVER_SCHEMA)]
    item: Annotated[Name, AfterValidator(_item_name)] = Field(default="item", alias="as")
    max_concurrency: int | None = Field(default=None, ge=1)


class RetrySpec(StrictModel):
    """Try a node again when it fails: `retry: 2`, or a mapping.

    Each try has a seed of its own, so what is sampled differs; what is chosen greedily does not.
    """

    count: int = Field(ge=1, le=100)
    wait: float = Field(default=0.0, ge=0, le=3600)
    growth: float = Field(default=2.0, ge=1, le=10)
    on: Annotated[tuple[ErrorKind, ...], BeforeValidator(_error_kinds), WithJsonSchema(_KINDS_SCHEMA)] = ERROR_KINDS

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"count": data} if isinstance(data, int) and not isinstance(data, bool) else data

    def seconds(self, kind: ErrorKind, failed: int) -> float | None:
        """How long to wait before the next try after `failed` ones; None when there is none."""
        if kind not in self.on or failed > self.count:
            return None
        return float(self.wait * self.growth ** (failed - 1))


class OnError(StrictModel):
    """What becomes of a node that has failed: `fail`, `skip`, or `{fallback: text}`."""

    action: Literal["fail", "skip", "fallback"] = "fail"
    fallback: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        if data in ("fail", "skip"):
            return {"action": data}
        if isinstance(data, dict) and data:
            text_keys(data)
            if "action" in data:
                raise mistake("unknown key 'action'", "Write `on_error: skip` or `on_error: {fallback: ...}`.")
            return {"action": "fallback", **data}
        close = did_you_mean(data, ("fail", "skip")) if isinstance(data, str) else ""
        fix = close if close.startswith("Did") else "Write `on_error: skip` or `on_error: {fallback: ...}`."
        raise mistake(f"expected fail, skip or a mapping with fallback, got {described(data)}", fix)


class Step(StrictModel):
    """What every node may say, whoever does its work."""

    map: MapSpec | None = None
    when: NonEmpty | None = None
    retry: RetrySpec | None = None
    on_error: OnError = OnError.model_validate("fail")
    description: str = ""

    @property
    def minds_time(self) -> bool:
        """Whether an answer that `timeout` has cut counts as an error, because the node says what to do then."""
        return self.retry is not None or self.on_error.action != "fail"


class OutputSpec(StrictModel):
    """What an answer must be: JSON that a schema (draft 2020-12) allows. Answers that are not are asked for again."""

    json_schema: dict[str, Any] = Field(alias="schema")
    attempts: int = Field(default=3, ge=1, le=20)


class Node(Generation, Step):
    """One step: an agent and the template of what it is asked."""

    agent: str
    prompt: str
    choose: NonEmpty | None = None
    output: OutputSpec | None = None

    @property
    def doer(self) -> str:
        """Whose work it is, for people."""
        return self.agent


class ToolNode(Step):
    """One step that no model takes: a tool and the templates of its arguments."""

    tool: NonEmpty
    arguments: dict[str, Any] = Field(default_factory=dict, alias="with")
    timeout: float | None = Field(default=None, gt=0)

    @property
    def doer(self) -> str:
        """Whose work it is, for people."""
        return f"tool {self.tool}"


def kind_of_node(data: Any) -> str:
    """Which kind of node a mapping, or a node, is."""
    has_tool = "tool" in data if isinstance(data, dict) else isinstance(data, ToolNode)
    return TOOL_TAG if has_tool else AGENT_TAG


AGENT_TAG, TOOL_TAG = "«agent»", "«tool»"  # no keys of a file
AnyNode = Annotated[Annotated[Node, Tag(AGENT_TAG)] | Annotated[ToolNode, Tag(TOOL_TAG)], Discriminator(kind_of_node)]


class ChannelSpec(StrictModel):
    """A channel and its settings: `cache`, or `{name: latent_briefing, t: 1.0}`."""

    name: NonEmpty
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return _named(data, "channel", keep=())

    @classmethod
    def of(cls, spec: str | dict[str, Any] | ChannelSpec) -> ChannelSpec:
        """Return the channel that a name or a mapping describes."""
        return spec if isinstance(spec, ChannelSpec) else cls.model_validate(spec)


class Edge(StrictModel):
    """A message from one node to another, and the channel it travels on; a `fixed` one is never put on another.

    A node in a loop or a sub-workflow is named from outside as `loop.node`.
    """

    sender: str = Field(alias="from")
    receiver: str = Field(alias="to")
    channel: ChannelSpec
    fixed: bool = False
    rounds: Literal["each", "first"] = "each"


class TaskSpec(StrictModel):
    """The task that scores the workflow, and the node whose text is its answer."""

    name: NonEmpty
    answer: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return _named(data, "task", keep=("answer",))


class Defaults(Generation):
    """What holds for every agent, node and edge that does not say otherwise."""

    model: ModelRef | None = None
    channel: ChannelSpec | None = None


def texts_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Give every text in a value, however deep, with the way to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_in(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts_in(inner, (*path, number))


def templates_of(node: AnyNode) -> list[str]:
    """What a node is asked, or called with, in templates."""
    return [node.prompt] if isinstance(node, Node) else [text for _, text in texts_in(node.arguments)]


def _named(data: Any, kind: str, keep: tuple[str, ...]) -> Any:
    """Unfold `name` or `{name: ..., key: value}` into a name and its settings."""
    if isinstance(data, str):
        return {"name": data}
    if not isinstance(data, dict):
        raise mistake(
            f"expected the name of a {kind} or a mapping, got {described(data)}",
            f"Write `{kind}: name` or `{kind}: {{name: ..., setting: value}}`.",
        )
    text_keys(data)
    own = {"name", *keep}
    if isinstance(data.get("settings"), dict) and set(data) <= {*own, "settings"}:
        return data
    unfolded: dict[str, Any] = {key: value for key, value in data.items() if key in own}
    return {**unfolded, "settings": {key: value for key, value in data.items() if key not in own}}
