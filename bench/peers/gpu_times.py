"""Milliseconds that functions take on a GPU: medians and minima of events after three warm-ups, by turns, the L2 cache cold: other
data is read between two runs. It is not written, since who runs next would write it back: 8 of the 114 microseconds of a
decode on an H200. The GPU idles for a while before each run, so that the host has queued all of it: what is measured is
the GPU's time alone."""

import statistics

import torch

IDLE_CYCLES = 600_000  # a third of a millisecond


def other_data():
    """Four times what the L2 cache holds."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return torch.zeros(l2_bytes, device="cuda")  # f32


def medians(functions, repeats, other):
    """name -> function gives name -> (median, minimum) in milliseconds; other is other_data()."""
    events = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(3):
            function()
    for _ in range(repeats):
        for name, function in functions.items():
            other.sum()
            torch.cuda._sleep(IDLE_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    times = {name: [begin.elapsed_time(end) for begin, end in pairs] for name, pairs in events.items()}
    return {name: (statistics.median(ms), min(ms)) for name, ms in times.items()}
