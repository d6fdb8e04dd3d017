"""Multi-turn responses that wait for tools between their turns, as the log's column ``turns`` says.

While a response waits, its KV cache either stays on its actor, with the slot that it takes, or it is dropped and the next turn
recomputes the context. What a tool returns adds no tokens here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from rlhfless.analysis.what_ifs.changed_generation import whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.engine.simulated.multi_turn import MultiTurnEngines, Turns
from rlhfless.errors import InputError
from rlhfless.executor import run_step
from rlhfless.scheduling import make_policy
from rlhfless.simulate import LoggedStep, SimulationConfig
from solver.bounds.schedules import ScheduleBound
from solver.model.errors import as_given, is_number, is_whole
from solver.model.workload import Workload

KEPT = ("multi-turn, KV kept", "Responses wait for their tools between turns, and keep their slots and KV caches meanwhile.")
DROPPED = (
    "multi-turn, KV dropped",
    "Responses wait for their tools between turns, and free their slots; the next turn recomputes the context.",
)
ALONE = 8  # responses whose turns and waits alone bound a step: those that take the longest


def has_turns(run: RunToChange) -> bool:
    """Return whether the log says what turns any response had."""
    return any("turns" in step.rows and step.rows["turns"].notna().any() for step in run.logged)


def turns_of(step: LoggedStep) -> dict[int, Turns]:
    """Return the turns of a step's responses, by their index; none of responses whose turns the log does not say.

    Raises:
        InputError: turns are of another form, or do not add up to their response.
    """
    if "turns" not in step.rows:
        return {}
    found = {}
    for response, (text, tokens) in enumerate(zip(step.rows["turns"], step.truth.response_tokens.tolist(), strict=True)):
        if isinstance(text, str):
            found[response] = _turns(text)
            if sum(found[response].tokens) != tokens:
                raise InputError(
                    f"step {step.step}, response {response} of {tokens} tokens has turns {as_given(text)}; turns as "
                    "[[tokens, seconds], ...] that add up to the response are needed"
                )
    return found


def _turns(text: str) -> Turns:
    """Return the turns of a cell; none of it where it is of another form."""
    rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        return Turns((), ())
    if not all(is_whole(tokens, 0) and is_number(wait_s, 0) for tokens, wait_s in rows):
        return Turns((), ())
    return Turns(tuple(int(tokens) for tokens, _ in rows), tuple(float(wait_s) for _, wait_s in rows[:-1]))


def way(run: RunToChange, keeps_kv: bool = True) -> WayOutcome:
    """Return the run with the waits between the turns of its responses, under its own dispatch.

    Args:
        keeps_kv: KV caches stay while responses wait, and with them their slots.

    Raises:
        InputError: the log has no turns, there are no steps, or the setting has effects.
        PlanningError: KV caches stay, and admission does not reserve memory.
    """
    if not has_turns(checked(run)):
        raise InputError("the log has no turns; a table with columns turn and tool_wait_s, with one row per turn, is needed")
    policy, setting = make_policy(run.setup.dispatch), run.setting
    steps_s, least = [], []
    for step in run.logged:
        turns = turns_of(step)
        record = run_step(
            policy.plan(*step.inputs(setting)), step.requests(), MultiTurnEngines(turns, keeps_kv), setting.latency,
            setting.cluster, step=step.step, admission=setting.admission,
        )  # fmt: skip
        steps_s.append(record.end_s - record.start_s)
        least.append((step.truth, _longest_s(step, turns, setting)))
    return whole_steps(run, KEPT if keeps_kv else DROPPED, steps_s, least=least)


def _longest_s(step: LoggedStep, turns: Mapping[int, Turns], setting: SimulationConfig) -> float:
    """Return a lower bound on the seconds that some response takes with its waits, alone on an actor."""
    truth, latency = step.truth, setting.latency
    wait_s = np.zeros(len(truth))
    for response, one in turns.items():
        wait_s[response] = sum(one.wait_s)
    about_s = wait_s + truth.response_tokens * float(latency.iteration_s(1, 0))
    longest = 0.0
    for response in np.argsort(-about_s)[:ALONE].tolist():
        prompt = truth.prompt_tokens[truth.prompt_of[response]]
        alone = Workload([prompt], [0], truth.response_tokens[[response]], max_response_tokens=truth.max_response_tokens)
        least_s = ScheduleBound(setting.problem(alone), lp_work=0).shortest_s()
        longest = max(longest, least_s + float(wait_s[response]))
    return longest
