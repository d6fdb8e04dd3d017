"""The RLHF loop: predict, plan, execute, reward, learn, trace; one step at a time, resumable after each.

Knows all stations and their order; the stations know nothing of each other. Generation runs on emulated actors (virtual
clock) or on actors in processes of their own, here or on a Ray cluster (wall clock); preparation and learning are measured on
this device and charged to the learner, which takes its GPUs when generation ends.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.training import missing_torch

try:
    from tqdm.auto import tqdm
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.protocol import Request
from rlhfless.engine.sampling import Sampling
from rlhfless.engine.torch_forward import one_thread
from rlhfless.executor import RayPool, StepRecord, run_step
from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.predict import EwmaPredictor
from rlhfless.scheduling import PlanningInput, make_policy
from rlhfless.trace import Trace
from rlhfless.training.batch import Batch
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.engines import TorchEngines, check_engine, make_engines, make_pool
from rlhfless.training.model import save_model
from rlhfless.training.rewards import Response
from rlhfless.training.rewards.named import make_rewards
from rlhfless.training.run import Run
from rlhfless.training.tasks import Problem, make_task
from solver.cluster import Cluster
from solver.objective import Objective
from solver.plan import Plan
from solver.survival import from_scenarios
from solver.workload import Workload


@dataclass(frozen=True, eq=False)
class TrainedStep:
    """What one step gave: its plan and record, the texts, their rewards, and the learner's numbers."""

    step: int
    plan: Plan
    record: StepRecord
    rollouts: pd.DataFrame
    learning: dict[str, float] = field(default_factory=dict)

    def appended_to(self, trace: Trace) -> Trace:
        """The trace with this step after its last one, in memory."""
        record, plan = self.record, {"step": self.step, **self.plan.to_dict()}
        rows = {"allocations": record.allocations, "spans": record.spans, "events": record.events}
        tables = {name: pd.concat([getattr(trace, name), pd.DataFrame(new)]) for name, new in rows.items() if new}
        rollouts = pd.concat([trace.rollouts, self.rollouts], ignore_index=True)
        return replace(trace, rollouts=rollouts, **tables, plans=[*trace.plans, plan])

    @property
    def mean_reward(self) -> float:
        """Mean reward of the step's responses."""
        return float(self.rollouts["reward"].mean())


class Trainer:
    """Runs steps of one training run; use it in a ``with`` statement, or ``close`` it, where actors are processes.

    Args:
        config: what to run.
        folder: where trace and checkpoints go; None keeps no trace (notebooks).
        model: a folder written by ``save_model``; None warms up a new model.
        resume: continue the run in ``folder``.

    Raises:
        TrainError: the options do not fit, or the folder holds nothing to resume.
        MissingExtra, InputError: the engine is not installed, or a version that is not supported.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: str | Path | None = None,
        *,
        model: str | Path | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> None:
        check_engine(config.engine)
        self.config, self.progress = config, progress
        self.latency = load_profile(config.profile)
        per_node = config.gpus_of_node
        price = usd_per_gpu_hour(self.latency.kind)
        self.cluster = Cluster(config.gpus // per_node, per_node, self.latency.gpus_per_actor, self.latency.kind, price)
        self.policy = make_policy(config.policy, tau=config.tau)
        if self.policy.clairvoyant:
            raise TrainError(f"policy {config.policy!r} needs the true lengths, which nobody has before generating")
        self.predictor = EwmaPredictor(config.window)
        self.pool = make_pool(config, self.cluster)
        try:
            self._open(folder, model, resume)
        except BaseException:
            if self.pool is not None:
                self.pool.close()
            raise

    def _open(self, folder: str | Path | None, model: str | Path | None, resume: bool) -> None:
        """What is kept of the run, and what follows from its model."""
        config, progress = self.config, self.progress
        executed = {} if self.pool is None else self.pool.meta
        self.kept = Run.open(config, self.cluster, None if folder is None else Path(folder), model, resume, progress, executed)
        self.task = make_task(config.task, self.tokenizer, seed=config.seed, pool=config.pool, **config.columns())
        self.rewards = make_rewards(config.rewards, self.task)
        longest_prompt = max(len(self.tokenizer.encode(p.prompt)) for p in self.task.problems)
        eos_id, most_tokens = self.tokenizer.eos_token_id, longest_prompt + config.response_limit
        self.engines = make_engines(config.engine, self.model, eos_id, most_tokens, Sampling(temperature=config.temperature))
        if config.memory_gib is not None:
            assert isinstance(self.engines, TorchEngines), "the configuration refuses others"
            self.latency = self.engines.within(self.latency, int(config.memory_gib * 2**30))

    @classmethod
    def continue_from(cls, trace: Trace, model: str | Path, *, progress: bool = True, **changes: Any) -> Trainer:
        """A trainer that goes on after the last step of a trace, in memory: nothing of the trace or the model is changed.

        Args:
            trace: of a run of this loop; its lengths are the history that predictions come from.
            model: the weights after its last step, a folder written by ``save_model``.
            changes: options that differ from the run's own.

        Raises:
            TrainError: the trace does not say how it was made.
        """
        if "config" not in trace.meta:
            raise TrainError("the trace was not recorded by `rlhfless train`; only such a run can be continued")
        trainer = cls(TrainConfig(**{**trace.meta["config"], **changes}), model=model, progress=progress)
        trainer.kept.go_on_after(trace)
        return trainer

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes of actors and learner, if there are any, and remove what actors read weights from. Idempotent."""
        if self.pool is not None:
            self.pool.close()
        self.kept.close()
        self.engines.close()

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.kept.model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.kept.tokenizer

    @property
    def next_step(self) -> int:
        """The step that comes next."""
        return self.kept.position.next_step

    # --- one step -----------------------------------------------------------------------------------------------------

    def problems_of(self, step: int) -> list[Problem]:
        """The prompts of a step: the pool in a new random order every epoch, dealt out in steps."""
        epoch, part = divmod(step, self.config.steps_per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(self.config.pool)
        size = self.config.prompts_per_step
        return [self.task.problems[i] for i in order[part * size : (part + 1) * size]]

    def predict(self, problems: Sequence[Problem]) -> Workload:
        """The workload of a step with predicted lengths (last epoch's, or the reference answer's in the first epoch) and
        scenarios around them."""
        c = self.config
        names, answers = [p.prompt_id for p in problems], {p.prompt_id: p.reference_answer_tokens for p in problems}
        predictor, limit = self.predictor.fit(self.kept.position.history), c.response_limit
        predicted = predictor.predict(names, c.samples, answers, response_limit=limit)
        seed = c.seed + self.next_step
        scenarios = predictor.sample(names, c.samples, answers, response_limit=limit, scenarios=c.scenarios, seed=seed)
        prompt_tokens = [len(self.tokenizer.encode(p.prompt)) for p in problems]
        owner = np.repeat(np.arange(len(problems)), c.samples)
        return Workload(prompt_tokens, owner, predicted, response_limit=limit, scenarios=scenarios)

    def plan(self, workload: Workload) -> Plan:
        """The plan of the run's policy for a workload. It weighs generation alone: the learner takes over GPUs when generation
        ends, so preparation and learning add the same to every plan."""
        c = self.config
        objective, seed = Objective(c.time_weight), c.seed + self.next_step
        given = PlanningInput(workload, self.cluster, self.latency, objective, time_limit_s=c.time_limit_s, seed=seed)
        return self.policy.plan(given)

    def requests(self, problems: Sequence[Problem], step: int) -> list[Request]:
        """One request per response; its random stream depends on (seed, step, prompt, sample) only."""
        requests = []
        for p, problem in enumerate(problems):
            ids = np.array(self.tokenizer.encode(problem.prompt), dtype=np.int64)
            prompt_seed = zlib.crc32(problem.prompt_id.encode())
            for sample in range(self.config.samples):
                entropy = [self.config.seed, step, prompt_seed, sample]
                seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
                index = p * self.config.samples + sample
                requests.append(Request(index, len(ids), self.config.response_limit, prompt_ids=ids, seed=seed, prompt=p))
        return requests

    def generate(self, plan: Plan, problems: Sequence[Problem], step: int, workload: Workload | None = None) -> StepRecord:
        """Run the plan on real engines, with the weights as they are now.

        Args:
            workload: what was predicted, for planning anew should an actor be lost.

        Raises:
            ActorError: actors died or failed and the step could not be finished; the run goes on at this step when resumed.
        """
        engines = self.engines.of_step(self.model, step)
        requests, c = self.requests(problems, step), self.config
        given: dict[str, Any] = {"run": c.task, "step": step, "start_s": self.kept.position.clock_s}
        if self.pool is None:
            return run_step(plan, requests, engines, self.latency, self.cluster, charging=c.charging, **given)
        forecast = None if workload is None else from_scenarios(workload)
        return self.pool.run_step(plan, requests, engines, self.latency, self.cluster, forecast=forecast, **given)

    def step(self) -> TrainedStep:
        """One whole step: predict, plan, execute, reward, learn, trace. Interrupted, it has not happened, or it counts in full:
        ``next_step`` says which, weights and trace agree with it, and the next call goes on from there."""
        self.kept.settle()
        step = self.next_step
        problems = self.problems_of(step)
        workload = self.predict(problems)
        plan = self.plan(workload)
        record = self.generate(plan, problems, step, workload)
        if self.pool is not None and step + 1 >= self.config.steps:
            self.pool.release()  # nobody waits for a step that nobody plans
        began = time.perf_counter()
        rollouts = self._rollouts(problems, workload, record, step)
        prepare_s = time.perf_counter() - began
        with self.kept.learning():
            learning = self._learn(problems, rollouts, record)
            self._record_learning(record, prepare_s, learning)
            if self.pool is not None:
                self.pool.settle(record)
            self.kept.commit(rollouts, record)
        return TrainedStep(step, plan, record, rollouts, learning)

    def run(self, on_step: Callable[[TrainedStep], None] | None = None) -> Trace | None:
        """All steps that are left; interrupting it keeps every completed step. Returns the trace if one is kept."""
        bar = tqdm(range(self.next_step, self.config.steps), desc="train", unit="step", disable=not self.progress)
        for _ in bar:
            done = self.step()
            tokens = done.rollouts["response_tokens"].mean()
            bar.set_postfix(reward=f"{done.mean_reward:.2f}", tokens=f"{tokens:.0f}", actors=len(done.plan.actors))
            if on_step is not None:
                on_step(done)
        return self.kept.trace

    # --- parts of a step ----------------------------------------------------------------------------------------------

    def _rollouts(self, problems: Sequence[Problem], workload: Workload, record: StepRecord, step: int) -> pd.DataFrame:
        """Decode and reward the responses."""
        rows, responses = [], []
        for i in range(len(workload)):
            problem = problems[i // self.config.samples]
            ids = record.completions[i].token_ids
            assert ids is not None
            text, done = self.tokenizer.decode(ids.tolist()), record.completions[i]
            responses.append(Response(problem, text, done.response_tokens, done.finish_reason == "length"))
            rows.append(
                {
                    "run": record.run,
                    "step": step,
                    "epoch": step // self.config.steps_per_epoch,
                    "prompt_id": problem.prompt_id,
                    "sample": i % self.config.samples,
                    "prompt_tokens": int(workload.prompt_tokens[workload.prompt_of[i]]),
                    "weights_version": step,
                    "predicted_tokens": float(workload.response_tokens[i]),
                    "prompt": problem.prompt,
                    "response": text,
                    **record.rollout_times(i),
                }
            )
        return pd.DataFrame(rows).assign(reward=self.rewards.score(responses).values)

    def _learn(self, problems: Sequence[Problem], rollouts: pd.DataFrame, record: StepRecord) -> dict[str, float]:
        """What the algorithm learns from the step's responses."""
        c = self.config
        prompts = [self.tokenizer.encode(p.prompt) for p in problems for _ in range(c.samples)]
        completions = [record.completions[i] for i in range(len(rollouts))]
        batch = Batch(
            prompts,
            [done.token_ids.tolist() for done in completions if done.token_ids is not None],
            rollouts["reward"].to_numpy(),
            np.repeat(np.arange(len(problems)), c.samples),
            [done.logprobs for done in completions if done.logprobs is not None] if c.temperature == 1.0 else None,
            (rollouts["finish_reason"] == "length").to_numpy(),
        )
        with one_thread(self.model.device):
            return self.kept.learner.learn(batch)

    def _record_learning(self, record: StepRecord, prepare_s: float, learning: dict[str, float]) -> None:
        """The learner takes one actor's GPUs when generation ends; what it does there was measured on this device."""
        start, prepared, learn_s = record.end_s, record.end_s + prepare_s, learning["seconds"]
        node, gpu_ids = self.cluster.place(0)
        if isinstance(self.pool, RayPool):  # whose actors may wait on theirs meanwhile: the learner's are beside them
            node, gpu_ids = self.cluster.nodes, tuple(self.cluster.gpus + gpu for gpu in gpu_ids)
        record.allocate(
            "learner", "learner", node, gpu_ids, self.cluster.kind, self.cluster.market, self.cluster.usd_per_gpu_s,
            start, prepared + learn_s,
        )  # fmt: skip
        record.span("learner", "prepare", start, prepared, clock="measured")
        record.span("learner", "learn", prepared, prepared + learn_s, clock="measured", learning=learning)
        record.close(prepared + learn_s)


def train(config: TrainConfig, folder: str | Path, *, resume: bool = False, model: str | Path | None = None) -> Trace:
    """Run (or resume) a training run; ``folder`` keeps its trace, its last checkpoint, and the final weights in ``model/``."""
    with Trainer(config, folder, resume=resume, model=model) as trainer:
        trace = trainer.run()
    assert trace is not None
    save_model(trainer.model, trainer.tokenizer, Path(folder) / "model")
    return trace
