"""Libraries that peers are of, and what they call a KV cache's formats."""

import importlib
from typing import Any

import torch

TYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "nvfp4": torch.uint8}


def optional(name: str) -> Any:
    """A module, or None, which is said, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}", flush=True)
        return None


def machine() -> dict[str, Any]:
    """What figures depend on."""
    versions = {name: getattr(optional(name), "__version__", None) for name in ("torch", "flashinfer")}
    return {"device": torch.cuda.get_device_name(), **versions, "cudnn": torch.backends.cudnn.version()}
