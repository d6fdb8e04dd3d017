"""Connection to a Ray cluster: an existing one, or a local one that ends with its connection.

A local cluster listens on the loopback only, has no dashboard and reports no usage. However the program ends, the cluster's
processes and folder are removed soon after: a process outside Ray waits for that (``cleanup.py``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, missing_extra, reason
from rlhfless.executor.distributed.ray import cleanup as ray_cleanup
from rlhfless.executor.distributed.ray.object_store import SMALLEST_BYTES, check_shared_memory
from rlhfless.system.cleanup import clean_up

START_TRIES = 3
START_WITHIN_S = 120.0  # of each of Ray's processes; Ray itself gives them 30 s, which a busy machine may not keep
SWEPT_WITHIN_S = 60.0  # that removing what a cluster has left may take: its own patience is a third of that
SILENT_S = 10.0  # so long a start takes without a word
POLL_S = 0.1
PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": START_WITHIN_S,
    "RAY_agent_register_timeout_ms": START_WITHIN_S * 1000,
    # Health checks, one every 3 s, that a node may leave unanswered. After 5, Ray's own number, it takes a node of this busy
    # machine for dead. A program notices the end of its own node without them: the connection closes.
    "RAY_health_check_failure_threshold": 100,
}
AGENT_PORT = "dashboard_agent_listen_port"  # Ray does not tell its node
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", AGENT_PORT, "runtime_env_agent_port")
AUTH_MODE = "RAY_AUTH_MODE"
ANSWERS_WITHIN_S = 5.0  # of a head node; Ray itself goes on trying for a quarter of an hour


def import_ray() -> Any:
    """Import Ray, or raise MissingExtra with the install command."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise missing_extra("a Ray pool", error.name, "ray") from None
    return ray


class RayCluster:
    """A connection to a Ray cluster until ``close``.

    Args:
        address: of an existing cluster, as for ``ray.init``; None uses the one that this program has joined already, or starts
            a local one.
        gpus: logical GPUs of a cluster that is started here; None uses the CUDA devices.
        runtime_env: of Ray's workers on an existing cluster; None sends them this program's packages ``rlhfless`` and
            ``solver``, ``{}`` nothing, for nodes that have them.
        object_store_bytes: of a cluster that is started here; a cluster that runs keeps its own.

    Raises:
        MissingExtra: Ray is not installed.
        InputError: there is no cluster at the address, it has other versions of Ray or Python, or none can be started here,
            also because shared memory is too small for its object store. Or ``gpus`` was given for an existing one.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        gpus: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        object_store_bytes: int = SMALLEST_BYTES,
    ) -> None:
        self.ray = import_ray()
        self._folder: Path | None = None
        self._auth_mode: str | None = None  # before a cluster was started here
        self._sweeper: subprocess.Popen[bytes] | None = None
        self._joined = not self.ray.is_initialized()
        if gpus is not None and (address is not None or not self._joined):
            raise InputError(f"gpus is {gpus}, but the GPUs of a running Ray cluster cannot be chosen; leave gpus out")
        if not self._joined:
            return
        if address is not None:
            self._join(address, _runtime_env() if runtime_env is None else dict(runtime_env))
        else:
            check_shared_memory(object_store_bytes)
            self._start(gpus, object_store_bytes)

    @property
    def started_here(self) -> bool:
        """Return whether the cluster was started here."""
        return self._folder is not None

    def close(self) -> None:
        """Leave the cluster; a cluster that was started here ends. Idempotent."""
        if self._joined:
            self.ray.shutdown()
            self._joined = False
            if self.started_here:
                self._forget_tokens()
        if self._sweeper is not None:
            assert self._sweeper.stdin is not None
            self._sweeper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on, and ends by itself
                self._sweeper.wait(SWEPT_WITHIN_S)
        self._folder, self._sweeper = None, None

    def _join(self, address: str, runtime_env: dict[str, Any]) -> None:
        try:
            _reach(address)
            self.ray.init(address=address, runtime_env=runtime_env or None, log_to_driver=False, logging_level="ERROR")
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            versions = re.findall(r"^ +(?:Ray|Python): (\S+)$", str(error), re.MULTILINE)
            if len(versions) == 4:  # as Ray lists those that differ, in lines of a plain ``RuntimeError``
                there, here = (f"Ray {ray} with Python {python}" for ray, python in (versions[:2], versions[2:]))
                raise InputError(
                    f"the Ray cluster at {address!r} runs {there}, this program {here}; both must be the same"
                ) from None
            raise InputError(
                f"no Ray cluster at {address!r} ({reason(error)}); name the address that `ray start` printed"
            ) from None

    def _start(self, gpus: int | None, store_bytes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rlhfless-", dir="/tmp"))  # Ray's sockets need a short path
        self._auth_mode = os.environ.get(AUTH_MODE)
        me = str(os.getpid()), str(os.getsid(0))
        script = [sys.executable, "-I", ray_cleanup.__file__, str(self._folder), *me]
        self._sweeper = subprocess.Popen(script, stdin=subprocess.PIPE, start_new_session=True)
        try:
            patience = {name: os.environ.get(name, f"{within:.0f}") for name, within in PATIENCE.items()}
            with (
                _environment({"PYTHONPATH": _python_path(), **patience}),
                _loopback(),
                _ports(),
                _patient(),
                _slow_start_notice(),
            ):
                self._start_ray(gpus, store_bytes)
        except BaseException as error:
            clean_up(self.close, after=error)
            raise

    def _forget_tokens(self) -> None:
        """Reset Ray's token authentication in this process, which starting a local cluster turns on.

        A cluster that is joined later may send no tokens: then every message of its head node is refused, and all actors die
        without a reason.
        """
        if os.environ.get(AUTH_MODE) == self._auth_mode:
            return
        raylet: Any = importlib.import_module("ray._raylet")
        if self._auth_mode is None:
            os.environ.pop(AUTH_MODE, None)
        else:
            os.environ[AUTH_MODE] = self._auth_mode
        raylet.Config.initialize("")  # Ray's own way of having it look at the environment again
        raylet.AuthenticationTokenLoader.instance().reset_cache()

    def _start_ray(self, gpus: int | None, store_bytes: int, tries: int = START_TRIES) -> None:
        """Start Ray, which reports a failed start with a plain ``Exception``. The remains of a try are ended before the next
        one. A try that has used up the time limit is the last.
        """
        began_s = time.monotonic()
        try:
            self.ray.init(
                address="local", num_gpus=gpus, include_dashboard=False, object_store_memory=store_bytes,
                log_to_driver=False, logging_level="ERROR", _temp_dir=str(self._folder),
            )  # fmt: skip
        except Exception as error:
            self._end_remains()
            if tries == 1 or time.monotonic() - began_s >= START_WITHIN_S:
                advice = "start one with `ray start --head` and give its address"
                raise InputError(f"Ray could not be started here ({reason(error)}); {advice}") from error
            self._start_ray(gpus, store_bytes, tries - 1)

    def _end_remains(self) -> None:
        """End the processes of a failed start, which Ray forgets, by their open files in the folder; it is empty then."""
        assert self._folder is not None
        self.ray.shutdown()
        ray_cleanup.sweep(str(self._folder), os.getpid(), os.getsid(0))
        self._folder.mkdir(mode=0o700, exist_ok=True)


def _reach(address: str) -> None:
    """Check that a server listens at an address that names host and port; Ray itself interprets other addresses.

    Raises:
        OSError, OverflowError, ValueError: no server listens, or there is no such port or host.
    """
    if named := re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)", address):
        socket.create_connection((named[1], int(named[2])), ANSWERS_WITHIN_S).close()


def _packages() -> list[Path]:
    import rlhfless
    import solver

    return [Path(package.__path__[0]) for package in (rlhfless, solver)]


def _runtime_env() -> dict[str, Any]:
    return {"py_modules": [str(package) for package in _packages()], "excludes": ["**/__pycache__"]}


def _python_path() -> str:
    paths = [str(package.parent) for package in _packages()]
    return os.pathsep.join(dict.fromkeys([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]))


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Context in which Ray nodes get the address 127.0.0.1, as on systems where Ray makes no multi-machine clusters."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _ports() -> Iterator[None]:
    """Context that gives Ray's agents free ports. Where agents choose ports themselves, a node waits 15 s for each and then
    dies.
    """
    from ray._private import ray_constants, services
    from ray._private.parameter import RayParams

    make, start, ports = RayParams.__init__, services.start_ray_process, dict[str, int]()

    def make_with_ports(params: Any, *args: Any, **named: Any) -> None:
        make(params, *args, **named)
        with contextlib.ExitStack() as open_at_once:  # so that they differ
            for name in AGENT_PORTS:
                free = open_at_once.enter_context(socket.create_server(("127.0.0.1", 0)))
                ports[name] = free.getsockname()[1]
                setattr(params, name, ports[name])

    def start_with_port(command: list[str], process_type: str, *args: Any, **named: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            command = [*command, f"--{AGENT_PORT}={ports[AGENT_PORT]}"]
        return start(command, process_type, *args, **named)

    RayParams.__init__, services.start_ray_process = make_with_ports, start_with_port
    try:
        yield
    finally:
        RayParams.__init__, services.start_ray_process = make, start


@contextlib.contextmanager
def _patient(within_s: float = START_WITHIN_S) -> Iterator[None]:
    """Context in which a node may register late: Ray waits ``within_s`` for it instead of 30 s."""
    from ray._private import services

    get_node = services.get_node

    def patient_get_node(*which: Any, **more: Any) -> Any:
        ends_s = time.monotonic() + within_s
        while True:
            try:
                return get_node(*which, **more)
            except RuntimeError:  # it is not there yet
                if time.monotonic() >= ends_s:
                    raise
            time.sleep(POLL_S)

    services.get_node = patient_get_node
    try:
        yield
    finally:
        services.get_node = get_node


@contextlib.contextmanager
def _slow_start_notice() -> Iterator[None]:
    """Context that reports a slow start once."""
    line = f"Ray is still starting after {SILENT_S:g} s; on a busy machine it may take up to {START_WITHIN_S:g} s"
    timer = threading.Timer(SILENT_S, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Context in which started processes have these environment variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
