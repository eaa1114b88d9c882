#!/usr/bin/env python3
"""Decode speed of a running server while N clients stream at once, to compare with `kvant bench model --batch N`.

python tests/server/throughput.py http://127.0.0.1:8080 --clients 16 --tokens 128
"""

import argparse
import http.client
import json
import threading
import time
import urllib.parse


def stream(address: str, index: int, tokens: int, times: list[float]) -> None:
    """Notes when each token of one answer came."""
    connection = http.client.HTTPConnection(address, timeout=600)
    body = {
        "prompt": f"Story number {index}: once upon a time there was",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b'data: {"id"'):
            times.append(time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    times: list[list[float]] = [[] for _ in range(args.clients)]
    address = urllib.parse.urlsplit(args.url).netloc
    threads = [threading.Thread(target=stream, args=(address, i, args.tokens, times[i])) for i in range(args.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # While all of them decode: from the last first token to the first last one.
    begin = max(one[0] for one in times)
    end = min(one[-1] for one in times)
    tokens = sum(begin < moment <= end for one in times for moment in one)
    print(json.dumps({"clients": args.clients, "tokens": tokens, "tokens_per_s": round(tokens / (end - begin), 1)}))


if __name__ == "__main__":
    main()
