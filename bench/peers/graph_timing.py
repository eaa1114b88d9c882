"""Times what a CUDA graph replays."""

import torch


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
