"""Start, load, clients that leave, full queues, keys, and the end."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from conftest import Server, Start


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def post_text(path: str, body: dict) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)


def test_health_from_the_first_moment(start: Start, tiny: Path) -> None:
    """U-92: it listens before the model is there and says why it is not ready."""
    server = start(tiny, "--kv", "nvfp4", "--threads", 1, wait=False)
    first = server.get("/health")
    if first.status == 503:
        assert first.json["status"] == "loading"
        assert first.json["reason"].startswith("loading: ")
        refused = server.complete(prompt="he")
        assert refused.status in (200, 503)
    server.wait_until_ready()
    assert server.complete(prompt="he", max_tokens=1).status == 200


def test_a_model_that_cannot_be_loaded_ends_the_program(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF nonsense")
    server = Server(bad, tmp_path / "cache")
    assert server.process.wait(timeout=30) == 3  # No GGUF version that is known.
    assert server.process.stderr is not None
    assert server.process.stderr.read().splitlines()[-1].startswith("kvant: error: ")


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_free_their_pages(start: Start, tiny: Path, stream: bool) -> None:
    """U-83."""
    server = start(tiny, "--threads", 1, "--parallel", 8, "--no-prefix-cache")
    pages = 'kvant_pages_used{pool="base"'
    used = [line for line in server.get("/metrics").text.splitlines() if line.startswith("kvant_pages_used")]
    assert any(line.startswith(pages) for line in used)
    body = {"prompt": "he", "max_tokens": 1000, "ignore_eos": True, "stream": stream}
    connections = [server.socket() for _ in range(50)]
    for connection in connections:
        connection.sendall(post_text("/v1/completions", body))
    if stream:
        connections[0].recv(1)
    assert eventually(lambda: server.metric("kvant_requests_running") > 0, 10)
    for connection in connections:
        connection.close()

    def at_rest() -> bool:
        now = [line for line in server.get("/metrics").text.splitlines() if line.startswith("kvant_pages_used")]
        return now == used and server.metric("kvant_requests_running") + server.metric("kvant_requests_waiting") == 0

    assert eventually(at_rest, 4)
    assert server.complete(prompt="he", max_tokens=2).status == 200


def test_full_queue_is_said(start: Start, tiny: Path) -> None:
    server = start(tiny, "--threads", 1, "--parallel", 1, "--max-queue", 1)
    body = {"prompt": "he", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    busy = [server.socket() for _ in range(2)]
    for connection in busy:
        connection.sendall(post_text("/v1/completions", body))
        assert connection.recv(12) == b"HTTP/1.1 200"
    reply = server.complete(prompt="he", max_tokens=1)
    assert (reply.status, reply.headers["Retry-After"], reply.json["error"]["code"]) == (429, "1", "queue_full")
    assert server.get("/health").status == 200
    for connection in busy:
        connection.close()
    assert eventually(lambda: server.complete(prompt="he", max_tokens=1).status == 200, 5)


def test_keys(start: Start, tiny: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("second\r\nthird\n\n")
    server = start(tiny, "--threads", 1, "--api-key", "first", "--api-key-file", keys)
    assert server.get("/health").status == 200
    for path in ("/v1/models", "/metrics", "/props", "/nothing"):
        reply = server.get(path)
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer"), path
    for wrong in ("", "Bearer", "Bearer ", "Bearer firs", "Bearer firstt", "Basic first", "first"):
        assert server.get("/v1/models", {"Authorization": wrong}).status == 401, wrong
    for key in ("first", "second", "third"):
        assert server.get("/v1/models", {"Authorization": f"Bearer {key}"}).status == 200
    with pytest.raises(openai.AuthenticationError):
        server.client("wrong").models.list()
    # Keys do not share cached prefixes.
    body = {"prompt": "he" * 100, "max_tokens": 1, "temperature": 0}

    def cached(key: str) -> int:
        reply = server.post("/v1/completions", body, {"Authorization": f"Bearer {key}"})
        return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("first") == 0
    assert cached("first") > 0
    assert cached("second") == 0


def test_other_sites_may_not_ask_unless_allowed(server: Server, start: Start, tiny: Path) -> None:
    assert server.get("/v1/models", {"Origin": "https://evil.example"}).status == 403
    assert server.get("/v1/models", {"Origin": server.url}).status == 200
    assert "Access-Control-Allow-Origin" not in server.get("/v1/models").headers
    open_server = start(tiny, "--threads", 1, "--cors-origin", "https://good.example")
    reply = open_server.get("/v1/models", {"Origin": "https://good.example"})
    assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, "https://good.example")
    with open_server.socket() as connection:
        connection.sendall(
            b"OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://good.example\r\n"
            b"Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
        )
        head = connection.recv(4096)
    assert head.startswith(b"HTTP/1.1 204")
    assert b"Access-Control-Allow-Headers: authorization, content-type" in head


def test_loopback_is_the_default(server: Server) -> None:
    listening = Path("/proc/net/tcp").read_text().splitlines()
    port = f":{server.port:04X}"
    assert [line.split()[1] for line in listening if line.split()[1].endswith(port) and line.split()[3] == "0A"] == [
        "0100007F" + port
    ]


def test_taken_port_is_an_error(server: Server, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot listen on"):
        Server(tiny, tmp_path, "--port", server.port)


def test_sigterm_lets_answers_finish(start: Start, tiny: Path) -> None:
    server = start(tiny, "--threads", 1, "--parallel", 2, "--context", 1000)
    answer = bytearray()
    with server.socket() as connection:
        connection.sendall(
            post_text("/v1/completions", {"prompt": "he", "max_tokens": 990, "ignore_eos": True, "stream": True})
        )
        answer += connection.recv(12)

        def read_on() -> None:
            while part := connection.recv(65536):
                answer.extend(part)

        thread = threading.Thread(target=read_on)
        thread.start()
        os.kill(server.process.pid, signal.SIGTERM)
        states = set()
        try:
            while server.process.poll() is None:
                states.add(server.complete(prompt="he", max_tokens=1).status)
        except OSError:
            pass  # The port is closed by now.
        thread.join()
    assert b'"finish_reason":"length"' in answer
    assert b"data: [DONE]" in answer
    assert states <= {200, 503}
    assert server.process.wait(timeout=20) == 0


def test_hung_requests_are_cut_at_the_end_of_the_drain(start: Start, tiny: Path) -> None:
    server = start(tiny, "--threads", 1, "--drain", 0, "--context", 1000)
    with server.socket() as connection:
        connection.sendall(
            post_text("/v1/completions", {"prompt": "he", "max_tokens": 990, "ignore_eos": True, "stream": True})
        )
        connection.recv(12)
        server.process.send_signal(signal.SIGTERM)
        connection.settimeout(10)
        while connection.recv(65536):
            pass
    assert server.process.wait(timeout=20) == 0


def test_half_a_request_at_the_end_does_not_hold_it_up(start: Start, tiny: Path) -> None:
    server = start(tiny, "--threads", 1)
    with socket.create_connection(("127.0.0.1", server.port)):
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 5
