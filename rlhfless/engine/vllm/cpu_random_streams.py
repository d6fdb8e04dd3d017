"""Gives vLLM on the CPU random streams that it can wind back, as it does between the chunks of a prompt."""

from __future__ import annotations


def wind_back_on_cpu() -> None:
    """Let vLLM wind back the random stream of a response whose prompt is not complete after a chunk.

    It moves the stream's offset, which torch's on the CPU does not have. Only responses without a token are wound back, so
    their stream is at its beginning afterwards.
    """
    import torch
    from vllm.v1.worker import gpu_model_runner as runner

    class Rewinding(torch.Generator):
        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> Rewinding:
            self.manual_seed(self.initial_seed())
            return self

    class Rewound(runner.CachedRequestState):  # type: ignore[misc]
        generator: torch.Generator | None

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.generator is not None:
                rewinding = Rewinding(device="cpu")
                rewinding.manual_seed(self.generator.initial_seed())
                self.generator = rewinding

    runner.CachedRequestState = Rewound
