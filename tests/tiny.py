"""Tiny random models of every family, with a real byte-level tokenizer and a ChatML template: unit tests in seconds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from agentflow.models.engine import Engine
from agentflow.models.loading import prepare
from agentflow.models.spec import ModelSpec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = "the code of room is seven remember answer question who what red blue green paris london system user assistant"
COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "mistral-sliding": ("mistral", {"sliding_window": 12}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"sliding_window": 12, "query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3_text", {"sliding_window": 12, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2}),
    "phi3": ("phi3", {"pad_token_id": 1}),
    "gpt-neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "olmo2": ("olmo2", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "qwen3-moe": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 320 tokens: any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], pad_token=special[1]
    )
    fast.chat_template = CHATML
    return fast


def tiny_model(family: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model of a family, of four layers, in transformers' own eager attention."""
    model_type, extra = FAMILIES[family]
    fields = {**COMMON, "vocab_size": len(tiny_tokenizer()), **extra, **changes}
    if model_type == "gpt_neox":
        del fields["num_key_value_heads"]  # it has as many as query heads
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():  # random initialisation is timid: make attention matter
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model.eval()


@cache
def tiny_engine(family: str = "llama", seed: int = 0) -> Engine:
    """An engine on a tiny model; shared between tests, which must not change it."""
    return make_engine(tiny_model(family, seed=seed), f"tiny-{family}-{seed}")


def make_engine(model: Any, name: str) -> Engine:
    """An engine on a model in memory."""
    spec = ModelSpec(model=name, source=f"tests/{name}")
    return Engine(prepare(spec, model, tiny_tokenizer()))


def words(n: int, seed: int = 0) -> list[int]:
    """`n` random ordinary token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, len(tiny_tokenizer()), (n,), generator=generator).tolist()
