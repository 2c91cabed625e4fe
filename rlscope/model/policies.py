"""Rules of a rollout pipeline that change what a layout achieves. Each is defined only here.

The values are those of `run.json`, so one spelling serves the config, the model and the simulator. This module imports
no other module of rlscope, so that reading a config stays cheap.
"""

from typing import Literal

Dispatch = Literal["least_loaded", "pulled"]
"""Assignment of samples to engines.

`least_loaded`: a router sends each sample to the engine with the fewest requests; finished groups wait in one line for
room in the queue. `pulled`: each engine takes whole groups between its passes while it has free places and no limit
holds it; it keeps its own finished groups until the queue has room, and starts no new ones meanwhile.
"""
Delivery = Literal["group", "sample"]
"""Unit that is queued, taken and dropped: a whole group once its last sample is finished, or each sample alone."""
QueueOrder = Literal["fifo", "lifo", "oldest_first"]
"""Order in which the trainer takes samples: first queued first, last queued first, or oldest token first."""
Taking = Literal["batch", "as_they_come"]
"""Way in which the trainer takes samples: a whole batch at once, or whatever is queued until the batch is full.

`as_they_come`: while the trainer waits, finished samples leave the queue and the in-flight count at once. They do not
age differently from samples in the queue: no version is published before the step that the trainer waits for.
"""
QueuePolicy = Literal["wait", "drop_oldest"]
"""Behavior of a full queue: finished groups wait outside it, or its oldest group is dropped."""
StalenessPolicy = Literal["admission", "publication_waits", "drop"]
"""Enforcement of a staleness cap. A run without a cap has none of these; its config may say "none".

`admission`: samples start only so many versions ahead of the trainer; a sample overtaken by shorter ones can still
exceed the cap. `publication_waits`: before a step the trainer waits for running groups that the next version would make
too stale, and it skips a publication that would leave one behind. If it also waits for queued groups, it takes the
oldest first, and nothing exceeds the cap; if it does not, they age in the queue beyond it. `drop`: samples beyond the
cap are dropped when they finish or while they are queued.
"""
