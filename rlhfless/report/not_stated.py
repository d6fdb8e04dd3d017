"""Sentences on what is assumed where the user did not state it: latency profile, price, responses per step, and prompts."""

from __future__ import annotations

from rlhfless.latency import list_prices, list_profiles, read_profile
from rlhfless.plots.style import counted

DEFAULT_PROFILE = "l40s-qwen2.5-3b-tp2"
ONE_GPU_PROFILE = "h100-qwen2.5-3b-tp1"
"""Stands in where the GPUs are no multiple of the default profile's 2 per replica."""
PROFILE, PRICE, RESPONSES, PROMPTS = "profile", "usd_per_gpu_hour", "responses_per_step", "prompt_id"
OPTIONS = {
    PROFILE: "--profile", PRICE: "--usd-per-gpu-hour", RESPONSES: "--responses-per-step",
    PROMPTS: "--map prompt_id=COLUMN",
}  # fmt: skip
"""The option that states each of them."""

PROFILE_HOW = "name another one (rlhfless doctor lists them), or measure yours with rlhfless profile"
"""How a user states the profile."""
PROMPTS_ASSUMED = (
    "every row is a prompt of its own, because prompt_id=row says so: no length is predicted from earlier responses to a "
    "prompt, and nothing is known of a prompt's group of samples; if a column names the prompt, map prompt_id to it"
)
RESPONSES_ASSUMED = "the number of responses per step, from its tokens"


def profile_in_words(name: str) -> str:
    """Return a latency profile with the model and GPUs that it stands for, where it is a shipped one."""
    if name not in list_profiles():
        return f"profile {name}"
    profile = read_profile(name)
    gpus = f"{counted(profile['gpus_per_actor'], 'GPU')} per replica"
    return f"profile {name} ({profile['model']} on {profile['kind'].upper()}, {gpus})"


def stand_in_profile(gpus: int | None) -> str:
    """Return the profile that stands in for a run's model and GPUs where nobody gave one."""
    return ONE_GPU_PROFILE if gpus is not None and gpus % 2 else DEFAULT_PROFILE


def profile_assumed(name: str) -> str:
    """Return the sentence on a profile that stands in."""
    profile = read_profile(name)
    gpus = f"{profile['model']} on {profile['kind'].upper()} GPUs, {profile['gpus_per_actor']} per replica"
    return f"the speed of {gpus} (profile {name}), because no profile was given; it stands in for your model and GPUs"


def price_assumed(kind: str) -> str:
    """Return the sentence on the list price of a GPU kind, with its source and date."""
    for row in list_prices():
        if (row["kind"], row["market"]) == (kind, "on-demand"):
            price = f"{float(row['usd_per_gpu_hour']):.2f} USD per GPU-hour ({row['source']}, {row['date']})"
            return f"the list price of {price}, because no price was given"
    return "a list price, because no price was given"
