"""Tiny models that carry recurrent state beside attention, or nothing else: gated delta, short convolution, Mamba-2."""

from __future__ import annotations

from typing import Any

from model import ATTENTION, GATED_DELTA, MIXER, WIDTH, Model, config, layers

# Mamba-2 mixers of the CPU engine can keep a state only where a step ends, and they fail inside a step that
# crosses a block boundary. One block per step avoids both.
MIXER_STEP = 128

# The CPU engine in several processes forgets the block size that it chose itself.
BLOCK_SIZE = "a block size, if the engine runs in several processes"

QWEN = {"full_attention_interval": 4, "attn_output_gate": True}


def _mixer_model(name: str, fields: dict[str, Any], family: str = "Mamba-2, full attention") -> Model:
    return Model(
        name,
        family,
        fields,
        block_size=MIXER_STEP,
        max_num_batched_tokens=MIXER_STEP,
        prompt_tokens=600,  # the CPU engine scans token by token
        needs="max_num_batched_tokens = block size",
    )


def recurrent_models() -> list[Model]:
    """One row per architecture."""
    return [*_state_models(), *_mixer_models()]


def _state_models() -> list[Model]:
    return [
        Model(
            "qwen3-next",
            "gated delta, full attention",
            config(
                "Qwen3NextForCausalLM",
                "qwen3_next",
                ATTENTION,
                GATED_DELTA,
                QWEN,
                layers("linear_attention", 3, "full_attention", 2),
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
            needs=BLOCK_SIZE,
        ),
        Model(
            "qwen3.5",
            "gated delta, full attention",
            config(
                "Qwen3_5ForCausalLM",
                "qwen3_5_text",
                ATTENTION,
                GATED_DELTA,
                QWEN,
                layers("linear_attention", 3, "full_attention", 2),
                # As released models say it. Without it the precision of states depends on the version of `transformers`.
                mamba_ssm_dtype="float32",
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.25,
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
            ),
            needs=BLOCK_SIZE,
        ),
        Model(
            "lfm2",
            "short convolution, full attention",
            config(
                "Lfm2ForCausalLM",
                "lfm2",
                ATTENTION,
                layers("conv", 2, "full_attention", 2),
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
        ),
    ]


def _mixer_models() -> list[Model]:
    return [
        _mixer_model(
            "falcon-h1",
            config(
                "FalconH1ForCausalLM", "falcon_h1", ATTENTION, MIXER, num_hidden_layers=4, mamba_d_ssm=512
            ),
        ),
        _mixer_model(
            "nemotron-h",
            config(
                "NemotronHForCausalLM",
                "nemotron_h",
                ATTENTION,
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
            config(
                "GraniteMoeHybridForCausalLM",
                "granitemoehybrid",
                ATTENTION,
                MIXER,
                layers("mamba", 2, "attention", 2),
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
            config(
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
            config(
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
            family="Mamba-2",
        ),
    ]
