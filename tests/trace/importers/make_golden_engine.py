"""Makes ``golden/engine-*`` with the functions of vLLM (Apache-2.0) and SGLang (Apache-2.0) that print an engine's statistics.

    pip download --no-deps --dest DIR sglang==0.5.5
    python tests/trace/importers/make_golden_engine.py DIR/sglang-0.5.5-py3-none-any.whl

vLLM's functions are taken out of the installed package, as they stand there, and SGLang's out of the wheel: both need a GPU's
packages to be imported. What they need of their engines has a stand-in. The prefixes are those of the programs' loggers.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import zipfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from importer_samples import GOLDEN

VLLM = ((512, 900, 0.62, 18032, 2410), (512, 640, 0.959, 2100, 4210), (88, 0, 0.526, 0, 1560), (8, 0, 0.134, 0, 239))
"""Running, waiting, use of the cache, and tokens of prompts and responses in each second, of every line."""
SGLANG = ((20, 3, 2600, 880.0), (12, 0, 1900, 610.0), (2, 0, 400, 130.0))
"""Running, waiting, KV tokens, tokens per second, of every line of decoding."""


def method_of(source: str, name: str, method: str, **scope: Any) -> Any:
    """A method out of the text of the module in which its class stands."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == name]
    found = next(node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == method)
    found.returns = None
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    exec(compile(ast.Module([found], []), name, "exec"), scope)
    return scope[method]


def vllm_lines() -> list[str]:
    """A rollout in four lines, with drafts in the last one; the third names preemptions."""
    folder = Path(importlib.util.find_spec("vllm").origin).parent / "v1"  # type: ignore[union-attr, arg-type]
    lines: list[str] = []

    def log(text: str, *values: Any) -> None:
        lines.append(f"(APIServer pid=71) INFO 07-28 06:4{len(lines)}:10 [loggers.py:271] {text % values}")

    printed = method_of(
        (folder / "metrics" / "loggers.py").read_text(), "LoggingStatLogger", "log",
        logger=SimpleNamespace(info=log, debug=log), KV_FETCH_STAGES=(),
        envs=SimpleNamespace(VLLM_COMPUTE_NANS_IN_LOGITS=False),
    )  # fmt: skip
    drafted = method_of(
        (folder / "spec_decode" / "metrics.py").read_text(), "SpecDecodingLogging", "log", np=np,
        logger=SimpleNamespace(info=log), time=SimpleNamespace(monotonic=lambda: 10.0),
    )  # fmt: skip
    quiet = SimpleNamespace(log=lambda **_: None, empty=True)
    for at, (running, waiting, cache, prompts, generated) in enumerate(VLLM):
        stats = SimpleNamespace(
            num_running_reqs=running, num_waiting_reqs=waiting, num_skipped_waiting_reqs=0, kv_cache_usage=cache,
            num_kv_fetch_reqs_by_stage={},
        )  # fmt: skip
        engine = SimpleNamespace(
            engine_is_idle=False, last_scheduler_stats=stats, last_prompt_throughput=prompts,
            last_generation_throughput=generated, _update_stats=lambda: None, aggregate_scheduler_stats=lambda: None,
            _enable_perf_stats=lambda: False,
            num_preemptions=7 if at == 2 else 0, kv_cache_device="GPU", log_prefix="Engine 000: ", cudagraph_logging=None,
            prefix_caching_metrics=SimpleNamespace(empty=False, hit_rate=0.25), connector_prefix_caching_metrics=quiet,
            mm_caching_metrics=quiet, spec_decoding_logging=quiet, kv_connector_logging=quiet, ec_connector_logging=quiet,
        )  # fmt: skip
        printed(engine)
    drafts = SimpleNamespace(
        is_diffusion=False, num_drafts=[100], num_draft_tokens=[300], num_accepted_tokens=[140], last_log_time=0.0,
        accepted_tokens_per_pos_lists=[[80, 40, 20]], reset=lambda: None,
    )  # fmt: skip
    drafted(drafts, log)
    return lines


def sglang_lines(source: str) -> list[str]:
    """A prefill and three lines of decoding, the last one with drafts."""
    lines: list[str] = []
    mode = SimpleNamespace(PREFILL="prefill", DECODE="decode")
    clock = iter(range(0, 1000, 2))
    scope = {
        "logger": SimpleNamespace(info=lambda text: lines.append(f"[2026-07-28 06:40:{len(lines):02} TP0] {text}")),
        "time": SimpleNamespace(perf_counter=lambda: float(next(clock))), "DisaggregationMode": mode,
        "LOG_FORWARD_ITERS": False, "RECORD_STEP_TIME": False, "defaultdict": defaultdict,
    }  # fmt: skip
    decoded, prefilled = (
        method_of(source, "SchedulerMetricsMixin", name, **scope) for name in ("log_decode_stats", "log_prefill_stats")
    )

    def scheduler(tokens: int, rate: float, queue: int, drafts: bool) -> Any:
        begun = SimpleNamespace(
            last_decode_stats_tic=0.0, last_prefill_stats_tic=0.0, last_prefill_tokens=0, num_generated_tokens=0,
            is_hybrid=False, is_hybrid_gdn=False, is_hybrid_swa=False, is_hybrid_ssm=False, waiting_queue=[None] * queue,
            _get_token_info=lambda: (tokens, tokens / 20000, None, None), stats=SimpleNamespace(), forward_ct=0,
            spec_algorithm=SimpleNamespace(is_none=lambda: not drafts), spec_num_accepted_tokens=230, spec_num_forward_ct=100,
            spec_total_num_accepted_tokens=0, spec_total_num_forward_ct=0,
            server_args=SimpleNamespace(speculative_num_steps=3, speculative_num_draft_tokens=4, decode_log_interval=40),
            disaggregation_mode=None, device="cuda", enable_metrics=False, _publish_kv_events=lambda: None,
        )  # fmt: skip
        begun.last_decode_stats_tic = next(clock) - 1.0
        begun.num_generated_tokens = round(rate * 3)
        return begun

    adder = SimpleNamespace(log_input_tokens=2048, log_hit_tokens=512, new_token_ratio=0.5)
    prefilled(scheduler(1000, 0, 5, drafts=False), adder, [None] * 20, 0, 0)
    for at, (running, queue, tokens, rate) in enumerate(SGLANG):
        batch = SimpleNamespace(reqs=[None] * running)
        decoded(scheduler(tokens, rate, queue, drafts=at == len(SGLANG) - 1), True, batch)
    return lines


def main(wheel: str) -> None:
    """Write both logs anew."""
    source = zipfile.ZipFile(wheel).read("sglang/srt/managers/scheduler_metrics_mixin.py").decode()
    for name, lines in (("engine-vllm", vllm_lines()), ("engine-sglang", sglang_lines(source))):
        (GOLDEN / name).mkdir(exist_ok=True)
        (GOLDEN / name / "engine.log").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
