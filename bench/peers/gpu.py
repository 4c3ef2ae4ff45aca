"""What a benchmark says of the GPU that it ran on."""

import functools
import os
import shutil
import subprocess

import torch


@functools.cache
def described():
    """Name, highest clocks of processors and memory, torch and commit."""
    clocks = output("nvidia-smi", "--query-gpu=clocks.max.sm,clocks.max.mem", "--format=csv,noheader")
    commit = output("git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "--short", "HEAD")
    return ", ".join([
        torch.cuda.get_device_name(),
        clocks_text(clocks.splitlines()[0]) if clocks else "unknown clocks",
        f"torch {torch.__version__}",
        f"commit {commit or 'unknown'}",
    ])


def clocks_text(line):
    processors, memory = line.split(", ")
    return f"at most {processors}, memory {memory}"


def output(*command):
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
