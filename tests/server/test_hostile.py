"""Requests that are wrong, huge, slow or hardly HTTP. The server refuses them and goes on."""

import gzip
import json
import socket
import time
import urllib.request

import pytest
from conftest import Server


def still_serves(server: Server) -> bool:
    return server.complete(prompt="he", max_tokens=1).status == 200


def receive_all(connection: socket.socket) -> bytes:
    out = b""
    while part := connection.recv(65536):
        out += part
    return out


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b"{:"),
        ("/v1/completions", b'{"prompt":7}'),
        ("/v1/chat/completions", b'{"messages":"hi"}'),
        ("/v1/completions", b"[]"),
        ("/v1/completions", b""),
        ("/v1/completions", b"{"),
        ("/v1/completions", b'{"prompt":"a"} x'),
        ("/v1/completions", b'{"prompt":"\\ud800"}'),
        ("/v1/completions", b'{"prompt":"\\udc00\\ud800"}'),
        ("/v1/completions", b'{"prompt":"\xc0\xaf"}'),
        ("/v1/completions", b'{"prompt":"\xed\xa0\x80"}'),
        ("/v1/completions", b'{"prompt":"\xf4\x90\x80\x80"}'),
        ("/v1/completions", b'{"prompt":"a","n":1e400}'),
        ("/v1/completions", b'{"prompt":"a","n":' + b"9" * 5000 + b"}"),
        ("/v1/completions", b'{"prompt":"a","temperature":-1e308}'),
        ("/v1/completions", b"\x00\x01\x02"),
        ("/v1/chat/completions", b'{"tools":' + b"[" * 3000),
        ("/v1/chat/completions", b'{"tools":' + b"[" * 3000 + b"]" * 3000 + b"}"),
        ("/v1/completions", b'{"prompt":"a","unknown":' + b'{"a":' * 10000 + b"1" + b"}" * 10000 + b"}"),
        ("/v1/completions", b'{"prompt":[' + b"1," * 1_100_000 + b"1]}"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_bad_bodies_are_refused(server: Server, path: str, body: bytes) -> None:
    """U-77, U-78."""
    reply = server.post(path, body)
    assert reply.status == 400, reply.text[:500]
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"]["message"]
    assert still_serves(server)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "temperature": True}, "temperature"),
        ({"prompt": "a", "stream": 1}, "stream"),
        ({"prompt": "a", "stream_options": []}, "stream_options"),
        ({"prompt": "a", "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"prompt": "a", "stop": {"a": 1}}, "stop"),
        ({"prompt": "a", "stop": [1]}, "stop"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "logprobs": 1000}, "logprobs"),
        ({"prompt": "a", "seed": 0.5}, "seed"),
        ({"prompt": "a", "top_p": 2}, "top_p"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1, -1]]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({}, "prompt"),
    ],
    ids=str,
)
def test_wrong_fields_are_named(server: Server, fields: dict, name: str) -> None:
    reply = server.post("/v1/completions", fields)
    assert (reply.status, reply.json["error"]["type"], reply.json["error"]["param"]) == (
        400,
        "invalid_request_error",
        name,
    )


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (7, "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "king", "content": "a"}, "messages[0].role"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": [7]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
    ids=str,
)
def test_wrong_messages_are_named(server: Server, message: object, name: str) -> None:
    reply = server.post("/v1/chat/completions", {"messages": [message]})
    assert (reply.status, reply.json["error"]["param"]) == (400, name)


def test_unknown_paths_and_methods(server: Server) -> None:
    assert server.get("/nothing").status == 404
    assert server.post("/nothing", {}).status == 404
    wrong = server.get("/v1/completions")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    assert server.request("/v1/completions", b"--x", {"Content-Type": "multipart/form-data; boundary=x"}).status == 415


def test_huge_bodies_are_refused(server: Server) -> None:
    """U-78: announced, and in chunks without an announcement."""
    with server.socket() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 209715200\r\n\r\n")
        try:
            for _ in range(200):
                connection.sendall(b" " * 1048576)
        except OSError:
            pass  # It may hang up before it has seen all.
        else:
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
    with server.socket() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(40):
                connection.sendall(b"100000\r\n" + b" " * 1048576 + b"\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        except OSError:
            pass
    assert still_serves(server)


def test_long_heads_are_refused(server: Server) -> None:
    with server.socket() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + b"X-A: " + b"a" * 40000)
        assert receive_all(connection).startswith(b"HTTP/1.1 431")
    with server.socket() as connection:
        connection.sendall(b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 414")


@pytest.mark.parametrize("text", [b"nonsense\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x00\r\n\r\n"])
def test_what_is_no_http_is_refused(server: Server, text: bytes) -> None:
    with server.socket() as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        assert receive_all(connection)[:12] in (b"", b"HTTP/1.1 400")
    assert still_serves(server)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    body = json.dumps({"prompt": "he", "max_tokens": 1}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with server.socket() as connection:
        connection.sendall(
            post
            + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
            + post.replace(b"1.1\r\n", b"1.1\r\nConnection: close\r\n", 1)
        )
        text = receive_all(connection)
    assert text.count(b"HTTP/1.1 200") == 3
    assert text.index(b"text_completion") < text.index(b'"status":"ok"') < text.rindex(b"text_completion")


def test_a_body_for_get_is_not_the_next_request(server: Server) -> None:
    hidden = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    with server.socket() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(hidden), hidden))
        assert receive_all(connection).count(b"HTTP/1.1") == 1


def test_slow_requests_do_not_hold_up_others(server: Server) -> None:
    """Slow loris: many connections that never finish their heads."""
    slow = [server.socket(timeout=20) for _ in range(100)]
    for connection in slow:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-")
    begin = time.monotonic()
    assert server.get("/health").status == 200
    assert still_serves(server)
    assert time.monotonic() - begin < 5
    for connection in slow[1:]:
        connection.close()
    assert receive_all(slow[0]).startswith(b"HTTP/1.1 408")
    slow[0].close()


def test_ranges_and_compression_do_not_disturb(server: Server) -> None:
    assert server.get("/health", {"Range": "bytes=0-1"}).json == {"status": "ok"}
    assert server.get("/health", {"Range": "bytes=9999999-"}).json == {"status": "ok"}
    request = urllib.request.Request(server.url + "/health", headers={"Accept-Encoding": "gzip;q=x, zip"})
    with urllib.request.urlopen(request) as response:
        assert json.loads(gzip.decompress(response.read())) == {"status": "ok"}
    # Events leave at once, so they are not compressed.
    body = {"prompt": "he", "max_tokens": 2, "stream": True}
    stream = server.post("/v1/completions", body, {"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in stream.headers
    assert stream.text.endswith("data: [DONE]\n\n")
