"""The model's sizes, known without torch: the launcher needs them before any process has loaded it."""

from dataclasses import dataclass

from examples.pipeline_rl.task import PROMPT_TOKENS, VOCABULARY

BYTES_PER_WEIGHT = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer with learned positions and tied embeddings."""

    width: int
    layers: int
    heads: int
    response_cap_tokens: int

    @property
    def context_tokens(self) -> int:
        """Longest prompt and response together."""
        return PROMPT_TOKENS + self.response_cap_tokens

    @property
    def parameters(self) -> int:
        """Number of weights."""
        norm = 2 * self.width
        attention = 4 * self.width**2 + 4 * self.width
        feed_forward = 8 * self.width**2 + 5 * self.width
        embeddings = (VOCABULARY + self.context_tokens) * self.width
        return embeddings + self.layers * (2 * norm + attention + feed_forward) + norm

    @property
    def bytes(self) -> int:
        """Size of one copy of the weights."""
        return self.parameters * BYTES_PER_WEIGHT

    def trace_config(self) -> dict[str, object]:
        """The model as run.json describes it."""
        return {
            "name": f"digits-{self.layers}x{self.width}",
            "parameters": self.parameters,
            "layers": self.layers,
            "kv_heads": self.heads,
            "head_dim": self.width // self.heads,
            "bytes_per_weight": BYTES_PER_WEIGHT,
            "bytes_per_kv": BYTES_PER_WEIGHT,
        }
