"""The rules of a rollout pipeline that change what a layout achieves. Each is defined here and nowhere else.

The values are those of `run.json`, so one spelling serves the config, the model and the simulator. Nothing is imported,
so that reading a config stays cheap.
"""

from typing import Literal

Dispatch = Literal["least_loaded", "pulled"]
"""Who gives samples to the engines.

`least_loaded`: a router sends each sample to the engine with the fewest requests; finished groups wait in one line for
room in the queue. `pulled`: each engine takes whole groups between its passes while it has free places and no limit
holds it; it keeps its own finished groups until the queue has room, and starts no new ones meanwhile.
"""
Delivery = Literal["group", "sample"]
"""What is queued, taken and dropped as one: a whole group, once its last sample is finished, or each sample alone."""
QueueOrder = Literal["fifo", "lifo", "oldest_first"]
"""What the trainer takes first: what was queued first, what was queued last, or what has the oldest token."""
Taking = Literal["batch", "as_they_come"]
"""How the trainer takes what it waits for: a whole batch at once, or whatever is queued, until the batch is full.

`as_they_come`: while it waits, what is finished leaves the queue, and the count in flight, at once. Nothing of it ages
otherwise than in the queue: no version is published before the step that it waits for.
"""
QueuePolicy = Literal["wait", "drop_oldest"]
"""What a full queue does: finished groups wait outside it, or its oldest group is dropped."""
StalenessPolicy = Literal["admission", "publication_waits", "drop"]
"""How a cap on staleness is kept. A run without a cap has none of them; its config may say "none".

`admission`: samples start only so many versions ahead of the trainer; a sample overtaken by shorter ones can still
exceed the cap. `publication_waits`: before a step the trainer waits for running groups that the next version would make
too stale, and it skips a publication that would leave one behind; nothing exceeds the cap. `drop`: samples beyond the
cap are dropped when they are finished or while they are queued.
"""
Publication = Literal["in_flight", "drained"]
"""How engines take new weights: after the pass they are in, or once every running request has finished."""
