#!/usr/bin/env python3
"""Writes llama_logits.txt: what Hugging Face transformers computes for the tiny models of tests/support/tiny_llama.h.

Weights follow from integers, by the same arithmetic as there. The model runs in fp64 on the values that the GGUF file
holds (rounded to its weight type), so that the goldens are exact to the digits written.

    pip install torch transformers numpy
    python3 tests/golden/make_llama_goldens.py
"""

import pathlib

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

# name, layers, hidden, q_heads, kv_heads, head_dim, ffn, vocabulary, theta, tied, seed, weights
CASES = [
    ("gqa_tied", 2, 128, 8, 2, 16, 192, 320, 10000.0, True, 1, "f32"),
    ("odd_group_untied", 3, 96, 6, 2, 32, 160, 320, 100000.0, False, 2, "f32"),
    ("mha_wide_head", 2, 64, 2, 2, 64, 96, 288, 10000.0, True, 3, "f32"),
    ("mqa_f16", 2, 64, 4, 1, 48, 96, 320, 500000.0, False, 4, "f16"),
    ("gqa_q8_0", 2, 192, 6, 2, 64, 128, 320, 10000.0, True, 5, "q8_0"),
]
PROMPT, STEPS = 20, 32


def mix(x):
    x = np.asarray(x, dtype=np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def values(seed, stream, shape, scale, offset=0.0):
    start = mix(np.array([seed * 1000 + stream], dtype=np.uint32))
    h = mix(start + np.arange(np.prod(shape), dtype=np.uint32)) >> np.uint32(8)
    centred = h.astype(np.int32) - (1 << 23)
    out = centred.astype(np.float32) * np.float32(2.0**-23) * np.float32(scale) + np.float32(offset)
    return out.reshape(shape)


def matrix(seed, stream, rows, columns, gain):
    return values(seed, stream, (rows, columns), gain * np.sqrt(3.0 / columns))


def q8_0(w):
    blocks = w.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(blocks * (np.float32(1) / scale))
    return (codes * scale.astype(np.float16).astype(np.float32)).reshape(w.shape)


ROUND = {"f32": lambda w: w, "f16": lambda w: w.astype(np.float16).astype(np.float32), "q8_0": q8_0}


def to_file_order(w, heads):
    """Rows of a q or k weight as llama-arch GGUF files store them."""
    return w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def build(case, permute_wrongly=False):
    _, layers, hidden, q_heads, kv_heads, head_dim, ffn, vocabulary, theta, tied, seed, weights = case
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=q_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=theta,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        attention_bias=False,
        mlp_bias=False,
    )
    model = LlamaForCausalLM(config).double().eval()
    rounded = ROUND[weights]
    state, checks = {}, []
    embedding = rounded(values(seed, 0, (vocabulary, hidden), 0.5))
    state["model.embed_tokens.weight"] = embedding
    state["model.norm.weight"] = values(seed, 1, (hidden,), 0.25, 1.0)
    state["lm_head.weight"] = embedding if tied else rounded(matrix(seed, 2, vocabulary, hidden, 3.0))
    for layer in range(layers):
        stream, prefix = 10 + 16 * layer, f"model.layers.{layer}."
        q = rounded(matrix(seed, stream + 1, q_heads * head_dim, hidden, 2.0))
        k = rounded(matrix(seed, stream + 2, kv_heads * head_dim, hidden, 2.0))
        for name, w, heads in (("q", q, q_heads), ("k", k, kv_heads)):
            first = (head_dim + 1) * hidden + 5 if heads > 1 else hidden + 5
            bits = to_file_order(w, heads).reshape(-1)[first : first + 4].view(np.uint32)
            checks.append(f"weight blk.{layer}.attn_{name}.weight {first} " + " ".join(f"{b:08x}" for b in bits))
        if permute_wrongly:
            q, k = to_file_order(q, q_heads), to_file_order(k, kv_heads)
        state |= {
            prefix + "input_layernorm.weight": values(seed, stream, (hidden,), 0.25, 1.0),
            prefix + "self_attn.q_proj.weight": q,
            prefix + "self_attn.k_proj.weight": k,
            prefix + "self_attn.v_proj.weight": rounded(matrix(seed, stream + 3, kv_heads * head_dim, hidden, 1.0)),
            prefix + "self_attn.o_proj.weight": rounded(matrix(seed, stream + 4, hidden, q_heads * head_dim, 1.0)),
            prefix + "post_attention_layernorm.weight": values(seed, stream + 5, (hidden,), 0.25, 1.0),
            prefix + "mlp.gate_proj.weight": rounded(matrix(seed, stream + 6, ffn, hidden, 1.0)),
            prefix + "mlp.up_proj.weight": rounded(matrix(seed, stream + 7, ffn, hidden, 1.0)),
            prefix + "mlp.down_proj.weight": rounded(matrix(seed, stream + 8, hidden, ffn, 1.0)),
        }
    result = model.load_state_dict(
        {name: torch.from_numpy(np.ascontiguousarray(w)).double() for name, w in state.items()}, strict=True
    )
    assert not result.missing_keys and not result.unexpected_keys
    return model, checks


@torch.no_grad()
def main():
    lines = []
    for case in CASES:
        name, *numbers, theta, tied, seed, weights = case
        vocabulary = numbers[-1]
        tokens = (
            mix(np.arange(PROMPT + STEPS, dtype=np.uint32) + np.uint32(seed * 7919)) % np.uint32(vocabulary)
        ).tolist()
        model, checks = build(case)
        logits = model(torch.tensor([tokens])).logits[0].double()
        wrong = build(case, permute_wrongly=True)[0](torch.tensor([tokens])).logits[0].double()
        gap = (logits - wrong).abs().max().item()
        top = logits.topk(2, -1).values
        print(
            f"{name}: logits std {logits.std():.2f}, wrong row order moves them by {gap:.2f}, "
            f"smallest lead of the best {(top[:, 0] - top[:, 1]).min():.4f}"
        )
        assert gap > 0.5, "the golden would not notice a wrong q/k row order"
        lines.append(f"case {name} {' '.join(map(str, numbers))} {theta:g} {int(tied)} {seed} {weights}")
        lines += checks
        lines.append(f"tokens {PROMPT} {len(tokens)} " + " ".join(map(str, tokens)))
        for position, row in enumerate(logits):
            samples = " ".join(f"{row[(37 * position + 41 * i) % vocabulary]:.6f}" for i in range(8))
            lines.append(f"row {row.argmax()} {row.logsumexp(-1):.6f} {samples}")
    (pathlib.Path(__file__).parent / "llama_logits.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
