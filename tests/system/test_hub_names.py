"""Names of models on a hub: loaded once where a hub is reachable, one sentence where not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.system.model_folders import local_folder

COMMIT = "0123456789" * 4
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "own_code.py": b"print(1)", "onnx/model.safetensors": b"others"}
CALL = "import sys; from rlhfless.system.model_folders import local_folder; print(local_folder(*sys.argv[1:]))"


class Hub(BaseHTTPRequestHandler):
    """One model, ``owner/tiny``, as the hub's client asks for it; ``asked`` are the files that were read."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        path = self.path.split("?")[0]
        name = path.removeprefix(f"/owner/tiny/resolve/{COMMIT}/")
        body = FILES.get(name)
        if path.startswith("/api/models/owner/tiny"):
            tree = [{"type": "file", "path": name, "oid": COMMIT, "size": len(of)} for name, of in FILES.items()]
            body = json.dumps(tree if "/tree/" in path else {"id": "owner/tiny", "sha": COMMIT}).encode()
        elif self.command == "GET" and body is not None:
            self.asked.append(name)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", f'"{name.replace("/", "-")}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        return body or b""


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a hub that runs in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Hub.asked.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def called(name: str, cache: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """``local_folder`` in a process of its own, as the hub's client reads its settings when it is imported."""
    env = {**os.environ, "HF_HOME": str(cache), "NO_PROXY": "127.0.0.1", **settings}
    return subprocess.run([sys.executable, "-c", CALL, name], capture_output=True, text=True, env=env, timeout=300)


@pytest.mark.full
def test_a_model_of_a_hub_is_loaded_once_without_its_code(hub: str, tmp_path: Path) -> None:
    found = called("owner/tiny", tmp_path, HF_ENDPOINT=hub)
    folder = Path(found.stdout.strip())
    assert found.returncode == 0, found.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert sorted(Hub.asked) == ["config.json", "model.safetensors"]
    again = called("owner/tiny", tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
    assert again.stdout == found.stdout
    assert len(Hub.asked) == 2, "it is here"
    absent = called("owner/other", tmp_path, HF_ENDPOINT=hub)
    assert absent.returncode == 1
    assert "InputError: owner/other: is neither a folder here nor a model that the hub gave" in absent.stderr


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's client may not look anywhere."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("no_hub")
def test_without_a_hub_a_name_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(InputError, "owner/tiny", "a folder", "hub"):
        local_folder("owner/tiny")


@pytest.mark.usefixtures("no_hub")
def test_a_path_is_never_looked_for_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "tiny").mkdir(parents=True)
    assert local_folder("owner/tiny") == Path("owner/tiny")
    for path in ("no/such/folder", "/no/folder", "../folder", "folder", "./owner/other", "owner/m.gguf", tmp_path / "none"):
        with refused(InputError, f"{path}: ", "no such folder"):
            local_folder(path)
