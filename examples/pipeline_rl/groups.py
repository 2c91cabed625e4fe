"""What samplers hand to the trainer: finished groups of samples, as plain values that any process can unpickle."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FinishedSample:
    """One response; the three tuples run over its tokens."""

    sample_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token under the policy version that sampled it."""
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """All responses to one prompt."""

    group_id: str
    target: int
    samples: tuple[FinishedSample, ...]
    queued_ns: int

    @property
    def oldest_version(self) -> int:
        """Version of the oldest token in the group."""
        return min(sample.versions[0] for sample in self.samples)
