"""How a model is derived from another one, as `configs/derive/*.yaml` says it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from agentflow.adapters.recipe import Stepping


class Derivation(Stepping):
    """Everything that a derived model depends on; the same recipe on the same machine gives the same weights."""

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="what the new model is called")
    teacher: str | dict[str, Any] = Field(description="the model it is made from, as workflows name it")
    leave_out: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        min_length=1, description="layers of the teacher, from 0; those below the first of them stay as they are"
    )
    file: Path | None = Field(
        default=None, description="lines of {text} to learn from; left out: conversations that the teacher writes"
    )
    conversations: int = Field(default=96, ge=2, description="so many of them, or at most so many texts of the file")
    window: int = Field(default=256, ge=8, le=8192, description="tokens that are learnt from at once")
    held_out: int = Field(default=6, ge=1, description="windows to measure on; they are not learnt from")
    license: str = Field(default="", description="SPDX name of the weights' licence, the teacher's as a rule")

    @field_validator("leave_out")
    @classmethod
    def _each_once(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(layers)) < len(layers):
            raise ValueError("a layer is named twice")
        return tuple(sorted(layers))
