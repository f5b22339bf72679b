"""`channel: auto`: the best channel that fits a pair of models, and why it is that one.

Channels say by `rank` when they are tried, and by `check` whether they fit; nothing here knows any of them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentflow.channels.base import Channel
from agentflow.channels.registry import channel_names, get_channel, make_channel
from agentflow.errors import ChannelError, Fault, did_you_mean
from agentflow.models.spec import ModelSpec

AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """The channel that `auto` has become on an edge, and why, in words."""

    channel: Channel
    why: str


def auto_order() -> list[str]:
    """The channels that `auto` tries, the best first."""
    ranked = []
    for name in channel_names():
        try:
            rank = get_channel(name).rank
        except ChannelError:
            continue  # somebody's broken plug-in is told of when it is asked for
        if rank is not None:
            ranked.append((rank, name))
    return [name for _, name in sorted(ranked)]


def candidates(settings: Mapping[str, Any]) -> list[Channel]:
    """The channels to try, in their order.

    Args:
        settings: of single channels, by their names: `{latent_briefing: {t: 2}}`.

    Raises:
        ChannelError: settings of a channel that is not tried, or that it does not have.
    """
    order = auto_order()
    found, made = list[Fault](), list[Channel]()
    for name, value in settings.items():
        if name not in order:
            found.append(
                Fault((name,), f"'auto' does not try a channel '{name}'", did_you_mean(name, order), is_key=True)
            )
        elif not isinstance(value, Mapping):
            found.append(Fault((name,), f"the settings of '{name}' must be a mapping"))
    for name in order:
        value = settings.get(name)
        try:
            made.append(make_channel(name, value if isinstance(value, Mapping) else None))
        except ChannelError as error:
            found += [Fault((name, *fault.path), fault.what, fault.fix, fault.is_key) for fault in error.faults]
    if found:
        raise ChannelError("; ".join(map(str, found)) + ".", where=f"channel {AUTO}", faults=found)
    return made


def check_channel(name: str, settings: Mapping[str, Any] | None = None) -> None:
    """Refuse a channel that does not exist, or does not have these settings. Raises `ChannelError`."""
    if name == AUTO:
        candidates(settings or {})
    else:
        make_channel(name, settings)


def negotiate(
    tried: list[Channel], sender: ModelSpec | None, receiver: ModelSpec | None, text_only: str = ""
) -> Choice:
    """Choose the first channel that fits.

    Args:
        sender: None where no model speaks, as at a tool.
        text_only: why no cache can be handed over here, in words; "" where one can.

    Raises:
        ChannelError: none fits.
    """
    refused = list[tuple[str, str]]()
    for channel in tried:
        if text_only and not channel.sends_text:
            reason = text_only
        elif sender is None or receiver is None:
            reason = ""
        else:
            found = channel.between(sender, receiver)
            reason = "" if found.fits else found.reason
        if not reason:
            return Choice(channel, _why(channel, refused))
        refused.append((channel.name, reason))
    tale = "; ".join(f"{name}: {reason}" for name, reason in refused)
    raise ChannelError(f"No channel fits here. {tale}.")


def fitting(sender: ModelSpec, receiver: ModelSpec) -> list[str]:
    """The names of the channels that `auto` knows and that fit a pair, the best first."""
    return [channel.name for channel in candidates({}) if channel.between(sender, receiver).fits]


def _why(channel: Channel, refused: list[tuple[str, str]]) -> str:
    """Why it is this one: what the better ones lack, those with one reason together."""
    if not refused:
        return "the best there is, and it fits"
    by_reason: dict[str, list[str]] = {}
    for name, reason in refused:
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"not {' or '.join(names)}: {reason}" for reason, names in by_reason.items())
