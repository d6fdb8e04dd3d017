"""Small steps on the torch engine with lengths that are given, so that rules and moves can be tried on real journals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from executor_samples import LIMIT, Restless, Step, random_step

from rlhfless.engine.protocol import Request
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import StepRecord
from rlhfless.executor.step.step_state import StepOptions
from rlhfless.executor.virtual.executor import VirtualStep
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import NonGenerationPhases
from solver.model.drafting import Drafting
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import RuntimeRule

PROMPT_TOKENS = 20


@cache
def factory() -> TorchEngineFactory:
    """Engines of a model so small that an iteration takes a few hundred microseconds."""
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=3, hidden=32, layers=1, intermediate=32, heads=2, kv_heads=1)
    return TorchEngineFactory(DecoderModel(model, LIMIT + PROMPT_TOKENS), tokenizer.eos_token_id)


def torch_step(seed: int, **changes: float) -> Step:
    """A step of which every response has a prompt and a token at least."""
    step = random_step(seed, **changes)
    truth = replace(step.truth, prompt_tokens=np.maximum(step.truth.prompt_tokens, 1))
    return step._replace(truth=truth.with_response_tokens(np.maximum(truth.response_tokens, 1)), predicted=step.predicted)


def torch_requests(step: Step) -> list[Request]:
    """Its requests with token ids; every third length is not given but reached as the limit."""
    rng = np.random.default_rng(1)
    given = []
    for r in step.requests():
        ids = rng.integers(2, 30, r.prompt_tokens)
        forced = r.response % 3 > 0
        limit = r.max_tokens if forced else r.target_tokens
        given.append(
            replace(r, prompt_ids=ids, seed=r.response, max_tokens=limit, target_tokens=r.target_tokens if forced else None)
        )
    return given


def executed(
    step: Step,
    policy: str,
    rule: RuntimeRule | None = None,
    start_s: float = 5.0,
    drafting: Drafting | None = None,
    two_step: bool = False,
    **options: str,
) -> VirtualStep:
    """A step that was run on torch engines and charged by the profile."""
    if isinstance(rule, Restless):
        rule.start_s = start_s
    admission = options.get("admission", "reserve")
    given_ = (
        PlanningProblem(step.predicted, step.cluster, step.latency, admission=admission),
        PlanningOptions(),
    )
    plan = make_policy(policy).plan(*given_)
    plan = replace(plan, rule=plan.rule if rule is None else rule)
    record = StepRecord("run", 0, plan, start_s)
    phases = NonGenerationPhases(prepare_s=0.3, learn_s=0.2, learner_gpus=1)
    how = StepOptions(step.latency, step.cluster, phases, admission, options.get("migration", "cheaper"))
    ran = VirtualStep(plan, torch_requests(step), replace(factory(), drafting=drafting), record, how, two_step=two_step)
    ran.run()
    return ran
