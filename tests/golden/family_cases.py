"""The tiny models of make_family_goldens.py: config.json files as their publishers write them, at small sizes."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    family: str  # kvant's and GGUF's name
    config: dict[str, Any]
    dtype: str = "BF16"
    mxfp4: bool = False
    quantised: str = ""  # How matrices of layers are stored: a key of quantised_weights.FORMS
    gguf: bool = True  # GGUF files of such a model exist


def config(hf_class: str, **changes: Any) -> dict[str, Any]:
    out = {
        "architectures": [hf_class],
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,  # The least that CUDA runs.
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    return {key: value for key, value in (out | changes).items() if value is not None}


def llama(**changes: Any) -> dict[str, Any]:
    return config("LlamaForCausalLM", **changes)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
GEMMA = {
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 48,
    "sliding_window": 12,
}
GEMMA3 = config("Gemma3ForCausalLM", **GEMMA | {"num_hidden_layers": 6, "rope_theta": None})
GEMMA3_270M = {"head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1, "query_pre_attn_scalar": 256}
GPT_OSS = config(
    "GptOssForCausalLM",
    num_hidden_layers=3,
    num_local_experts=6,
    num_experts_per_tok=3,
    attention_bias=True,
    sliding_window=12,
    swiglu_limit=7.0,
    rope_theta=150000,
    rope_scaling={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
    tie_word_embeddings=False,
    vocab_size=320,
)
QWEN3_MOE = config(
    "Qwen3MoeForCausalLM",
    num_hidden_layers=3,
    moe_intermediate_size=48,
    num_experts=8,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    tie_word_embeddings=False,
)

FP8_GROUP = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
NVFP4_GROUP = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}


def compressed_tensors(form: str, group: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": group}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


def modelopt(algorithm: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}


def quantised(form: str, settings: dict[str, Any]) -> Case:
    config = llama(rope_theta=500000.0, quantization_config=settings)
    return Case(f"llama_{form}", "llama", config, quantised=form, gguf=False)


CASES = [
    Case("llama2_untied_f32", "llama", llama(tie_word_embeddings=False, num_key_value_heads=4), dtype="F32"),
    Case("llama3_scaled", "llama", llama(rope_theta=500000.0, rope_scaling=LLAMA3)),
    Case("llama_linear", "llama", llama(rope_scaling={"type": "linear", "factor": 3.0})),
    Case("llama_yarn", "llama", llama(rope_scaling=YARN)),
    Case("llama_dynamic", "llama", llama(rope_scaling={"type": "dynamic", "factor": 2.0}), gguf=False),
    Case("llama_attention_bias", "llama", llama(attention_bias=True, num_attention_heads=8)),
    Case("smollm2", "llama", llama(num_attention_heads=3, num_key_value_heads=1, hidden_size=96, rope_theta=100000)),
    Case("mistral_window", "mistral", config("MistralForCausalLM", sliding_window=12), gguf=False),
    Case(
        "qwen2_bias",
        "qwen2",
        config("Qwen2ForCausalLM", use_sliding_window=False, sliding_window=12, max_window_layers=1, rope_theta=1e6),
    ),
    Case(
        "qwen2_window",
        "qwen2",
        config(
            "Qwen2ForCausalLM",
            use_sliding_window=True,
            sliding_window=12,
            max_window_layers=1,
            tie_word_embeddings=False,
        ),
        gguf=False,
    ),
    Case("qwen3", "qwen3", config("Qwen3ForCausalLM", rope_theta=1e6)),
    Case("qwen3_moe", "qwen3moe", QWEN3_MOE),
    Case("qwen3_moe_shares", "qwen3moe", QWEN3_MOE | {"norm_topk_prob": False, "mlp_only_layers": [1]}, gguf=False),
    Case(
        "gemma2",
        "gemma2",
        config("Gemma2ForCausalLM", **GEMMA)
        | {"num_hidden_layers": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 0.5},
    ),
    Case("gemma3", "gemma3", GEMMA3 | GEMMA3_270M | {"rope_theta": 1e6, "rope_local_base_freq": 10000.0}),
    Case(
        "gemma3_scaled",
        "gemma3",
        GEMMA3
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
        gguf=False,
    ),
    Case("gpt_oss", "gpt-oss", GPT_OSS),
    Case("gpt_oss_mxfp4", "gpt-oss", GPT_OSS, mxfp4=True),
    Case(
        "smollm3",
        "smollm3",
        config(
            "SmolLM3ForCausalLM",
            num_hidden_layers=4,
            rope_theta=5e6,
            no_rope_layers=[1, 1, 1, 0],
            pad_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    quantised("modelopt_fp8", modelopt("FP8")),
    quantised("modelopt_nvfp4", modelopt("NVFP4")),
    quantised("compressed_fp8", compressed_tensors("float-quantized", FP8_GROUP)),
    quantised("compressed_nvfp4", compressed_tensors("nvfp4-pack-quantized", NVFP4_GROUP)),
    quantised("block_fp8", {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}),
]
