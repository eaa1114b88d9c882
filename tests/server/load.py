#!/usr/bin/env python3
"""Load on a running server: many clients, some that leave midway, some that send nonsense. Prints one JSON object.

python tests/server/load.py http://127.0.0.1:8080 --clients 64 --seconds 300 --pid PID
"""

import argparse
import http.client
import json
import random
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

WRONG = [b"{", b'{"prompt":7}', b"[]", b"\xff", b'{"prompt":"a","max_tokens":"x"}', b'{"prompt":' + b"[" * 500]


class Load:
    def __init__(self, url: str, leave: float, wrong: float) -> None:
        self.address = urllib.parse.urlsplit(url).netloc
        self.url = url
        self.leave = leave
        self.wrong = wrong
        self.end = False
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.tokens = 0
        self.health_times: list[float] = []
        self.resident: list[int] = []

    def count(self, what: str, tokens: int = 0) -> None:
        with self.lock:
            self.counts[what] += 1
            self.tokens += tokens

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        connection = http.client.HTTPConnection(self.address, timeout=120)
        while not self.end:
            try:
                if not self.request(connection, rng):
                    connection.close()
            except OSError as error:
                self.count(f"error {type(error).__name__}")
                connection.close()
            except http.client.HTTPException as error:
                self.count(f"error {type(error).__name__}")
                connection.close()

    def request(self, connection: http.client.HTTPConnection, rng: random.Random) -> bool:
        """False when the connection is of no more use."""
        chance = rng.random()
        stream = rng.random() < 0.5
        if chance < self.wrong:
            body = rng.choice(WRONG)
        else:
            prompt = "".join(rng.choice("abcdefgh ") for _ in range(rng.choice([3, 30, 200, 500])))
            fields = {"prompt": prompt, "max_tokens": rng.choice([1, 8, 32, 64]), "stream": stream, "ignore_eos": True}
            body = json.dumps(fields).encode()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if self.wrong <= chance < self.wrong + self.leave and not stream:
            time.sleep(rng.random() * 0.1)
            self.count("left")
            return False
        response = connection.getresponse()
        if self.wrong <= chance < self.wrong + self.leave and response.status == 200:
            response.read(1)
            self.count("left")
            return False
        text = response.read()
        tokens = text.count(b'"text":') if stream else 0
        if response.status == 200 and not stream:
            tokens = json.loads(text)["usage"]["completion_tokens"]
        self.count(str(response.status), tokens)
        if response.status == 429:
            time.sleep(0.05)
        return True

    def watch(self, pid: int | None) -> None:
        while not self.end:
            begin = time.monotonic()
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=60) as response:
                    response.read(1)
            except OSError as error:
                self.count(f"health {type(error).__name__}")
            self.health_times.append(time.monotonic() - begin)
            if pid:
                pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
                self.resident.append(pages * 4096)
            time.sleep(0.05)


def figures(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url + "/metrics") as response:
        lines = response.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--leave", type=float, default=0.3, help="share of clients that go away midway")
    parser.add_argument("--wrong", type=float, default=0.05, help="share of malformed requests")
    parser.add_argument("--pid", type=int, help="process whose resident memory is watched")
    args = parser.parse_args()
    load = Load(args.url, args.leave, args.wrong)
    before = figures(args.url)
    threads = [threading.Thread(target=load.client, args=(seed,)) for seed in range(args.clients)]
    threads.append(threading.Thread(target=load.watch, args=(args.pid,)))
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(args.seconds)
    load.end = True
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    time.sleep(1)
    after = figures(args.url)
    pages = [name for name in before if name.startswith("kvant_pages_used")]
    quarter = len(load.resident) // 4
    print(
        json.dumps(
            {
                "seconds": round(seconds, 1),
                "requests": dict(sorted(load.counts.items())),
                "requests_per_s": round(sum(load.counts.values()) / seconds, 1),
                "tokens_per_s": round(load.tokens / seconds, 1),
                "server_tokens_per_s": round(
                    (after["kvant_generated_tokens_total"] - before["kvant_generated_tokens_total"]) / seconds, 1
                ),
                "health_ms": {
                    name: round(1000 * percentile(load.health_times, share), 2)
                    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
                },
                "resident_mib": [
                    round(max(part) / 2**20, 1)
                    for part in (load.resident[:quarter], load.resident[quarter:-quarter], load.resident[-quarter:])
                    if part
                ],
                "pages_used": {name: [before[name], after[name]] for name in pages},
                "running_after": after["kvant_requests_running"] + after["kvant_requests_waiting"],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
