"""Corrects a profile's price of a drafted token by the passes that an engine measures.

Profiles are measured without drafts. Verifying a token can take longer than the profile says for another fed token: on the CPU
each attends by itself, and the drafter works for it.
"""

from __future__ import annotations

from solver.model.latency import LatencyModel
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

KEPT_SHARE = 0.99  # of what older passes say, at every further one
PRIOR_PASSES = 4.0  # that the profile's price counts for
LEAST_FACTOR, MOST_FACTOR = 0.1, 4.0  # of the profile's price


class MeasuredPasses:
    """Running least squares of ``seconds = a * undrafted + b * slope * drafted``, the regressors by a profile.

    Args:
        latency: the profile: seconds of a pass by fed tokens.

    Attributes:
        drafted_passes: that were measured. decoded_s: seconds of all measured passes.

    Example:
        >>> import solver
        >>> profile = solver.LatencyModel("x", 1, base_s=1.0, per_response_s=0.1)
        >>> passes = MeasuredPasses(profile)
        >>> for drafted in (0, 4, 8) * 40:
        ...     passes.observe(2, 100, drafted, 1.2 + 0.2 * drafted)
        >>> round(passes.factor, 1)
        1.7
    """

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self.drafted_passes, self.decoded_s = 0, 0.0
        self._sums = [0.0] * 6  # of passes; of products: undrafted, both, drafted; seconds with undrafted, with drafted

    def observe(self, batch: int, kv_tokens: int, drafted: int, seconds: float) -> None:
        """Note the measured seconds of a pass that fed ``drafted`` drafted tokens, drafting included."""
        without = self._latency.one_iteration_s(batch, kv_tokens)
        extra = 0.0
        self.decoded_s += seconds
        if drafted:
            self.drafted_passes += 1
            extra = self._slope_s(batch, kv_tokens, without) * drafted
            seconds -= DRAFT_CALL_S + DRAFT_TOKEN_S * drafted  # which choosing a length adds
        new = (1.0, without * without, without * extra, extra * extra, seconds * without, seconds * extra)
        self._sums = [KEPT_SHARE * old + add for old, add in zip(self._sums, new, strict=True)]

    @property
    def factor(self) -> float:
        """Return how many times the profile's price of a drafted token passes paid, relative to passes without."""
        passes, s00, s01, s11, y0, y1 = self._sums
        prior = PRIOR_PASSES * s11 / max(passes, 1.0)
        determinant = (s00 + prior) * (s11 + prior) - (s01 - prior) ** 2
        a, b = (s11 + prior) * y0 + (prior - s01) * y1, (s00 + prior) * y1 + (prior - s01) * y0
        if determinant <= 0 or a <= 0:
            return 1.0
        return min(max(b / a, LEAST_FACTOR), MOST_FACTOR)

    def price(self, batch: int, kv_tokens: float, *, least: bool = False) -> LatencyModel:
        """Return the seconds of passes that feed a batch of this size and drafted tokens, as an affine latency model.

        Args:
            least: take the least price of a drafted token that is possible, not the measured one.
        """
        without = self._latency.one_iteration_s(batch, round(kv_tokens))
        factor = LEAST_FACTOR if least else self.factor
        slope_s = factor * self._slope_s(batch, round(kv_tokens), without)
        base_s = max(without - slope_s * batch, 0.0)
        return LatencyModel("measured passes", 1, base_s=base_s, per_response_s=slope_s)

    def _slope_s(self, batch: int, kv_tokens: int, without_s: float) -> float:
        """Return the profile's seconds of one more fed token, in the mean of as many as the batch has responses."""
        more = batch
        if self._latency.table is not None:
            more = max(1, min(batch, int(self._latency.table.batch[-1]) - batch))
        return max(0.0, self._latency.one_iteration_s(batch + more, kv_tokens) - without_s) / more
