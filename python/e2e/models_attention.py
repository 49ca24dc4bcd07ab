"""Tiny models whose layers all attend: in full, in windows, in chunks, or to a latent vector."""

from __future__ import annotations

import pathlib
from typing import Any

from model import ATTENTION, Model, config, layers

WINDOW = {"sliding_window": 128}

LATENT = {
    "num_attention_heads": 4,
    "head_dim": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe_intermediate_size": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
}


# The engine has two kernels for latent attention. It trusts the one for AMX with its own prefix cache, and turns that
# off with the other, which computes wrongly on any cached prefix.
AMX = "amx_tile" in pathlib.Path("/proc/cpuinfo").read_text()


def _latent(name: str, fields: dict[str, Any], amx: bool) -> Model:
    return Model(
        name,
        "latent attention",
        fields,
        block_size=32 if amx else 16,
        attention_backend="AMX_MLA" if amx else "CPU_MLA",
        comparable=amx,
        note="AMX kernel"
        if amx
        else "kernel without AMX, which computes wrongly on any cached prefix; the engine has its own prefix cache off",
    )


def attention_models(amx: bool) -> list[Model]:
    """One row per architecture; latent attention has one per kernel. `amx`: on a machine that has the faster one."""
    deepseek_v2 = config(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        ATTENTION,
        LATENT,
        norm_topk_prob=False,
        topk_method="greedy",
        scoring_func="softmax",
    )
    return [
        Model(
            "qwen3",
            "full attention",
            config("Qwen3ForCausalLM", "qwen3", ATTENTION, num_hidden_layers=4, attention_bias=False),
            prompt_tokens=4000,
        ),
        Model("llama", "full attention", config("LlamaForCausalLM", "llama", ATTENTION, num_hidden_layers=6)),
        Model(
            "mistral",
            "sliding window",
            config("MistralForCausalLM", "mistral", ATTENTION, WINDOW, num_hidden_layers=4),
        ),
        Model(
            "gemma3",
            "sliding window, full attention",
            config(
                "Gemma3ForCausalLM",
                "gemma3_text",
                ATTENTION,
                WINDOW,
                layers("sliding_attention", 5, "full_attention", 2),
                sliding_window_pattern=6,
                query_pre_attn_scalar=64,
                hidden_activation="gelu_pytorch_tanh",
                rope_local_base_freq=10000.0,
            ),
        ),
        Model(
            "gpt-oss",
            "sliding window, full attention",
            config(
                "GptOssForCausalLM",
                "gpt_oss",
                ATTENTION,
                WINDOW,
                layers("sliding_attention", 1, "full_attention", 2),
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
            "sliding window, full attention",
            config(
                "Cohere2ForCausalLM",
                "cohere2",
                ATTENTION,
                WINDOW,
                layers("sliding_attention", 3, "full_attention", 2),
                sliding_window_pattern=4,
                layer_norm_eps=1e-5,
                logit_scale=0.25,
            ),
        ),
        Model(
            "exaone4",
            "sliding window, full attention",
            config(
                "Exaone4ForCausalLM",
                "exaone4",
                ATTENTION,
                WINDOW,
                layers("sliding_attention", 3, "full_attention", 2),
                sliding_window_pattern=4,
            ),
        ),
        Model(
            "llama4",
            "chunked local, full attention",
            config(
                "Llama4ForCausalLM",
                "llama4_text",
                ATTENTION,
                layers("chunked_attention", 3, "full_attention", 2),
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
        _latent("deepseek-v2", deepseek_v2, amx),
        _latent("deepseek-v2-no-amx", deepseek_v2, amx=False),
        _latent(
            "deepseek-v3",
            config(
                "DeepseekV3ForCausalLM",
                "deepseek_v3",
                ATTENTION,
                LATENT,
                q_lora_rank=128,
                n_group=2,
                norm_topk_prob=True,
                topk_method="noaux_tc",
                scoring_func="sigmoid",
            ),
            amx,
        ),
    ]
