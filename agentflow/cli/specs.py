"""Lists on the command line: channels with settings, controls, and task settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentflow.errors import UserError, WorkflowError, did_you_mean

if TYPE_CHECKING:
    from agentflow.workflow.parts import ChannelSpec


def channel_specs(text: str, option: str = "--channels") -> list[ChannelSpec]:
    """Channels as YAML writes them in a list: `text,cache` or `text,{name: cache, bits: 4}`.

    Raises:
        UserError: not such a list, an unknown channel or setting, or the same channel twice.
    """
    entries = _list(text, option) if text.strip(" ,") else []
    if not entries:
        raise UserError("There is no channel to compare.", where=option, fix="Name some: text,cache.")
    specs: list[ChannelSpec] = []
    for entry in entries:
        spec = _channel(entry, option)
        if spec in specs:
            raise UserError(f"The channel '{spec.name}' is named twice.", where=option, fix="Name each one once.")
        specs.append(spec)
    return specs


def channel_spec(text: str, option: str = "--channel") -> ChannelSpec:
    """One channel as YAML writes it on an edge: `cache` or `{name: cache, bits: 4}`.

    Raises:
        UserError: not such a channel, or an unknown one or setting.
    """
    return _channel(_yaml(text, option), option)


def control_names(text: str, known: Sequence[str], option: str = "--controls") -> tuple[str, ...]:
    """`all`, `none`, or names separated by commas; `mismatched(cache)` is the control of one channel alone."""
    if text.strip() in ("all", "none"):
        return tuple(known) if text.strip() == "all" else ()
    names = tuple(n.strip() for n in re.split(r",(?![^(\[]*[)\]])", text) if n.strip())
    for name in names:
        kind = name.partition("(")[0]
        if kind not in known:
            raise UserError(f"Unknown control '{kind}'.", where=option, fix=did_you_mean(kind, known))
    return names


def check_controls(controls: Sequence[str], channels: Sequence[str], option: str = "--controls") -> None:
    """Refuse a control of a channel that is not compared."""
    for control in controls:
        about = control.partition("(")[2].removesuffix(")")
        if about and about not in channels:
            raise UserError(
                f"'{control}' is about no channel of this comparison.", where=option, fix=did_you_mean(about, channels)
            )


def task_settings(pairs: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """KEY=VALUE pairs, values as YAML reads them."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"'{pair}' is not KEY=VALUE.", where=option, fix="Write --set setting=split.")
        found[key.strip()] = _yaml(value, option)
    return found


def _channel(entry: Any, option: str) -> ChannelSpec:
    from agentflow.channels.negotiation import check_channel
    from agentflow.workflow.parts import ChannelSpec

    if not isinstance(entry, str | dict) or (isinstance(entry, dict) and not isinstance(entry.get("name"), str)):
        raise UserError(f"'{entry}' is no channel.", where=option, fix="Write NAME or {name: NAME, setting: value}.")
    spec = ChannelSpec.of(entry)
    check_channel(spec.name, spec.settings)
    return spec


def _list(text: str, option: str) -> list[Any]:
    value = _yaml(f"[{text}]", option)
    return value if isinstance(value, list) else [value]


def _yaml(text: str, option: str) -> Any:
    from agentflow.workflow.source import parse_yaml

    try:
        return parse_yaml(text, option).value
    except WorkflowError as error:
        raise UserError(
            f"'{text}' can't be read: {error.what.splitlines()[0].partition(' – ')[2]}", where=option
        ) from None
