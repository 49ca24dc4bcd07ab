"""What the harness knows about a model, and the pieces that the configurations have in common.

Every configuration is invented here. It names a real architecture, so the engine builds the real KV cache
groups for it (attention, windows, recurrent state, latent attention), but is small enough that a prompt of
thousands of tokens takes a second on a CPU. Imports nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

VOCABULARY = 4096
WIDTH = 256
MAX_MODEL_LEN = 4352
STEP_TOKENS = 4096
DTYPE = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Model:
    """One architecture, its tiny configuration and the engine settings that it needs."""

    name: str
    family: str
    config: dict[str, Any]
    block_size: int | None = 32
    max_num_batched_tokens: int = STEP_TOKENS
    dtype: str = DTYPE
    prompt_tokens: int = 1500
    prompts: int = 5
    attention_backend: str | None = None
    # False where the engine turns its own prefix cache off, so that there is nothing to compare output with: then only
    # the hits are looked at.
    comparable: bool = True
    # Part of the message with which the engine itself, without any connector, refuses this architecture.
    refusal: str | None = None
    # The same with other versions of what the engine itself depends on, which decide where in the model it gives up.
    refusals_elsewhere: tuple[str, ...] = ()
    # Factor on every weight matrix; see weights.py.
    gain: float = 6.0
    # What an operator has to set for this architecture on the CPU engine.
    needs: str = ""
    note: str = ""

    @property
    def architecture(self) -> str:
        """The engine's name for it."""
        return self.config["architectures"][0]

    @property
    def engine_settings(self) -> dict[str, Any]:
        """Keyword arguments of the engine, as JSON-safe values."""
        settings: dict[str, Any] = {
            "dtype": self.dtype,
            "max_model_len": MAX_MODEL_LEN,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_gpu_blocks_override": self.num_blocks,
        }
        if self.block_size is not None:
            settings["block_size"] = self.block_size
        if self.attention_backend is not None:
            settings["attention_backend"] = self.attention_backend
        if self.refusal is not None:
            # It never gets to compute, and not every one of these classes exists outside the engine.
            settings["load_format"] = "dummy"
        return settings

    @property
    def flags(self) -> str:
        """What of that an operator would give in the engine's command line, without what most rows have in common."""
        settings = self.engine_settings
        common = {"max_num_batched_tokens": STEP_TOKENS, "dtype": DTYPE}
        names = ("block_size", "max_num_batched_tokens", "dtype", "attention_backend")
        given = [(name, settings[name]) for name in names if name in settings and settings[name] != common.get(name)]
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given)

    @property
    def num_blocks(self) -> int:
        """Blocks for every prompt of a phase over at most eight groups, but never an unreasonable amount."""
        per_prompt = MAX_MODEL_LEN // (self.block_size or 16) + 2
        return min(4096, per_prompt * (self.prompts + 2) * 4)

    def config_text(self) -> str:
        """The `config.json` of the model."""
        return json.dumps(self.config, indent=1, sort_keys=True) + "\n"


def config(architecture: str, model_type: str, *parts: dict[str, Any], **own: Any) -> dict[str, Any]:
    """A `config.json`: what all have in common, then the parts, then its own fields."""
    fields: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    for part in (*parts, own):
        fields.update(part)
    return fields


ATTENTION = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rope_theta": 10000.0,
    "intermediate_size": 512,
}

GATED_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 64,
}

MIXER = {
    "mamba_expand": 2,
    "mamba_n_heads": 16,
    "mamba_d_head": 32,
    "mamba_d_state": 32,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 64,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


def layers(first: str, count: int, last: str, periods: int) -> dict[str, Any]:
    """`count` layers of one kind followed by one of another, repeated."""
    kinds = ([first] * count + [last]) * periods
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}
