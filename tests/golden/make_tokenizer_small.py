"""Writes tokenizer_small.json: a tiny byte-level BPE vocabulary and the ids that Hugging Face tokenizers gives for it.

Usage: make_tokenizer_small.py [OUTPUT]; needs the Python package 'tokenizers'.
"""

import json
import sys
from pathlib import Path

from compare_tokenizers import reference
from tokenizer_strings import CODE, EMOJI, WORDS, strings
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "<tool_call>"]
PRE_TOKENIZERS = ["gpt-2", "llama-bpe", "smollm", "qwen2", "tekken", "gpt-4o", "deepseek-v3", "deepseek-llm", "falcon"]
MAX_BYTES = 60


def vocabulary() -> tuple[list[str], list[str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    text = [" ".join(WORDS)] * 3 + CODE * 4 + ["    " * 8 + "\n\n" + "".join(EMOJI) + "1234 2024 100"] * 3
    tokenizer.train_from_iterator(text, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]
    return tokens + USER_DEFINED + CONTROLS, merges


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("tokenizer_small.json")
    tokens, merges = vocabulary()
    types = [1] * (len(tokens) - len(USER_DEFINED) - len(CONTROLS)) + [4] * len(USER_DEFINED) + [3] * len(CONTROLS)
    texts = list(dict.fromkeys(text for text in strings(2000) if len(text.encode()) <= MAX_BYTES))[:110]
    cases = []
    for name in PRE_TOKENIZERS:
        metadata = {
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.token_type": types,
        }
        for specials in (False, True):
            tokenizer = reference(metadata, specials)
            for text in texts:
                if specials and "<" not in text:
                    continue
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                cases.append({"pre": name, "specials": specials, "text": text, "ids": ids})
    lines = [json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases]
    head = json.dumps({"tokens": tokens, "types": types, "merges": merges}, ensure_ascii=True, separators=(",", ":"))
    output.write_text(head[:-1] + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
