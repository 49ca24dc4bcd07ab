"""The tiny models of the end-to-end harness: one row per architecture.

Every configuration is invented here. It names a real architecture, so the engine builds the real KV cache
groups for it (attention, windows, recurrent state, latent attention), but is small enough that a prompt of
thousands of tokens takes a second on a CPU. A row also says how the engine has to be started for that
architecture; `README`-level reasons are next to the rows that need something special.

Used by `weights.py` (to make weights), `demo.py` and `test_e2e.py`. Imports nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

VOCABULARY = 4096
WIDTH = 256
MAX_MODEL_LEN = 4352

# Mamba-2 mixers of the CPU engine can keep a state only where a step ends, and they fail inside a step that
# crosses a block boundary. One block per step avoids both.
MIXER_STEP = 128


@dataclasses.dataclass(frozen=True)
class Model:
    """One architecture, its tiny configuration and the engine settings that it needs."""

    name: str
    family: str
    config: dict[str, Any]
    block_size: int | None = 32
    max_num_batched_tokens: int = 4096
    dtype: str = "bfloat16"
    prompt_tokens: int = 1500
    prompts: int = 5
    # The first run of a prompt may leave no state at a boundary that every group can resume from; the
    # engine stops there in the second run. Then the second run, not the first, is what fills the cache.
    settle_runs: int = 0
    # False where the engine itself computes wrongly on any cached prefix: hit counts are compared, output
    # is not.
    comparable: bool = True
    # Factor on every weight matrix; see weights.py.
    gain: float = 6.0
    note: str = ""

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
        return settings

    @property
    def num_blocks(self) -> int:
        """Blocks for every prompt of a phase over at most eight groups, but never an unreasonable amount."""
        span = self.block_size or 16
        per_prompt = MAX_MODEL_LEN // span + 2
        return min(4096, per_prompt * (self.prompts + 2) * 4)

    def config_text(self) -> str:
        """The `config.json` of the model."""
        return json.dumps(self.config, indent=1, sort_keys=True) + "\n"


def _config(architecture: str, model_type: str, *parts: dict[str, Any], **own: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
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
        config.update(part)
    return config


_ATTENTION = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rope_theta": 10000.0,
    "intermediate_size": 512,
}

_WINDOW = {"sliding_window": 128}

_GATED_DELTA = {
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 64,
}

_MIXER = {
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


def _layers(first: str, count: int, last: str, periods: int) -> dict[str, Any]:
    """`count` layers of one kind followed by one of another, repeated."""
    kinds = ([first] * count + [last]) * periods
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}


def _mixer_model(name: str, config: dict[str, Any], **own: Any) -> Model:
    return Model(
        name,
        "mamba2",
        config,
        block_size=MIXER_STEP,
        max_num_batched_tokens=MIXER_STEP,
        prompt_tokens=600,  # the CPU engine scans token by token
        **own,
    )


def _attention_models() -> list[Model]:
    return [
        Model(
            "qwen3",
            "full attention",
            _config("Qwen3ForCausalLM", "qwen3", _ATTENTION, num_hidden_layers=4, attention_bias=False),
            prompt_tokens=4000,
        ),
        Model("llama", "full attention", _config("LlamaForCausalLM", "llama", _ATTENTION, num_hidden_layers=6)),
        Model(
            "mistral",
            "sliding window",
            _config("MistralForCausalLM", "mistral", _ATTENTION, _WINDOW, num_hidden_layers=4),
        ),
        Model(
            "gemma3",
            "sliding window",
            _config(
                "Gemma3ForCausalLM",
                "gemma3_text",
                _ATTENTION,
                _WINDOW,
                _layers("sliding_attention", 5, "full_attention", 2),
                sliding_window_pattern=6,
                query_pre_attn_scalar=64,
                hidden_activation="gelu_pytorch_tanh",
                rope_local_base_freq=10000.0,
            ),
        ),
        Model(
            "gpt-oss",
            "sliding window",
            _config(
                "GptOssForCausalLM",
                "gpt_oss",
                _ATTENTION,
                _WINDOW,
                _layers("sliding_attention", 1, "full_attention", 2),
                num_local_experts=4,
                num_experts_per_tok=2,
                attention_bias=True,
                swiglu_limit=7.0,
                tie_word_embeddings=False,
                rope_scaling={
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "original_max_position_embeddings": 2048,
                    "truncate": False,
                },
            ),
        ),
        Model(
            "cohere2",
            "sliding window",
            _config(
                "Cohere2ForCausalLM",
                "cohere2",
                _ATTENTION,
                _WINDOW,
                _layers("sliding_attention", 3, "full_attention", 2),
                sliding_window_pattern=4,
                layer_norm_eps=1e-5,
                logit_scale=0.25,
            ),
        ),
        Model(
            "exaone4",
            "sliding window",
            _config(
                "Exaone4ForCausalLM",
                "exaone4",
                _ATTENTION,
                _WINDOW,
                _layers("sliding_attention", 3, "full_attention", 2),
                sliding_window_pattern=4,
            ),
        ),
        Model(
            "llama4",
            "chunked local",
            _config(
                "Llama4ForCausalLM",
                "llama4_text",
                _ATTENTION,
                _layers("chunked_attention", 3, "full_attention", 2),
                attention_chunk_size=128,
                intermediate_size_mlp=512,
                num_local_experts=4,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                no_rope_layers=[1, 1, 1, 0] * 2,
                use_qk_norm=True,
                attn_temperature_tuning=False,
            ),
        ),
        Model(
            "deepseek-v2",
            "latent attention",
            _config(
                "DeepseekV2ForCausalLM",
                "deepseek_v2",
                _ATTENTION,
                num_hidden_layers=3,
                num_attention_heads=4,
                kv_lora_rank=512,
                q_lora_rank=None,
                qk_rope_head_dim=64,
                qk_nope_head_dim=128,
                v_head_dim=128,
                head_dim=64,
                moe_intermediate_size=128,
                n_routed_experts=4,
                n_shared_experts=1,
                num_experts_per_tok=2,
                first_k_dense_replace=1,
                moe_layer_freq=1,
                routed_scaling_factor=1.0,
                norm_topk_prob=False,
                topk_method="greedy",
                n_group=1,
                topk_group=1,
                scoring_func="softmax",
                tie_word_embeddings=False,
            ),
            block_size=None,
            comparable=False,
            note="the CPU engine computes wrongly on any cached prefix of latent attention and has its own "
            "prefix cache off: hit counts only",
        ),
    ]


def _recurrent_models() -> list[Model]:
    return [
        Model(
            "qwen3-next",
            "gated delta",
            _config(
                "Qwen3NextForCausalLM",
                "qwen3_next",
                _ATTENTION,
                _GATED_DELTA,
                _layers("linear_attention", 3, "full_attention", 2),
                decoder_sparse_step=1,
                moe_intermediate_size=128,
                shared_expert_intermediate_size=128,
                num_experts=4,
                num_experts_per_tok=2,
                norm_topk_prob=True,
                partial_rotary_factor=0.25,
                mlp_only_layers=[],
                tie_word_embeddings=False,
            ),
        ),
        Model(
            "qwen3.5",
            "gated delta",
            _config(
                "Qwen3_5ForCausalLM",
                "qwen3_5_text",
                _ATTENTION,
                _GATED_DELTA,
                _layers("linear_attention", 3, "full_attention", 2),
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.25,
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
            ),
        ),
        Model(
            "lfm2",
            "short convolution",
            _config(
                "Lfm2ForCausalLM",
                "lfm2",
                _ATTENTION,
                _layers("conv", 2, "full_attention", 2),
                # The engine derives the head size from width and heads and ignores this field.
                head_dim=WIDTH // 8,
                conv_L_cache=3,
                conv_bias=False,
                conv_dim=WIDTH,
                conv_dim_out=WIDTH,
                block_dim=WIDTH,
                block_ff_dim=512,
                block_multiple_of=64,
                block_ffn_dim_multiplier=1.0,
                block_auto_adjust_ff_dim=False,
                norm_eps=1e-5,
            ),
            block_size=128,
            dtype="float32",
            settle_runs=1,
        ),
    ]


def _mixer_models() -> list[Model]:
    return [
        _mixer_model(
            "falcon-h1",
            _config(
                "FalconH1ForCausalLM", "falcon_h1", _ATTENTION, _MIXER, num_hidden_layers=4, mamba_d_ssm=512
            ),
        ),
        _mixer_model(
            "nemotron-h",
            _config(
                "NemotronHForCausalLM",
                "nemotron_h",
                _ATTENTION,
                num_hidden_layers=8,
                hybrid_override_pattern="M-M*-M*-",
                layers_block_type=["mamba", "mlp", "mamba", "attention", "mlp", "mamba", "attention", "mlp"],
                mamba_num_heads=16,
                mamba_head_dim=32,
                ssm_state_size=32,
                conv_kernel=4,
                n_groups=1,
                chunk_size=64,
                use_conv_bias=True,
                mamba_hidden_act="silu",
                mlp_hidden_act="relu2",
                layer_norm_epsilon=1e-5,
            ),
        ),
        _mixer_model(
            "granite-4",
            _config(
                "GraniteMoeHybridForCausalLM",
                "granitemoehybrid",
                _ATTENTION,
                _MIXER,
                _layers("mamba", 2, "attention", 2),
                num_local_experts=0,
                num_experts_per_tok=0,
                shared_intermediate_size=512,
                position_embedding_type="nope",
                embedding_multiplier=1.0,
                logits_scaling=1.0,
                residual_multiplier=1.0,
                attention_multiplier=0.125,
            ),
        ),
        _mixer_model(
            "zamba2",
            _config(
                "Zamba2ForCausalLM",
                "zamba2",
                num_hidden_layers=6,
                layers_block_type=["mamba", "mamba", "hybrid"] * 2,
                num_attention_heads=8,
                num_key_value_heads=8,
                attention_head_dim=64,
                kv_channels=64,
                intermediate_size=512,
                hidden_act="gelu",
                rope_theta=10000.0,
                use_mem_rope=True,
                num_mem_blocks=1,
                use_shared_attention_adapter=False,
                adapter_rank=8,
                n_mamba_heads=16,
                mamba_headdim=32,
                mamba_d_state=32,
                mamba_d_conv=4,
                mamba_expand=2,
                mamba_ngroups=1,
                chunk_size=64,
            ),
        ),
        _mixer_model(
            "mamba2",
            _config(
                "Mamba2ForCausalLM",
                "mamba2",
                num_hidden_layers=4,
                num_heads=16,
                head_dim=32,
                state_size=32,
                n_groups=1,
                expand=2,
                conv_kernel=4,
                chunk_size=64,
                layer_norm_epsilon=1e-5,
            ),
        ),
    ]


MODELS: dict[str, Model] = {
    model.name: model for model in (*_attention_models(), *_recurrent_models(), *_mixer_models())
}


def find(name: str) -> Model:
    """The model of that name, or an error that lists the names there are."""
    try:
        return MODELS[name]
    except KeyError:
        raise SystemExit(f"unknown model {name!r}; choose one of: {', '.join(MODELS)}") from None
