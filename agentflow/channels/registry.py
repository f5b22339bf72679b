"""Channels by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentflow.channels.base import Channel
from agentflow.errors import ChannelError
from agentflow.plugins import load_plugin, plugin_names
from agentflow.settings import checked

GROUP = "agentflow.channels"


def channel_names() -> list[str]:
    """Every registered channel, sorted."""
    return plugin_names(GROUP)


def get_channel(name: str) -> type[Channel]:
    """The channel class of that name; `ChannelError` with the closest name when there is none."""
    return load_plugin(GROUP, name, Channel, error=ChannelError)  # type: ignore[type-abstract]  # only its subclasses are made


def make_channel(name: str, settings: Mapping[str, Any] | None = None) -> Channel:
    """The channel with these settings; one `ChannelError` names every setting that is wrong."""
    channel = get_channel(name)
    return channel(checked(channel.Settings, settings or {}, error=ChannelError, where=f"channel {name}"))
