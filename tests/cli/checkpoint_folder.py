"""Small Hugging Face folders for the tests of the program."""

import json
import struct
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 2, 64, 4, 2, 32, 96, 300
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
FP8_CACHE = {"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}
Tensors = dict[str, tuple[str, list[int], bytes]]


def safetensors(tensors: Tensors) -> bytes:
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def bf16(*shape: int) -> tuple[str, list[int], bytes]:
    count = 1
    for size in shape:
        count *= size
    return "BF16", list(shape), b"\x80\x3c" * count  # 0.0156


def scale(value: float, *shape: int) -> tuple[str, list[int], bytes]:
    count = 1
    for size in shape:
        count *= size
    return "F32", list(shape), struct.pack("<f", value) * count


def weights(tied: bool = True) -> Tensors:
    out = {"model.embed_tokens.weight": bf16(VOCABULARY, HIDDEN), "model.norm.weight": bf16(HIDDEN)}
    if not tied:
        out["lm_head.weight"] = bf16(VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        out |= {
            prefix + "input_layernorm.weight": bf16(HIDDEN),
            prefix + "self_attn.q_proj.weight": bf16(HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": bf16(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": bf16(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": bf16(HIDDEN, HEADS * HEAD_DIM),
            prefix + "post_attention_layernorm.weight": bf16(HIDDEN),
            prefix + "mlp.gate_proj.weight": bf16(FFN, HIDDEN),
            prefix + "mlp.up_proj.weight": bf16(FFN, HIDDEN),
            prefix + "mlp.down_proj.weight": bf16(HIDDEN, FFN),
        }
    return out


def kv_scales() -> Tensors:
    out: Tensors = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.self_attn."
        out |= {prefix + "k_proj.k_scale": scale(0.02), prefix + "v_proj.v_scale": scale(0.5)}
    return out


def write_folder(folder: Path, config: dict[str, Any] | None = None, tensors: Tensors | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    (folder / "model.safetensors").write_bytes(safetensors(weights() if tensors is None else tensors))
    return folder
