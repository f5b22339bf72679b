"""Errors of units as the workflow language names them."""

from __future__ import annotations

import torch

from agentflow.errors import AgentMemoryError, ChannelError, ModelError, PayloadError
from agentflow.workflow.parts import ErrorKind
from agentflow.workflow.templates import TemplateError

_KINDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], ErrorKind], ...] = (
    (TemplateError, "template"),
    (TimeoutError, "timeout"),  # before what else such an error is
    (ModelError, "model"),
    ((ChannelError, PayloadError), "channel"),
    ((AgentMemoryError, MemoryError, torch.OutOfMemoryError), "memory"),
)


def kind_of(error: BaseException) -> ErrorKind:
    """What `retry.on` calls an error."""
    return next((kind for types, kind in _KINDS if isinstance(error, types)), "other")
