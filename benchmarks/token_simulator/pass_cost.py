"""How long one engine's passes take, drawn from the truth of `world.Passes`."""

from collections.abc import Iterator

from .world import Passes


class PassCost:
    """The cost of one engine's passes, with its own slowness and noise."""

    def __init__(self, passes: Passes, slowness: float, noise: Iterator[float], most_running: int) -> None:
        self._passes, self._slowness, self._noise = passes, slowness, noise
        self.factor = 1.0
        """How many times longer passes take since something changed."""
        self._without_kv_s = [decode_s(passes, running) for running in range(most_running + 1)]

    def decode_s(self, running: int, kv_tokens: int, prefill_tokens: int) -> float:
        """A pass over so many requests with so many tokens resident, and the prompts that ride on it."""
        steady_s = self._without_kv_s[running] + self._passes.kv_token_s * kv_tokens
        return (
            (steady_s + prefill_tokens / self._passes.prefill_tokens_per_s)
            * self._slowness
            * self.factor
            * next(self._noise)
        )

    def prefill_s(self, tokens: int) -> float:
        """A pass over nothing but prompts; the weights are read once at least."""
        steady_s = max(self._passes.weights_s, tokens / self._passes.prefill_tokens_per_s)
        return steady_s * self._slowness * self.factor * next(self._noise)


def decode_s(passes: Passes, running: int) -> float:
    """The mean of a pass over so many requests that hold no KV; see `world.Passes`."""
    batch = -(-running // passes.padded_to) * passes.padded_to
    hinge_s = (passes.weights_s**passes.sharpness + (passes.request_s * batch) ** passes.sharpness) ** (
        1 / passes.sharpness
    )
    return hinge_s + passes.experts_s * (1 - (1 - passes.expert_ratio) ** batch)
