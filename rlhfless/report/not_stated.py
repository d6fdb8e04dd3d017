"""Sentences on what is assumed where the user did not state it: latency profile, price, responses per step, and prompts."""

from __future__ import annotations

from rlhfless.analysis.assumptions import PRICE, PROFILE, PROMPTS, RESPONSES
from rlhfless.latency import list_prices, list_profiles, read_profile
from rlhfless.latency.profile import DEFAULT_PROFILE, ONE_GPU_PROFILE
from rlhfless.plots.style import counted

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
NO_PRICE = "no price of a GPU, because neither a price nor the kind of GPU was given; costs are GPU-seconds"
LIST_PRICES = "the list price of every kind of GPU, because no price was given"
RESPONSES_ASSUMED = "a step has as many responses as its tokens, divided by the mean length of prompt and response"


def responses_assumed(responses: int, how: str) -> str:
    """Return the sentence on the responses of a step that the diagnosis derived."""
    return f"a step has {counted(responses, 'response')}, which the diagnosis derived: {how}"


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


def profile_of_size_assumed(name: str, instead_of: str) -> str:
    """Return the sentence on a profile that stands in for one whose actors do not fit the GPUs."""
    profile, other = read_profile(name), read_profile(instead_of)
    gpus = f"{profile['model']} on {profile['kind'].upper()} GPUs, {profile['gpus_per_actor']} per replica"
    size = counted(other["gpus_per_actor"], "GPU")
    return f"the speed of {gpus} (profile {name}), because replicas of {size} (profile {other['name']}) do not fit"


def price_assumed(kind: str) -> str:
    """Return the sentence on the list price of a GPU kind, with its source and date."""
    for row in list_prices():
        if (row["kind"], row["market"]) == (kind, "on-demand"):
            price = f"{float(row['usd_per_gpu_hour']):.2f} USD per GPU-hour ({row['source']}, {row['date']})"
            return f"the list price of {price}, because no price was given"
    return "a list price, because no price was given"
