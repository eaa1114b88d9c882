"""Compares kvant's token ids with Hugging Face tokenizers over GGUF vocabularies.

Each vocabulary is also written as a tokenizer.json, which kvant reads back. A folder with the vocabularies of
llama.cpp's tests may be given instead of files: those that kvant reads are compared, and the ids in the .out files
beside them too.

Usage: compare_tokenizers.py --tool build/dev/bin/kvant_tokenize MODEL.gguf|FOLDER...
Exit code 0: no difference; 1: differences (the first ones are printed); 77: something needed is not there.
"""

import argparse
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

from gguf_metadata import read_metadata
from tokenizer_strings import strings

SKIPPED = 77

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
except ImportError:
    print("SKIPPED: the Python package 'tokenizers' is not installed")
    sys.exit(SKIPPED)

SPACE = "\u2581"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SUFFIX"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SUFFIX"
    r"|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = CASED.replace("SUFFIX", "").replace("DIGITS", "")
GPT4O = CASED.replace("SUFFIX", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("DIGITS", "{1,3}")
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
# Letters with a case, as they were when this tokenizer was made.
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LLM = [
    r"[\r\n]",
    rf"\s?[{CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    DEEPSEEK_CODER[-1],
]
PATTERNS = {
    "llama-bpe": [LLAMA3],
    "smaug-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
    "deepseek-v3": DEEPSEEK_V3,
}
NFC = ("qwen2", "qwen35", "command-r", "mpt", "olmo")
WHOLE_WORDS = ("llama-bpe", "smaug-bpe", "tekken")
HTML_TAG = re.compile(
    r"</?(a|b|blockquote|caption|code|em|h[1-6]|i|li|ol|p|s|strong|su[bp]|t[dhr]|table|tbody|tfoot|thead|u|ul)>"
)
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
CUTS_ALONE = ("tekken", "gpt-4o", "deepseek-v3")
CUTS_OVER = "ggml-vocab-llama-bpe.gguf"
# Vocabularies of llama.cpp's tests that kvant refuses, and why.
REFUSED = {
    "bert-bge": "WordPiece",
    "nomic-bert-moe": "Unigram",
}


def byte_level(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    if name in ("gpt-2", "default", "mpt", "olmo"):
        return byte_level(True)
    if name in ("smollm", "starcoder", "refact", "command-r"):
        return pre_tokenizers.Sequence([digits, byte_level(True)])
    if name == "deepseek-coder":
        stages = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK_CODER]
        return pre_tokenizers.Sequence([*stages, digits, byte_level(False)])
    if name == "deepseek-llm":
        stages = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK_LLM]
        return pre_tokenizers.Sequence([*stages, digits, byte_level(False)])
    if name == "falcon":
        threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
        numbers = pre_tokenizers.Digits(individual_digits=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), byte_level(True), numbers, threes])
    stages = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    return pre_tokenizers.Sequence([*stages, byte_level(False)])


def merges_from_scores(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """What Hugging Face derives from a SentencePiece model."""
    vocabulary = {token: index for index, token in reversed(list(enumerate(tokens)))}
    merges = []
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(*pair, scores[index]) for pair in pairs]
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [(left, right) for left, right, _ in merges]


def is_ordinary(token: str) -> bool:
    """Added tokens that kvant finds in text of users, too."""
    return len(token) == 1 or not token.replace(SPACE, " ").strip() or HTML_TAG.fullmatch(token) is not None


def sentencepiece(metadata: dict) -> Tokenizer:
    tokens = metadata["tokenizer.ggml.tokens"]
    lines = metadata.get("tokenizer.ggml.merges")
    if lines is None:
        merges = merges_from_scores(tokens, metadata["tokenizer.ggml.scores"])
    else:
        merges = [tuple(line.split(" ", 1)) for line in lines]
    vocabulary = {token: index for index, token in reversed(list(enumerate(tokens)))}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocabulary,
        merges,
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    tokenizer = Tokenizer(model)
    steps = [normalizers.Replace(" ", SPACE)]
    decoder = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
        decoder.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(decoder)
    return tokenizer


def byte_level_bpe(metadata: dict) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in WHOLE_WORDS))
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    if name in NFC:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def reference(metadata: dict, with_specials: bool) -> Tokenizer:
    spm = metadata.get("tokenizer.ggml.model", "gpt2") != "gpt2"
    tokenizer = sentencepiece(metadata) if spm else byte_level_bpe(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type", [])
    added = [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if (kind == CONTROL and with_specials) or (kind == USER_DEFINED and (with_specials or is_ordinary(token)))
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def ours(tool: Path, model: Path, texts: list[str], with_specials: bool) -> list[list[int]]:
    encoded = [text.encode("utf-8") for text in texts]
    stream = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    command = [str(tool), str(model)] + (["--specials"] if with_specials else [])
    output = subprocess.run(command, input=stream, capture_output=True, check=True).stdout.decode().split("\n")
    return [[int(item) for item in line.split()] for line in output[:-1]]


def compare_ids(title: str, texts: list[str], expected: list[list[int]], actual: list[list[int]]) -> int:
    if len(actual) != len(texts):
        print(f"{title}: {len(actual)} answers for {len(texts)} strings")
        return len(texts)
    wrong = [i for i in range(len(texts)) if actual[i] != expected[i]]
    for i in wrong[:5]:
        print(f"{texts[i]!r}\n  expected {expected[i]}\n  actual   {actual[i]}")
    print(f"{title}: {len(texts)} strings, {len(wrong)} differences", flush=True)
    return len(wrong)


def compare_pair(tool: Path, model: Path) -> int:
    """Strings and ids that came with the vocabulary, whose makers do not compose characters."""
    texts = Path(f"{model}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{model}.out").read_text(encoding="utf-8").split("\n")
    expected = [[int(item) for item in line.split()] for line in lines]
    composed = [i for i, text in enumerate(texts) if unicodedata.is_normalized("NFC", text)]
    texts, expected = [texts[i] for i in composed], [expected[i] for i in composed]
    return compare_ids(f"{model.name}.inp", texts, expected, ours(tool, model, texts, True))


def compare(tool: Path, model: Path, texts: list[str]) -> int:
    metadata = read_metadata(model)
    differences = 0
    for with_specials in (False, True):
        mode = "with specials" if with_specials else "plain"
        tokenizer = reference(metadata, with_specials)
        expected = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        differences += compare_ids(f"{model.name} ({mode})", texts, expected, ours(tool, model, texts, with_specials))
        if not with_specials:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(str(Path(folder) / "tokenizer.json"))
            actual = ours(tool, Path(folder), texts, with_specials)
            differences += compare_ids(f"{model.name} as tokenizer.json", texts, expected, actual)
    if Path(f"{model}.inp").exists():
        differences += compare_pair(tool, model)
    return differences


def renamed(model: Path, name: str, folder: Path) -> Path:
    """The same vocabulary under another pre-tokenizer's name."""
    content = model.read_bytes()
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = content.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", content, at)
    path = folder / f"{name}-over-{model.name}"
    path.write_bytes(content[:at] + struct.pack("<Q", len(name)) + name.encode() + content[at + 8 + length :])
    return path


def compare_cuts(tool: Path, model: Path, texts: list[str]) -> int:
    """Pre-tokenizers whose own vocabularies are not in the folder, over another one."""
    with tempfile.TemporaryDirectory() as folder:
        return sum(compare(tool, renamed(model, name, Path(folder)), texts) for name in CUTS_ALONE)


def vocabularies(folder: Path) -> list[Path]:
    name = "ggml-vocab-"
    found = sorted(path for path in folder.glob(f"{name}*.gguf"))
    return [path for path in found if path.stem.removeprefix(name) not in REFUSED]


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
    chosen = [path for model in arguments.models for path in (vocabularies(model) if model.is_dir() else [model])]
    texts = list(strings(arguments.count))
    differences = sum(compare(arguments.tool, model, texts) for model in chosen)
    for model in arguments.models:
        if model.is_dir() and (model / CUTS_OVER).exists():
            differences += compare_cuts(arguments.tool, model / CUTS_OVER, texts)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
