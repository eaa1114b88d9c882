"""Black-box tests of `kvant serve`: they see the program, its port and what comes out of it."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
import tiny_model


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    text: str
    json: dict = field(default_factory=dict)


class Server:
    """A running `kvant serve`."""

    def __init__(self, model: Path, cache: Path, *args: object) -> None:
        program = os.environ["KVANT_BINARY"]
        port = [] if "--port" in args else ["--port", "0"]
        command = [program, "serve", str(model), *port, *map(str, args)]
        environment = os.environ | {"KVANT_CACHE_DIR": str(cache)}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.stderr: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr.append(line)
            if match := re.search(r"listening on (http://\S+:(\d+))", line):
                self.url, self.port = match[1], int(match[2])
                break
        else:
            raise RuntimeError(f"kvant serve ended: {self.stderr}")

    def wait_until_ready(self, seconds: float = 120) -> "Server":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.get("/health").status == 200:
                return self
            assert self.process.poll() is None
            time.sleep(0.05)
        raise TimeoutError("the server did not become ready")

    def request(self, path: str, data: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        request = urllib.request.Request(self.url + path, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                status, head, text = response.status, dict(response.headers), response.read().decode()
        except urllib.error.HTTPError as error:
            status, head, text = error.code, dict(error.headers), error.read().decode()
        parsed = json.loads(text) if head.get("Content-Type", "").startswith("application/json") else {}
        return Reply(status, head, text, parsed)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.request(path, None, headers)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request(path, data, {"Content-Type": "application/json"} | (headers or {}))

    def complete(self, **fields: object) -> Reply:
        return self.post("/v1/completions", fields)

    def stream(self, path: str, body: dict) -> list[dict]:
        """The chunks of a stream that ends as it should."""
        reply = self.post(path, body | {"stream": True})
        assert reply.status == 200, reply
        assert reply.headers["Content-Type"] == "text/event-stream"
        events = reply.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert all(event.startswith("data: ") for event in events[:-1])
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def socket(self, timeout: float = 30) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def metric(self, name: str) -> float:
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise KeyError(name)

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=120)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


Start = Callable[..., Server]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers, which end with the tests and must do so with exit code 0."""
    cache = tmp_path_factory.mktemp("cache")
    servers: list[Server] = []

    def run(model: Path, *args: object, wait: bool = True) -> Server:
        server = Server(model, cache, *args)
        servers.append(server)
        return server.wait_until_ready() if wait else server

    yield run
    codes = [server.stop() for server in servers]
    assert codes == [0] * len(codes)


@pytest.fixture
def run_json(tmp_path: Path) -> RunJson:
    """What `kvant run MODEL --json` prints."""

    def run(model: Path, *args: object) -> dict[str, Any]:
        result = subprocess.run(
            [os.environ["KVANT_BINARY"], "run", str(model), "--json", *map(str, args)],
            capture_output=True,
            check=True,
            env=os.environ | {"KVANT_CACHE_DIR": str(tmp_path)},
        )
        return json.loads(result.stdout)

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny(models: Path) -> Path:
    return tiny_model.write_random(models / "tiny.gguf")


@pytest.fixture(scope="session")
def server(start: Start, tiny: Path) -> Server:
    """A server over a small random model, for tests that leave it as it was."""
    return start(tiny, "--threads", 2, "--parallel", 4, "--kv", "nvfp4")


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return server.client()
