"""Compares kvant's token ids with Hugging Face tokenizers over one GGUF vocabulary.

Usage: compare_tokenizers.py --tool build/dev/bin/kvant_tokenize MODEL.gguf...
Exit code 0: no difference; 1: differences (the first ones are printed); 77: something needed is not there.
"""

import argparse
import struct
import subprocess
import sys
import time
from pathlib import Path

from gguf_metadata import read_metadata
from tokenizer_strings import strings

SKIPPED = 77

try:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
except ImportError:
    print("SKIPPED: the Python package 'tokenizers' is not installed")
    sys.exit(SKIPPED)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CONTROL, USER_DEFINED = 3, 4


def byte_level(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    if name in ("gpt-2", "default"):
        return byte_level(True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    pattern = {"llama-bpe": LLAMA3, "smaug-bpe": LLAMA3, "qwen2": QWEN2}[name]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def reference(metadata: dict, with_specials: bool) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in ("llama-bpe", "smaug-bpe")))
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if with_specials:
        types = metadata["tokenizer.ggml.token_type"]
        added = [
            AddedToken(token, normalized=False, special=kind == CONTROL)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
        tokenizer.add_special_tokens(added)
    return tokenizer


def ours(tool: Path, model: Path, texts: list[str], with_specials: bool) -> list[list[int]]:
    encoded = [text.encode("utf-8") for text in texts]
    stream = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    command = [str(tool), str(model)] + (["--specials"] if with_specials else [])
    output = subprocess.run(command, input=stream, capture_output=True, check=True).stdout.decode().split("\n")
    return [[int(item) for item in line.split()] for line in output[:-1]]


def compare(tool: Path, model: Path, texts: list[str]) -> int:
    metadata = read_metadata(model)
    differences = 0
    for with_specials in (False, True):
        start = time.time()
        expected = [
            encoding.ids
            for encoding in reference(metadata, with_specials).encode_batch(texts, add_special_tokens=False)
        ]
        actual = ours(tool, model, texts, with_specials)
        if len(actual) != len(texts):
            print(f"{model.name}: {len(actual)} answers for {len(texts)} strings")
            return len(texts)
        wrong = [i for i in range(len(texts)) if actual[i] != expected[i]]
        for i in wrong[:10]:
            print(f"{texts[i]!r}\n  expected {expected[i]}\n  actual   {actual[i]}")
        mode = "with specials" if with_specials else "plain"
        print(f"{model.name} ({mode}): {len(texts)} strings, {len(wrong)} differences, {time.time() - start:.1f} s")
        differences += len(wrong)
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tool", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20_500)
    arguments = parser.parse_args()
    missing = [model for model in arguments.models if not model.exists()]
    if missing:
        print(f"SKIPPED: no file {missing[0]} (make model fetches it)")
        return SKIPPED
    texts = list(strings(arguments.count))
    return 1 if sum(compare(arguments.tool, model, texts) for model in arguments.models) else 0


if __name__ == "__main__":
    sys.exit(main())
