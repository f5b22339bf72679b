"""The building blocks of the schema: strict models, names, and errors in plain words."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from agentflow.workflow.problems import described, quoted

OWN_ERROR = "agentflow"
DEFAULT_NEW_TOKENS = 64
NAME_RULE = "Names start with a letter and hold only letters, digits and underscores."


def mistake(what: str, fix: str = "") -> PydanticCustomError:
    """Return an error for a validator to raise; the loader shows it as it stands, at its place."""
    return PydanticCustomError(OWN_ERROR, "{what}. {fix}", {"what": what, "fix": fix})


class StrictModel(BaseModel):
    """Unknown keys are errors, values are never coerced ("12" is not 12), instances don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def text_keys(value: dict[Any, Any]) -> None:
    """Raise unless every key is text."""
    for key in value:
        if not isinstance(key, str):
            raise mistake(f"the name of a setting must be text, not {described(key)}", "Put it in quotes.")


def _identifier(value: str) -> str:
    if value.isascii() and value.isidentifier() and not value.startswith("_"):
        return value
    raise mistake(
        f"{quoted(value)} is not a valid name",
        NAME_RULE,
    )


def _model_reference(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, dict) and value:
        text_keys(value)
        return value
    raise mistake(f"expected the name of a model or a mapping, got {described(value)}")


def _stop_list(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts:
        raise mistake(f"expected a text or a list of texts, got {described(value)}")
    return tuple(texts)


def _stop_text(value: str) -> str:
    if not value:
        raise mistake("an empty stop text would end every answer at once", "Remove it.")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise mistake("expected a name, got an empty text")
    return value


# What editors are told of these (`WithJsonSchema`) is what their validators let through.
_NAMED = {"type": "string", "pattern": r"\S"}
_STOPS = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}

Name = Annotated[
    str,
    AfterValidator(_identifier),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*$"}),
]
NonEmpty = Annotated[str, AfterValidator(_text), WithJsonSchema(_NAMED)]
ModelRef: TypeAlias = Annotated[
    str | dict[str, Any],
    BeforeValidator(_model_reference),
    WithJsonSchema({"anyOf": [_NAMED, {"type": "object", "minProperties": 1}]}),
]
StopTexts = Annotated[
    tuple[Annotated[str, AfterValidator(_stop_text)], ...],
    BeforeValidator(_stop_list),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, _STOPS]}),
]


class Generation(StrictModel):
    """How to generate; `None` means "not said here". A node wins over its agent, an agent over `defaults`."""

    max_new_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    stop: StopTexts | None = None
    timeout: float | None = Field(default=None, gt=0)

    def over(self, base: Generation) -> Generation:
        """Return these settings, filled up from `base` where they say nothing."""
        merged = {name: getattr(base, name) for name in Generation.model_fields}
        merged |= {name: mine for name in merged if (mine := getattr(self, name)) is not None}
        return Generation.model_construct(**merged)

    @property
    def new_tokens(self) -> int:
        """Most tokens of a free answer."""
        return DEFAULT_NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are given, as a plain dictionary."""
        pairs = ((name, getattr(self, name)) for name in Generation.model_fields)
        return {name: value for name, value in pairs if value is not None}
