"""AgentFlow: agents that hand each other KV caches instead of strings.

The curated API; names are imported when they are first used, so that `import agentflow` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from agentflow.channels.base import Channel, ChannelSettings, Context, Message, Task
    from agentflow.channels.registry import channel_names, make_channel
    from agentflow.errors import UserError
    from agentflow.evaluation.compare import compare
    from agentflow.exchange.inbox import Inbox
    from agentflow.exchange.receiver import Receiver
    from agentflow.exchange.sender import send_payload
    from agentflow.kv.cache import KVCache
    from agentflow.kv.payload import Payload
    from agentflow.kv.wire import read_payload, write_payload
    from agentflow.models.engine import Engine
    from agentflow.models.loading import load_model
    from agentflow.models.pool import EnginePool
    from agentflow.models.requests import Generation, Request, Sampling
    from agentflow.models.spec import ModelSpec, resolve_model
    from agentflow.runtime.executors.ray import RayCluster
    from agentflow.runtime.flow import Flow, load_workflow
    from agentflow.runtime.options import RunOptions

_HOMES = {
    "Channel": "channels.base",
    "ChannelSettings": "channels.base",
    "Context": "channels.base",
    "Engine": "models.engine",
    "EnginePool": "models.pool",
    "Flow": "runtime.flow",
    "Generation": "models.requests",
    "Inbox": "exchange.inbox",
    "KVCache": "kv.cache",
    "Message": "channels.base",
    "ModelSpec": "models.spec",
    "Payload": "kv.payload",
    "RayCluster": "runtime.executors.ray",
    "Receiver": "exchange.receiver",
    "Request": "models.requests",
    "RunOptions": "runtime.options",
    "Sampling": "models.requests",
    "Task": "channels.base",
    "UserError": "errors",
    "channel_names": "channels.registry",
    "compare": "evaluation.compare",
    "load_model": "models.loading",
    "load_workflow": "runtime.flow",
    "make_channel": "channels.registry",
    "read_payload": "kv.wire",
    "resolve_model": "models.spec",
    "send_payload": "exchange.sender",
    "write_payload": "kv.wire",
}

__all__ = [
    "Channel",
    "ChannelSettings",
    "Context",
    "Engine",
    "EnginePool",
    "Flow",
    "Generation",
    "Inbox",
    "KVCache",
    "Message",
    "ModelSpec",
    "Payload",
    "RayCluster",
    "Receiver",
    "Request",
    "RunOptions",
    "Sampling",
    "Task",
    "UserError",
    "channel_names",
    "compare",
    "load_model",
    "load_workflow",
    "make_channel",
    "read_payload",
    "resolve_model",
    "send_payload",
    "write_payload",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"agentflow.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'agentflow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
