"""A token-exact simulator of asynchronous RL runs that records them as traces; the truth that predictions are held to.

It shares no code with `rlscope/model` and imports nothing of `rlscope`. It is slow and plain on purpose: engines run
pass by pass, each pass gives every running request one token, and everything else happens between passes.
"""

from .simulation import Outcome, Truth, simulate_world, true_tokens_per_s, truth_of
from .world import Change, Evaluations, Layout, Limits, Passes, Responses, Rollouts, Training, Updates, World

__all__ = [
    "Change",
    "Evaluations",
    "Layout",
    "Limits",
    "Outcome",
    "Passes",
    "Responses",
    "Rollouts",
    "Training",
    "Truth",
    "Updates",
    "World",
    "simulate_world",
    "true_tokens_per_s",
    "truth_of",
]
