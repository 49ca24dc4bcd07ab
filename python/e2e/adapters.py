"""Adapters (LoRA) with random weights that change what the model says. Imports nothing but the standard library."""

from __future__ import annotations

import array
import json
import pathlib
import random
import struct
from typing import Any

import models

RANK = 8
# Large enough that the tokens change, small enough that nothing overflows.
SPREAD = 0.15


def write(model: models.Model, directory: pathlib.Path, seed: int) -> pathlib.Path:
    """Writes an adapter of attention's projections into the directory, over what is there, under the same names."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj", "k_proj", "v_proj"],
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    draw = random.Random(seed)
    own = model.config
    width, head = own["hidden_size"], own["head_dim"]
    outputs = {
        "q_proj": own["num_attention_heads"] * head,
        "k_proj": own["num_key_value_heads"] * head,
        "v_proj": own["num_key_value_heads"] * head,
    }
    header: dict[str, Any] = {}
    body = bytearray()
    for layer in range(own["num_hidden_layers"]):
        for name, output in outputs.items():
            for part, shape in (("A", (RANK, width)), ("B", (output, RANK))):
                values = array.array("f", (draw.gauss(0, SPREAD) for _ in range(shape[0] * shape[1])))
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"
                offsets = [len(body), len(body) + 4 * len(values)]
                header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
                body += values.tobytes()
    text = json.dumps(header).encode()
    with (directory / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
    return directory
