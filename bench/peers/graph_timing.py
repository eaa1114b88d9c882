"""Times what a CUDA graph replays."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def graph_of(calls: Sequence[Callable[[], Any]], launches: int) -> torch.cuda.CUDAGraph:
    """A graph of `launches` calls, in turn; the last one of them is made once before, on the same stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[-1]()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph


def graph_microseconds(graph: torch.cuda.CUDAGraph, launches: int, repeats: int) -> float:
    """Median over replays, the first left out, of the time of one of the graph's launches."""
    times = []
    for repeat in range(repeats + 1):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if repeat > 0:
            times.append(start.elapsed_time(stop) * 1e3 / launches)
    return sorted(times)[len(times) // 2]
