"""Devices of a process that decodes with torch: those that there are, the one that it computes on, its unused memory."""

from __future__ import annotations

import torch


def cuda_devices() -> list[str]:
    """Return the CUDA devices of this machine, in order; an empty list without CUDA."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def compute_on(device: str) -> None:
    """Let this process compute on one device from now on: on the CPU with one thread, as there is one process per actor."""
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)


def free_memory(device: str) -> None:
    """Return unused memory to the device, the first one of several separated by commas."""
    if torch.device(device.split(",")[0]).type == "cuda":
        torch.cuda.empty_cache()
