"""Reads the metadata of a GGUF file: just enough for the tokenizer scripts, with the standard library alone."""

import struct
from pathlib import Path
from typing import Any, BinaryIO

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


def _unpack(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> str:
    return file.read(_unpack(file, "<Q")).decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _string(file)
    if kind == ARRAY:
        inner, count = _unpack(file, "<I"), _unpack(file, "<Q")
        return [_value(file, inner) for _ in range(count)]
    return _unpack(file, SCALARS[kind])


def read_metadata(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        _version, _tensors, count = _unpack(file, "<I"), _unpack(file, "<Q"), _unpack(file, "<Q")
        return {_string(file): _value(file, _unpack(file, "<I")) for _ in range(count)}
