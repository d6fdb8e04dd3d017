"""Figure 3c: the share of GPU time that is spent on computing the same KV cache again.

Computed from the naive system's trace and the profile's prefill times. Every response computes its own prefill, so of G samples
of a prompt G - 1 are redundant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.comparison import compare
from rlhfless.paper.facets import FROM_ZERO, PERCENT, Panel, facets, looks_of
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.workloads import Sources

TITLE = "Figure 3c: GPU time that recomputes KV caches"
PAPER_SHARE, PAPER_SAMPLES = 0.22, 4
GSM8K_PROMPT_TOKENS = 105


@dataclass(frozen=True)
class Figure03cSetting:
    """Setting: GRPO, Qwen2.5-3B, GSM8K. GSM8K prompts have about 105 tokens with a chat template; the paper's cap is 1,024."""

    samples_per_prompt: tuple[int, ...] = (1, 2, 4, 8)
    prompt_tokens: tuple[int, ...] = (GSM8K_PROMPT_TOKENS, 256, 512, 1024)
    machine: Machine = QWEN_3B_L40S


def numbers(setting: Figure03cSetting, sources: Sources) -> Numbers:
    """Return ``prompt_tokens, samples_per_prompt, basis, prefill_gpu_s, redundant_gpu_s, busy_gpu_s, redundant_share``."""
    rows = []
    latency = setting.machine.latency
    for samples_per_prompt in setting.samples_per_prompt:
        base = sources.gsm8k(samples_per_prompt)
        for tokens in setting.prompt_tokens:
            history = replace(base, rollouts=base.rollouts.assign(prompt_tokens=tokens))
            outcome = compare(history, setting.machine, "GRPO", ["static"])
            spans = outcome.simulation.traces["static"].spans
            prefill = spans[spans["phase"] == "prefill"]
            prefill_s = float((prefill["end_s"] - prefill["start_s"]).sum())
            responses = len(history.rollouts[history.rollouts["step"].isin(history.evaluated)])
            again = responses * (samples_per_prompt - 1) / samples_per_prompt * tokens * latency.prefill_per_token_s
            subset = outcome.steps
            busy = float((subset["generation_gpu_s"] - subset["generation_idle_gpu_s"]).sum())
            rows.append(
                {
                    "prompt_tokens": tokens, "samples_per_prompt": samples_per_prompt, "basis": base.basis,
                    "prefill_gpu_s": prefill_s * latency.gpus_per_actor, "redundant_gpu_s": again * latency.gpus_per_actor,
                    "busy_gpu_s": busy, "redundant_share": again * latency.gpus_per_actor / busy,
                }
            )  # fmt: skip
    return Numbers(pd.DataFrame(rows))


def plot(setting: Figure03cSetting, numbers: Numbers) -> go.Figure:
    """Plot the share by samples of a prompt, one line per prompt length."""
    lengths = numbers.table["prompt_tokens"].unique().tolist()
    labels = {tokens: f"prompts of {tokens:,} tokens{' (GSM8K)' * (tokens == GSM8K_PROMPT_TOKENS)}" for tokens in lengths}
    return facets(
        numbers.table, TITLE, f"naive static system, Qwen2.5-3B on L40S, GSM8K lengths ({numbers.table['basis'].iloc[0]})",
        [[Panel({}, "samples_per_prompt", "redundant_share", "prompt_tokens", "lines", x_title="responses per prompt",
                y_title="redundant prefill / busy GPU time", printed=((PAPER_SHARE, "paper: 22 % with 4 responses"),),
                xaxis={"tickvals": list(setting.samples_per_prompt)}, yaxis={**PERCENT, **FROM_ZERO})]],
        looks_of(lengths, labels),
    )  # fmt: skip


def caption(setting: Figure03cSetting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    at = numbers.table[numbers.table["samples_per_prompt"] == PAPER_SAMPLES].set_index("prompt_tokens")["redundant_share"]
    reached = [f"{tokens:,}" for tokens, share in at.items() if share >= PAPER_SHARE]
    reached_with = (
        f"prompts of {reached[0]} tokens reach the paper's 22 %"
        if reached
        else "no prompt length here reaches the paper's 22 %"
    )
    return Caption(
        "The share of busy GPU time that computes the same KV caches again, by responses per prompt, a line per prompt length.",
        "Lengths of the responses (public GRPO log on GSM8K)." if numbers.table["basis"].iloc[0] == "log" else "Nothing.",
        "Prefill and decode times come from the profile. Prompt lengths are set, because the log does not have them.",
        "22 % of GPU-time is redundant KV computation (GRPO, Qwen2.5-3B, GSM8K, 4 responses).",
        f"With prompts as long as GSM8K's the share is {at[GSM8K_PROMPT_TOKENS]:.1%}; {reached_with}. The paper does not say "
        "how it counts. Host time around each prefill, prefill without batching or shorter responses would bring our "
        "number closer.",
    )


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    table = numbers.table[numbers.table["samples_per_prompt"] == PAPER_SAMPLES].set_index("prompt_tokens")
    share = table["redundant_share"]
    reaching = share[share >= PAPER_SHARE]
    reached_with = (
        f"Reached with prompts of {reaching.index[0]:,} tokens" if len(reaching) else "Reached with no prompt length here"
    )
    return [
        Row(
            "GPU time that computes KV caches again (GRPO, GSM8K, 4 responses per prompt)", "22 %",
            f"{share.iloc[0]:.1%} with GSM8K's prompts of {share.index[0]} tokens", "3 of 4 prefills, however long they take",
            f"{reached_with}. The paper does not say how it counts. Our prefill times leave out the host's work.",
        )
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    share = numbers.table.pivot(index="prompt_tokens", columns="samples_per_prompt", values="redundant_share")[PAPER_SAMPLES]
    subset = GSM8K_PROMPT_TOKENS
    other_lengths = ", ".join(f"{value:.0%} with {tokens:,} tokens" for tokens, value in share.items() if tokens != subset)
    text = f"{share[subset]:.0%} with GSM8K's prompts of {subset} tokens; longer prompts would give {other_lengths}"
    stated = "22 % of GPU time is redundant KV computation with 4 responses per prompt"
    return [Claim.of(stated, [share[subset] >= PAPER_SHARE], text)]


FAST = replace(Figure03cSetting(), samples_per_prompt=(1, 2, 4), prompt_tokens=(GSM8K_PROMPT_TOKENS, 1024))
FIGURE = PaperFigure("3c", TITLE, Figure03cSetting(), FAST, numbers, plot, caption, rows, claims)
