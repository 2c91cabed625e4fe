"""What connects the two processes; the launcher makes it, both get it."""

from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from examples.pipeline_rl.gate import Gate
from examples.pipeline_rl.links import StopSignal
from examples.vllm_torch.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class Links:
    """One end of everything, as one process sees it."""

    run_id: str
    checkpoint: Path
    mailbox: Mailbox
    gate: Gate
    stop: StopSignal
    groups: Connection
    """Finished groups: the sampler's writing end or the trainer's reading end."""
    result: Connection
    """Where the process sends its own count of what it did, once, at its end."""
