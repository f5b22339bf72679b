"""JSON Schema of workflow, agent and model files, for editors: made from the models that check them.

An editor sees one file at a time, so a schema knows the shapes of values, the short forms, and every channel and task
that is installed with its settings. What needs more (names of nodes, templates, agent files) is told by
`agentflow validate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel

from agentflow.channels.negotiation import AUTO, auto_order
from agentflow.channels.registry import channel_names, get_channel
from agentflow.errors import UserError, did_you_mean
from agentflow.models.spec import ModelSpec
from agentflow.tasks.registry import get_task, task_names
from agentflow.workflow.parts import INPUT_TYPES, Agent
from agentflow.workflow.written import WorkflowFile

JsonSchema: TypeAlias = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
"""What editors read best."""
_NAMED = {"type": "string", "pattern": r"\S"}


def editor_schema(kind: str, *, built_in: bool = False) -> JsonSchema:
    """The JSON Schema of a kind of file: `workflow`, `agent` or `model`.

    Args:
        built_in: leave out channels and tasks of other packages that are installed here.

    Raises:
        UserError: no such kind.
    """
    if kind not in KINDS:
        raise UserError(f"There is no schema of '{kind}'.", fix=did_you_mean(kind, KINDS))
    return {"$schema": DRAFT, "title": f"AgentFlow {kind} file", **KINDS[kind](built_in)}


def _workflow(built_in: bool) -> JsonSchema:
    schema = _definitions(_schema_of(WorkflowFile), built_in)
    properties = schema["properties"]
    properties["extends"] = {**_NAMED, "description": "Another workflow, by name or path."}
    for section in ("inputs", "defaults", "edges", "outputs", "task"):
        properties[section] = _or_nothing(properties[section])
    ((names, node),) = properties["nodes"]["patternProperties"].items()
    kinds = [schema["$defs"][name] for name in _names_in(node)]
    needed = [{"required": kind.pop("required")} for kind in kinds]
    return {
        **schema,
        "required": [],
        "if": {"required": ["extends"]},
        "else": {
            "required": ["workflow", "agents", "nodes"],
            "properties": {"nodes": {"minProperties": 1, "patternProperties": {names: {"anyOf": needed}}}},
        },
    }


def _agent(built_in: bool) -> JsonSchema:
    schema = _schema_of(Agent)
    own = _agent_keys(schema)
    own["$defs"] = _definitions({"$defs": own.pop("$defs", {})}, built_in)["$defs"]
    own["properties"].pop("use")
    return own


def _model(built_in: bool) -> JsonSchema:
    del built_in  # no config names a plug-in
    schema = _schema_of(ModelSpec)
    schema["properties"]["extends"] = {**_NAMED, "description": "Another config of this folder, or one that ships."}
    schema["required"] = ["model"]
    return {**schema, "anyOf": [{"required": [key]} for key in ("source", "remote", "extends")]}


KINDS: dict[str, Callable[[bool], JsonSchema]] = {"workflow": _workflow, "agent": _agent, "model": _model}


def _definitions(schema: JsonSchema, built_in: bool) -> JsonSchema:
    """Put in what a file may say in other ways than its model: short forms, `use`, and what is filled in."""
    found = schema["$defs"]
    found |= _model_mapping()

    def known(names: Iterable[str], get: Callable[[str], Any]) -> list[tuple[str, type[BaseModel]]]:
        classes = [(name, get(name)) for name in names]
        return [(name, c.Settings) for name, c in classes if not built_in or c.__module__.startswith("agentflow.")]

    changes: dict[str, Callable[[JsonSchema], JsonSchema]] = {
        "Agent": _agent_keys,
        "ChannelSpec": lambda _: _channel(known(channel_names(), get_channel)),
        "Edge": lambda edge: {**edge, "required": ["from", "to"]},
        "InputSpec": lambda spec: _either({"enum": list(INPUT_TYPES)}, spec),
        "OnError": lambda spec: _either({"enum": ["fail", "skip"]}, _without(spec, "action", required=["fallback"])),
        "RetrySpec": lambda spec: _either(spec["properties"]["count"], spec),
        "TaskSpec": lambda spec: _named(known(task_names(), get_task), {"answer": spec["properties"]["answer"]}),
        "Defaults": _with_model,
    }
    for name, change in changes.items():
        if name in found:
            found[name] = change(found[name])
    return schema


def _agent_keys(agent: JsonSchema) -> JsonSchema:
    properties = {
        **agent["properties"],
        "use": {**_NAMED, "description": "An agent file, such as agents/reader.yaml."},
        "extends": {**_NAMED, "description": "Another agent of the workflow; in an agent file, another file."},
    }
    return _with_model({**agent, "properties": properties, "required": []})


def _with_model(part: JsonSchema) -> JsonSchema:
    model = {"anyOf": [_NAMED, {"$ref": "#/$defs/ModelSpec"}, {"type": "null"}]}
    return {**part, "properties": {**part["properties"], "model": model}}


def _model_mapping() -> JsonSchema:
    """The definitions of a model that is written as a mapping."""
    schema = _schema_of(ModelSpec)
    inner = schema.pop("$defs", {})
    schema["properties"]["use"] = {
        **_NAMED,
        "description": "The name of a model config, some of whose keys are changed.",
    }
    either = [{"required": [key]} for key in ("use", "source", "remote")]
    return {**inner, "ModelSpec": {**schema, "required": [], "anyOf": either}}


def _named(known: Iterable[tuple[str, type[BaseModel]]], more: JsonSchema) -> JsonSchema:
    """A name alone, or a mapping of the name and its settings, which may stand below `settings` as well."""
    names, mappings = [], []
    for name, settings in known:
        fields = _schema_of(settings)["properties"] if settings.model_fields else {}
        own = {"name": {"const": name}, **more}
        names.append(name)
        mappings.append(_mapping({**fields, **own}, name))
        mappings.append(_mapping({"settings": _mapping(fields), **own}, name))
    return {"anyOf": [{"enum": names}, *mappings]}


def _mapping(properties: JsonSchema, title: str = "") -> JsonSchema:
    named = {"title": title, "required": ["name"]} if title else {}
    return {"type": "object", "additionalProperties": False, "properties": properties, **named}


def _channel(known: Sequence[tuple[str, type[BaseModel]]]) -> JsonSchema:
    """A channel, or `auto` with the settings of those that it tries."""
    tried = auto_order()
    settings = {name: _mapping(_schema_of(s).get("properties", {})) for name, s in known if name in tried}
    either = _named(known, {})["anyOf"]
    return {"anyOf": [{"const": AUTO}, *either, _mapping({"name": {"const": AUTO}, **settings}, AUTO)]}


def _either(short: JsonSchema, long: JsonSchema) -> JsonSchema:
    return {"description": long.get("description", ""), "anyOf": [short, long]}


def _or_nothing(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def _without(schema: JsonSchema, key: str, required: list[str]) -> JsonSchema:
    properties = {name: value for name, value in schema["properties"].items() if name != key}
    return {**schema, "properties": properties, "required": required}


def _names_in(schema: JsonSchema) -> list[str]:
    """The definitions that a value may be of."""
    choices = schema.get("anyOf", [schema])
    return [choice["$ref"].rpartition("/")[2] for choice in choices]


def _schema_of(model: type[BaseModel]) -> JsonSchema:
    """Pydantic's schema with defaults and generated titles left out, and kinds of nodes told by their keys alone."""
    cleaned = _cleaned(model.model_json_schema(by_alias=True))
    assert isinstance(cleaned, dict)
    return cleaned


def _cleaned(value: Any, *, names: bool = False) -> Any:
    """Args: names: whether the keys are names that the file has, no words of JSON Schema."""
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, inner in value.items():
        if not names and key in ("title", "default", "discriminator"):
            continue
        word = "anyOf" if key == "oneOf" and not names else key
        found[word] = _cleaned(inner, names=not names and key in ("properties", "patternProperties", "$defs"))
    if "patternProperties" in found and not names:
        found["additionalProperties"] = False
    return found
