"""Real vLLM servers of the shipped model, for tests that ask them over HTTP. A start takes about a minute on a CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODEL = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
START_S = 600.0
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip


class VllmServer:
    """``vllm serve`` in a session of its own; its ids come and go without a tokenizer."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self._log = f"http://127.0.0.1:{self.port}", folder / f"vllm-{self.port}.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--host", "127.0.0.1",
                 "--port", str(self.port), "--served-model-name", "arithmetic", "--skip-tokenizer-init", "--dtype", "float32",
                 "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16", "--block-size", "32",
                 "--logprobs-mode", "processed_logprobs"],
                stdout=log, stderr=log, env={**os.environ, **SETTINGS}, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers."""
        until_s = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5):
                    return
            except OSError:
                assert self.process.poll() is None, self._log.read_text()[-2000:]
                assert time.monotonic() < until_s, self._log.read_text()[-2000:]
                time.sleep(0.2)

    def kill(self) -> None:
        """Kill it and its engine."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def vllm_servers(count: int, folder: Path) -> Iterator[list[VllmServer]]:
    """Servers that answer."""
    servers = [VllmServer(folder) for _ in range(count)]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
