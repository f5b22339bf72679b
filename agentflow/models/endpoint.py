"""How a model that is served elsewhere is reached: any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import json
import os
from typing import Any, Literal
from urllib.parse import urlsplit

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentflow.errors import ModelError


class Endpoint(BaseModel):
    """A served model, and how patient to be with its server.

    Holds the name of the environment variable with the key, never the key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    url: str = Field(description="where it is served, down to the version: http://127.0.0.1:8000/v1")
    name: str = Field(min_length=1, description="the model's name there")
    key_env: str | None = Field(
        default=None, description="the environment variable that holds the key; without, none is sent"
    )
    stream: bool = Field(default=True, description="read the answer while it is written")
    max_concurrency: int = Field(default=8, ge=1, le=256, description="requests under way together")
    requests_per_minute: float | None = Field(default=None, gt=0, description="no more than so many, tries included")
    max_retries: int = Field(
        default=4, ge=0, le=20, description="further tries after a failure that may pass: 429, 5xx, a lost connection"
    )
    timeout: float = Field(default=600.0, gt=0, description="the most seconds that one try may take")
    silence: float = Field(default=120.0, gt=0, description="the most seconds without a word from the server")
    max_bytes: int = Field(default=8 << 20, ge=1024, description="longer answers are refused")
    length_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens", description="what the server calls `max_new_tokens`"
    )
    omit: tuple[Literal["temperature", "seed", "stream_options"], ...] = Field(
        default=(), strict=False, description="fields that are always sent and that this server refuses"
    )
    extra: dict[str, Any] = Field(default_factory=dict, description="further fields of every request, as they are")

    @field_validator("url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            _ = parts.port
        except ValueError:
            raise ValueError("must be an address such as http://127.0.0.1:8000/v1") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address such as http://127.0.0.1:8000/v1")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("must hold no user, password or query (keys come from the environment: key_env)")
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _name_of_a_variable(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isidentifier()):
            raise ValueError("must be the name of an environment variable, not the key itself")
        return value

    def __hash__(self) -> int:
        return hash((self.url, self.name))  # `extra` has no hash of its own

    @property
    def identity(self) -> str:
        """Which model is meant, as far as that can be known from outside."""
        return f"{self.name} at {self.url}"

    @property
    def mark(self) -> str:
        """A digest of what answers depend on; waiting and trying again are no part of it."""
        told = self.model_dump_json(include={"url", "name", "omit"})
        return blake3(f"{told}{json.dumps(self.extra, sort_keys=True, default=str)}".encode()).hexdigest()

    def key(self) -> str | None:
        """The key, read from the environment each time.

        Raises:
            ModelError: it is not set, or can't be sent; the message names the variable alone.
        """
        if self.key_env is None:
            return None
        found = os.environ.get(self.key_env, "").strip()
        if not found:
            raise ModelError(
                f"The environment variable {self.key_env} is not set, and '{self.name}' needs the key in it.",
                fix=f"Set it before the run: export {self.key_env}=...",
            )
        if not (found.isascii() and found.isprintable()) or " " in found:
            raise ModelError(f"The environment variable {self.key_env} holds no key: it has blanks or foreign letters.")
        return found

    def cleaned(self, text: str) -> str:
        """A server's words without the key, should it repeat it."""
        key = self.key()
        return text if key is None else text.replace(key, "[key]")
