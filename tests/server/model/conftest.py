"""The server over the model that `make model` fetches."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture(scope="session")
def smollm() -> Path:
    path = Path(os.environ["KVANT_SOURCE_DIR"]) / "build/models/SmolLM2-135M-Instruct.gguf"
    if not path.is_file():
        pytest.skip("the model is not there; run make model")
    return path
