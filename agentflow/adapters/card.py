"""The card of a bundle: which adapter, for which pair of models, how it was made. Plain JSON, checked when read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentflow.errors import AdapterError
from agentflow.kv.geometry import Geometry
from agentflow.kv.payload import COMPARED, Fingerprint
from agentflow.models.loading import LoadedModel
from agentflow.models.spec import ModelSpec
from agentflow.settings import explain

CARD = "adapter.json"
LARGEST = 1 << 20
"""Bytes of a card; one of 200 layers has a hundredth of it."""

Size = Annotated[int, Field(ge=1, le=1 << 16)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class End(_Model):
    """The model at one end of a pair. What is not known is empty, and then not compared."""

    model: str = Field(description="the name for people")
    source: str = Field(default="", description="hub id or folder")
    revision: str | None = None
    geometry: tuple[tuple[Size, Size, Size], ...] = Field(min_length=1, max_length=1024)
    weights: str = ""
    tokenizer: str = ""
    rope: str = ""

    @classmethod
    def of(cls, loaded: LoadedModel) -> Self:
        """A model that is loaded."""
        mark, spec = loaded.fingerprint, loaded.spec
        return cls(
            model=spec.model,
            source=spec.source,
            revision=spec.revision,
            geometry=mark.geometry.layers,
            weights=mark.weights,
            tokenizer=mark.tokenizer,
            rope=mark.rope,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """As payloads carry it."""
        return Fingerprint(self.model, Geometry(self.geometry), self.weights, self.tokenizer, self.rope)

    def same_source(self, spec: ModelSpec) -> bool:
        """Whether a specification names this model."""
        return bool(self.source) and spec.identity == (self.source, self.revision)

    def require(self, which: str, found: Fingerprint, *, same_source: bool) -> tuple[str, ...]:
        """Refuse another model by name of what differs.

        Args:
            which: "sender" or "receiver", for people.
            same_source: the model found comes from this end's source. Its weights may then be another rounding of
                the same ones (a quantised copy): that is told, in words, and not refused.

        Raises:
            AdapterError: it is another model.
        """
        mine = self.fingerprint
        known = [name for name in COMPARED if getattr(mine, name)]
        softly = [name for name in known if same_source and name in ("weights", "tokenizer")]
        differing = mine.differences(found, [name for name in known if name not in softly])
        if differing:
            raise AdapterError(
                f"This adapter was made for the {which} '{self.model}', and '{found.model}' is another one: different "
                f"{', '.join(differing)}.",
                fix="Train one for this pair (agentflow train), or choose the models it was made for.",
            )
        noted = mine.differences(found, softly)
        return (f"the adapter was made with other {', '.join(noted)} of the {which} '{self.model}'",) if noted else ()


class Card(_Model):
    """What is to be known of an adapter before its weights are read."""

    format: Literal[1] = 1
    adapter: str = Field(description="the registered name of its class")
    arguments: dict[str, Any] = Field(default_factory=dict, description="of that class")
    sender: End
    receiver: End
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="BLAKE3 of the weights' file")
    license: str = Field(default="", description="SPDX name")
    recipe: dict[str, Any] = Field(default_factory=dict, description="how it was trained")
    metrics: dict[str, Any] = Field(default_factory=dict, description="what it measured, on what")


def read_card(folder: Path) -> Card:
    """The card of the bundle in `folder`.

    Raises:
        AdapterError: there is none, or it is damaged or of a later version.
    """
    path = folder / CARD
    try:
        if path.stat().st_size > LARGEST:
            raise AdapterError(f"This is no bundle's card: it has more than {LARGEST:,} bytes.", where=str(path))
        return Card.model_validate_json(path.read_bytes())
    except OSError as error:
        raise AdapterError(
            f"There is no adapter bundle here ({error.strerror}).", where=str(path), fix="Name a bundle's folder."
        ) from None
    except ValidationError as error:
        raise AdapterError(f"This card can't be used: {explain(error, Card)}", where=str(path)) from None
