"""Writes the console of NeMo-RL's GRPO as it prints it: a banner, the trainer's lines, a block of durations."""

from collections.abc import Mapping

CONFIG = """Final config:
{'cluster': {'gpus_per_node': 8, 'num_nodes': 1},
 'grpo': {'async_grpo': {'enabled': False, 'max_trajectory_age_steps': 1},
          'max_num_steps': 50,
          'num_generations_per_prompt': 16,
          'num_prompts_per_step': 32},
 'policy': {'generation': {'backend': 'vllm',
                           'colocated': {'enabled': True,
                                         'resources': {'gpus_per_node': None,
                                                       'num_nodes': None}},
                           'vllm_cfg': {'precision': 'bfloat16',
                                        'tensor_parallel_size': 1}}}}
"""
ASYNC_CONFIG = CONFIG.replace("'colocated': {'enabled': True", "'colocated': {'enabled': False").replace(
    "{'gpus_per_node': None,", "{'gpus_per_node': 2,"
)
STAMPED = (
    "\x1b[36m(VllmGenerationWorker pid=7, ip=10.0.0.1)\x1b[0m INFO {stamp} [abstract.py:324] It took 0.08 seconds to"
    " wake up tags ['weights'].{merged}"
)


def stamped(stamp: str, merged: int = 0) -> str:
    """A line of an engine with its time; merged says how often Ray saw it."""
    return STAMPED.format(stamp=stamp, merged=f"\x1b[32m [repeated {merged}x across cluster]\x1b[0m" if merged else "")


def block(
    step: int, total_s: float, phases: Mapping[str, float], *, validation_s: float | None = None, engine: str = ""
) -> str:
    """One step of 512 samples, at 10,000 tokens a second."""
    lines = [
        f"\n{'=' * 25} Step {step}/50 {'=' * 25}",
        "▶ Generating responses for batch of size 512...",
        *([engine] if engine else []),
        *([f"  ⏱️  Validation Timing:\n    • Total validation time: {validation_s:.2f}s"] if validation_s else []),
        "\n📊 Training Results:\n  • Loss: -0.0042\n  • Generation KL Error: 0.0006\n  • Avg Reward: 0.2656",
        "\n⏱️  Timing:",
        f"  • Total step time: {total_s:.2f}s",
        *(f"  • {name}: {seconds:.2f}s ({100 * seconds / total_s:.1f}%)" for name, seconds in phases.items()),
        "\n🔍 Performance Metrics:\n  • Throughputs (per GPU):\n    - E2E (Tokens/sec/gpu): 1250.00",
        "  • Throughputs (per Group):\n    - E2E (Samples/sec): 11.82\n    - E2E (Tokens/sec): 10000.00",
    ]
    return "\n".join(lines) + "\n"
