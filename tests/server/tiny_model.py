"""Writes small GGUF models of the llama architecture: one with random weights, and one that says what it is told to."""

import struct
from pathlib import Path

import numpy as np

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
NORMAL, CONTROL, UNUSED = 1, 3, 5
ALIGNMENT = 32

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    assert isinstance(value, list)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    return struct.pack("<IIQ", ARRAY, I32, len(value)) + struct.pack(f"<{len(value)}i", *value)


def _write(path: Path, metadata: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, len(data))
        data += tensor.astype("<f4").tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


def byte_symbol(byte: int) -> str:
    """The printable stand-in of a byte in byte-level BPE vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in printable else chr(256 + sum(b not in printable for b in range(byte)))


def symbols(text: str | bytes) -> str:
    return "".join(map(byte_symbol, text.encode() if isinstance(text, str) else text))


class Vocabulary:
    """Three control tokens, the 256 bytes, then "he" and other `words`; those of two letters are merges."""

    def __init__(self, words: list[str], size: int = 320, template: str = CHATML, bos: bool = False) -> None:
        words = ["he", *(word for word in words if word != "he")]
        self.specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        self.tokens = [*self.specials, *map(byte_symbol, range(256)), *map(symbols, words)]
        self.words = {word: len(self.specials) + 256 + i for i, word in enumerate(words)}
        types = [CONTROL] * len(self.specials) + [NORMAL] * (256 + len(words))
        while len(self.tokens) < size:
            self.tokens.append(f"<unused{len(self.tokens)}>")
            types.append(UNUSED)
        self.metadata: dict[str, object] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": [" ".join(map(symbols, word)) for word in words if len(word) == 2],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": bos,
            "tokenizer.chat_template": template,
        }

    def id_of(self, token: str | int) -> int:
        """A byte (an int), a control token or a word."""
        if isinstance(token, int):
            return len(self.specials) + token
        return self.specials.index(token) if token in self.specials else self.words[token]


def _metadata(vocabulary: Vocabulary, hidden: int, layers: int, heads: int, context: int) -> dict[str, object]:
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.context_length": context,
        "llama.embedding_length": hidden,
        "llama.block_count": layers,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": heads // 2,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 16,
        "llama.vocab_size": len(vocabulary.tokens),
        **vocabulary.metadata,
    }


def _layer(hidden: int, heads: int, random: np.random.Generator | None) -> dict[str, np.ndarray]:
    shapes = {
        "attn_q": (heads * 16, hidden),
        "attn_k": (heads * 8, hidden),
        "attn_v": (heads * 8, hidden),
        "attn_output": (hidden, heads * 16),
        "ffn_gate": (96, hidden),
        "ffn_up": (96, hidden),
        "ffn_down": (hidden, 96),
    }
    scale = {name: 0.0 if random is None else 1.5 / np.sqrt(shape[1]) for name, shape in shapes.items()}
    noise = random or np.random.default_rng(0)
    tensors = {name: noise.standard_normal(shape) * scale[name] for name, shape in shapes.items()}
    return tensors | {"attn_norm": np.ones(hidden), "ffn_norm": np.ones(hidden)}


def write_random(
    path: Path, *, context: int = 1024, layers: int = 2, template: str = CHATML, bos: bool = False
) -> Path:
    """Says anything; every token is about equally likely."""
    vocabulary = Vocabulary(["in", "er"], template=template, bos=bos)
    random = np.random.default_rng(1)
    tensors = {
        "token_embd.weight": random.standard_normal((len(vocabulary.tokens), 64)) * 0.5,
        "output_norm.weight": np.ones(64),
    }
    for i in range(layers):
        tensors |= {f"blk.{i}.{name}.weight": value for name, value in _layer(64, 4, random).items()}
    _write(path, _metadata(vocabulary, 64, layers, 4, context), tensors)
    return path


def write_chain(
    path: Path, chain: list[str | int], *, end: str = "<|im_end|>", context: int = 1024, template: str = CHATML
) -> Path:
    """After any token that is not in `chain` it says the first of the chain, then the others in order, then `end`.

    All of the chain's tokens differ."""
    vocabulary = Vocabulary([token for token in chain if isinstance(token, str)], template=template)
    vocabulary.metadata["tokenizer.ggml.eot_token_id"] = vocabulary.id_of(end)
    ids = [vocabulary.id_of(token) for token in chain]
    assert len(set(ids)) == len(ids)
    size = len(vocabulary.tokens)
    successor = np.full(size, ids[0])
    successor[ids] = [*ids[1:], vocabulary.id_of(end)]
    # One dimension per token: the embedding says which token it is, output[b, a] is set if b follows a.
    output = np.zeros((size, size))
    output[successor, np.arange(size)] = 20.0
    tensors = {
        "token_embd.weight": np.eye(size),
        "output_norm.weight": np.full(size, 1.0 / np.sqrt(size)),
        "output.weight": output,
    }
    tensors |= {f"blk.0.{name}.weight": value for name, value in _layer(size, 4, None).items()}
    _write(path, _metadata(vocabulary, size, 1, 4, context), tensors)
    return path
