#!/usr/bin/env python3
"""Hostile traffic on a running server, best one built with sanitizers: mutated bodies, streams left midway, pipelined
requests, heads and bodies that come byte by byte. Prints one JSON object; exit code 1 if the server suffered.

python tests/server/storm.py http://127.0.0.1:8080 --clients 8 --seconds 120 --seed 1
"""

import argparse
import json
import random
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable

PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
CHAT = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, None, "é"]}}}}
FIELDS = [
    {"prompt": "hello", "max_tokens": 8, "logprobs": 2, "echo": True, "stop": ["he", "\u00e9"]},
    {"prompt": [[1, 2], [3]], "n": 2, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 20},
    {"messages": CHAT, "stream": True, "max_tokens": 40, "logit_bias": {"5": -100}, "ignore_eos": True},
    {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "top_logprobs": 3, "logprobs": True},
    {"prompt": "a b", "with_pieces": True},
    {"tokens": [65, 66, 200]},
]
NASTY = [
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b"1e999",
    b"-0",
    b"9" * 400,
    b"[" * 300,
    b'{"a":' * 300,
    b"null",
    b'"',
    b"NaN",
    b"\r\n\r\n",
    b"0\r\n",
]
MOST_RESPONSE = 1 << 20


def mutated(body: bytes, rng: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at:at] = rng.choice(NASTY)
            case 1:
                del data[at : at + rng.randrange(1, 20)]
            case 2:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 3:
                data[at:at] = data[: rng.randrange(len(data) + 1)]
            case 4:
                data[at : at + rng.randrange(8)] = rng.choice(NASTY)
    return bytes(data[:100_000])


def request_of(path: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Storm:
    def __init__(self, url: str) -> None:
        host, _, port = urllib.parse.urlsplit(url).netloc.partition(":")
        self.url, self.address = url, (host, int(port))
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.end = 0.0

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def body(self, rng: random.Random) -> bytes:
        return mutated(json.dumps(rng.choice(FIELDS), ensure_ascii=rng.random() < 0.5).encode(), rng)

    def note_statuses(self, data: bytes) -> None:
        for part in data.split(b"HTTP/1.1 ")[1:]:
            self.count(f"status {part[:3].decode('ascii', 'replace')}")

    def whole(self, connection: socket.socket, rng: random.Random) -> None:
        connection.sendall(request_of(rng.choice(PATHS), self.body(rng), "Connection: close\r\n"))
        data = b""
        while len(data) < MOST_RESPONSE and (part := connection.recv(65536)):
            data += part
        self.note_statuses(data)

    def left_midway(self, connection: socket.socket, rng: random.Random) -> None:
        fields = rng.choice([f for f in FIELDS if "stream" in f]) | {"max_tokens": 200, "ignore_eos": True}
        path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        connection.sendall(request_of(path, json.dumps(fields).encode()))
        for _ in range(rng.randrange(6)):
            connection.recv(rng.choice([1, 50, 5000]))
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # Resets.

    def pipelined(self, connection: socket.socket, rng: random.Random) -> None:
        parts = [request_of(rng.choice(PATHS), self.body(rng)) for _ in range(rng.randrange(2, 6))]
        parts.insert(rng.randrange(len(parts)), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.sendall(b"".join(parts))
        connection.settimeout(2)
        data = b""
        try:
            while len(data) < MOST_RESPONSE and (part := connection.recv(65536)):
                data += part
        except TimeoutError:
            pass
        self.note_statuses(data)

    def slow(self, connection: socket.socket, rng: random.Random) -> None:
        data = request_of(rng.choice(PATHS), self.body(rng))
        begin = rng.randrange(len(data))
        connection.sendall(data[:begin])
        for byte in data[begin : begin + 20]:
            time.sleep(0.02)
            connection.sendall(bytes([byte]))

    def chunked(self, connection: socket.socket, rng: random.Random) -> None:
        body = self.body(rng)
        head = (
            f"POST {rng.choice(PATHS)} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        data = head.encode()
        while body:
            size = rng.randrange(1, 50)
            data += f"{size if rng.random() < 0.05 else len(body[:size]):x}\r\n".encode() + body[:size] + b"\r\n"
            body = body[size:]
        connection.sendall(mutated(data + b"0\r\n\r\n", rng) if rng.random() < 0.3 else data + b"0\r\n\r\n")
        connection.settimeout(2)
        self.note_statuses(connection.recv(65536))

    def garbage(self, connection: socket.socket, rng: random.Random) -> None:
        connection.sendall(
            mutated(request_of(rng.choice(PATHS), self.body(rng)), rng) + rng.randbytes(rng.randrange(200))
        )
        connection.settimeout(1)
        self.note_statuses(connection.recv(65536))

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        kinds: list[Callable[[socket.socket, random.Random], None]] = [
            self.whole,
            self.whole,
            self.left_midway,
            self.left_midway,
            self.pipelined,
            self.slow,
            self.chunked,
            self.garbage,
        ]
        while time.monotonic() < self.end:
            kind = rng.choice(kinds)
            self.count(kind.__name__)
            try:
                with socket.create_connection(self.address, timeout=60) as connection:
                    kind(connection, rng)
            except TimeoutError:
                self.count(f"{kind.__name__}: no answer in time")
            except OSError as error:
                self.count(f"{kind.__name__}: {type(error).__name__}")

    def figure(self, name: str) -> float:
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    storm = Storm(args.url)
    storm.end = time.monotonic() + args.seconds
    threads = [threading.Thread(target=storm.client, args=(args.seed * 1000 + i,)) for i in range(args.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(3)
    with urllib.request.urlopen(args.url + "/health", timeout=60) as response:
        health = response.status
    left = storm.figure("kvant_requests_running") + storm.figure("kvant_requests_waiting")
    failures = sum(count for what, count in storm.counts.items() if what.startswith("status 5"))
    facts = {"health": health, "running_after": left, "answers_5xx": failures}
    print(json.dumps(facts | {"counts": dict(sorted(storm.counts.items()))}, indent=1))
    return 0 if health == 200 and left == 0 and failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
