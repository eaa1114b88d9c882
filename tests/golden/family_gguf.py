"""How GGUF files hold the tiny models of family_cases.py: metadata, and each tensor's recipe from the folder's ones."""

import math
from typing import Any

from family_cases import Case

Metadata = dict[str, list[Any]]

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GPT_OSS_NAMES = {"post_attention_layernorm": "post_attention_norm"}


def head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def metadata(case: Case) -> Metadata:
    config, arch = case.config, case.family
    dim = head_dim(config)
    out: Metadata = {
        "general.architecture": ["string", arch],
        "general.name": ["string", case.name],
        f"{arch}.context_length": ["u32", config["max_position_embeddings"]],
        f"{arch}.embedding_length": ["u32", config["hidden_size"]],
        f"{arch}.block_count": ["u32", config["num_hidden_layers"]],
        f"{arch}.feed_forward_length": ["u32", config["intermediate_size"]],
        f"{arch}.attention.head_count": ["u32", config["num_attention_heads"]],
        f"{arch}.attention.head_count_kv": ["u32", config["num_key_value_heads"]],
        f"{arch}.attention.layer_norm_rms_epsilon": ["f32", config["rms_norm_eps"]],
        f"{arch}.attention.key_length": ["u32", dim],
        f"{arch}.attention.value_length": ["u32", dim],
        f"{arch}.rope.dimension_count": ["u32", dim],
        f"{arch}.rope.freq_base": ["f32", config.get("rope_theta", 1e6)],
    }
    scaling = config.get("rope_scaling", {})
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        out[f"{arch}.rope.scaling.type"] = ["string", kind]
        out[f"{arch}.rope.scaling.factor"] = ["f32", scaling["factor"]]
    if kind == "yarn":
        original = scaling["original_max_position_embeddings"]
        out[f"{arch}.rope.scaling.original_context_length"] = ["u32", original]
    if config.get("sliding_window") and arch in ("gemma2", "gemma3", "gpt-oss"):
        out[f"{arch}.attention.sliding_window"] = ["u32", config["sliding_window"]]
    if arch == "gemma2":
        out["gemma2.attn_logit_softcapping"] = ["f32", config["attn_logit_softcapping"]]
        out["gemma2.final_logit_softcapping"] = ["f32", config["final_logit_softcapping"]]
    if "query_pre_attn_scalar" in config:
        out[f"{arch}.attention.scale"] = ["f32", config["query_pre_attn_scalar"] ** -0.5]
    if "num_experts_per_tok" in config:
        out[f"{arch}.expert_count"] = ["u32", config.get("num_experts", config.get("num_local_experts"))]
        out[f"{arch}.expert_used_count"] = ["u32", config["num_experts_per_tok"]]
        size = config.get("moe_intermediate_size", config["intermediate_size"])
        out[f"{arch}.expert_feed_forward_length"] = ["u32", size]
    return out


def llama3_factors(config: dict[str, Any]) -> list[float]:
    scaling, dim = config["rope_scaling"], head_dim(config)
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / dim)
        turns = scaling["original_max_position_embeddings"] / wavelength
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / (kept + (1.0 - kept) / scaling["factor"]))
    return factors


def layer_tensor(case: Case, stem: str, block: str, tensor: dict[str, Any]) -> list[dict[str, Any]]:
    """Recipes of a tensor of a layer. `stem` is its name within the layer, `block` the prefix in the file."""
    config, name, shape = case.config, tensor["name"], tensor["shape"]
    extra = {"gemma2": GEMMA_NAMES, "gemma3": GEMMA_NAMES, "gpt-oss": GPT_OSS_NAMES}.get(case.family, {})
    if stem == "self_attn.sinks":
        return [{"name": block + "attn_sinks.weight", "from": [name], "shape": shape}]
    if ".experts." in stem:
        return expert_tensors(case, stem, block, tensor)
    part, kind = stem.rsplit(".", 1)
    out = {"name": f"{block}{(NAMES | extra)[part]}.{kind}", "from": [name], "shape": shape[::-1]}
    if part in ("self_attn.q_proj", "self_attn.k_proj") and case.family in ("llama", "smollm3"):
        heads = config["num_attention_heads" if part.endswith("q_proj") else "num_key_value_heads"]
        out |= {"op": "interleave", "heads": heads}
    if kind == "weight" and len(shape) == 1 and case.family.startswith("gemma"):
        out |= {"op": "plus_one"}
    return [out]


def expert_tensors(case: Case, stem: str, block: str, tensor: dict[str, Any]) -> list[dict[str, Any]]:
    name, shape = tensor["name"], tensor["shape"]
    if case.family == "qwen3moe":
        _, _, expert, part, _ = stem.split(".")
        if expert != "0":
            return []
        experts = range(case.config["num_experts"])
        target = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}[part]
        sources = [name.replace(".experts.0.", f".experts.{i}.") for i in experts]
        return [{"name": f"{block}{target}.weight", "from": sources, "shape": [*shape[::-1], len(sources)]}]
    part = stem.removeprefix("mlp.experts.")
    if part.endswith("_scales"):
        return []
    targets = ["ffn_gate_exps", "ffn_up_exps"] if part.startswith("gate_up") else ["ffn_down_exps"]
    out = []
    for first, target in enumerate(targets):
        recipe = {"name": f"{block}{target}.weight", "from": [name], "first": first, "step": len(targets)}
        if part.endswith("_bias"):
            recipe |= {"name": f"{block}{target}.bias", "op": "elements"}
            recipe["shape"] = [shape[1] // len(targets), shape[0]]
        elif part.endswith("_blocks"):
            recipe |= {"op": "mxfp4", "from": [name, name.replace("_blocks", "_scales")]}
            recipe["shape"] = [shape[2] * 32, shape[1] // len(targets), shape[0]]
        else:
            recipe |= {"op": "turned", "shape": [shape[1], shape[2] // len(targets), shape[0]]}
        out.append(recipe)
    return out


def gguf_model(case: Case, tensors: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not case.gguf:
        return None
    norm = {"op": "plus_one"} if case.family.startswith("gemma") else {}
    out = []
    for tensor in tensors:
        name, shape = tensor["name"], tensor["shape"]
        top = {
            "model.embed_tokens.weight": "token_embd",
            "lm_head.weight": "output",
            "model.norm.weight": "output_norm",
        }
        if name in top:
            recipe = {"name": f"{top[name]}.weight", "from": [name], "shape": shape[::-1]}
            out.append(recipe | (norm if top[name] == "output_norm" else {}))
            continue
        _, _, layer, stem = name.split(".", 3)
        out += layer_tensor(case, stem, f"blk.{layer}.", tensor)
    if case.config.get("rope_scaling", {}).get("rope_type") == "llama3":
        factors = llama3_factors(case.config)
        out.append({"name": "rope_freqs.weight", "from": [], "shape": [len(factors)], "values": factors})
    return {"metadata": metadata(case), "tensors": out}
