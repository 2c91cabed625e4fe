"""A plan small enough to be simulated in a blink. Its last section is that of the batch."""

from pathlib import Path

SMALL_PLAN = """\
[gpus]
total = 6
device = "H100 SXM"
[model]
parameters = 8_190_735_360
layers = 36
attention_heads = 32
kv_heads = 8
head_dim = 128
[lengths]
prompt_tokens = 100
mean_tokens = 400
cv_ratio = 0.7
max_output_tokens = 1024
[weights]
weight_update_s = 0
[batch]
samples_per_step = 64
group_size = 8
"""
PRESENT = "[current]\ntrainer_gpus = 1\nsampler_gpus = 5\nmax_running = 64\n"
"""The layout in use, at the end of that plan."""


def write_plan(folder: Path, text: str = SMALL_PLAN) -> Path:
    """The file of a plan."""
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path
