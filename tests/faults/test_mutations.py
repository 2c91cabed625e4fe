"""Whatever is done to a run: the answer stays, or the fault is named, or there is a clear error. Never silence.

`make faults` runs 2,000 mutations and keeps what came of them in `benchmarks/faults.json`, `make test-all` 58.
`RLSCOPE_MUTATIONS_FROM` is the first seed, for ones that nobody has tried.
What a seed ever found is a named case in `test_completeness.py`, `test_hostile_text.py` or `tests/queries/cases`.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.faults.mutations import mutate
from tests.faults.oracle import FAULTS, Looked, Verdict, judge_mutation, look
from tests.faults.runs import Recorder, store_run
from tests.nightly import nightly

pytestmark = pytest.mark.faults

MUTATIONS: Final = int(os.environ.get("RLSCOPE_MUTATIONS", "58"))
FIRST_SEED: Final = int(os.environ.get("RLSCOPE_MUTATIONS_FROM", "0"))
FIGURES: Final = os.environ.get("RLSCOPE_MUTATIONS_TO")
"""A file that takes what came of them."""
EVERY_FORMAT_OF: Final = 100
"""One in so many mutations is analyzed with the model and written in every format, which takes far longer."""
EVERY_FORMAT_AT: Final = 30
"""Which one of them: `make test` leaves it to `make test-all`."""
NIGHTLY: Final = 20
"""One in so many is left to `make test`."""
Tally = Counter[tuple[str, Verdict]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Recorder, tuple[Path, Looked]]:
    """The runs, and what is said of them as they are."""
    found: dict[Recorder, tuple[Path, Looked]] = {}
    for recorder in ("closed", "open", "plain"):
        folder = store_run(tmp_path_factory.mktemp(recorder) / "run", recorder)
        found[recorder] = folder, look(folder)
    return found


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    counts: Tally = Counter()
    yield counts
    if FIGURES is not None:
        kinds: dict[str, dict[str, int]] = {}
        total = Counter(dict.fromkeys(FAULTS, 0))
        for (kind, verdict), count in sorted(counts.items()):
            kinds.setdefault(kind, {})[verdict] = count
            total[verdict] += count
        document = {
            "first_seed": FIRST_SEED,
            "mutations": sum(counts.values()),
            "total": dict(sorted(total.items())),
            "by_kind": kinds,
        }
        Path(FIGURES).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def recorder_of(seed: int) -> Recorder:
    """Every kind of mutation meets every recorder: there are 30 kinds, so that 5 alone would always meet the same."""
    return ("closed", "open", "open", "closed", "plain")[(seed + seed // 30) % 5]


@pytest.mark.parametrize("recorder", ["closed", "open", "plain"])
def test_the_untouched_run_is_complete(runs: dict[Recorder, tuple[Path, Looked]], recorder: Recorder) -> None:
    _, looked = runs[recorder]
    assert (looked.end, looked.lines) == ("seen", ())
    assert looked.facts["run"][0] == 24


@pytest.mark.parametrize(
    "seed",
    [seed if seed % NIGHTLY == 0 else nightly(seed) for seed in range(FIRST_SEED, FIRST_SEED + MUTATIONS)],
)
def test_a_mutation_changes_nothing_without_a_word(
    seed: int, runs: dict[Recorder, tuple[Path, Looked]], tally: Tally, tmp_path: Path
) -> None:
    recorder = recorder_of(seed)
    original, untouched = runs[recorder]
    folder = tmp_path / "run"
    shutil.copytree(original, folder)
    mutation = mutate(folder, seed, counted=recorder != "plain")
    looked = look(folder, whole=seed % EVERY_FORMAT_OF == EVERY_FORMAT_AT)
    verdict = judge_mutation(mutation, untouched, looked)
    tally[mutation.kind, verdict] += 1
    said = "\n".join(line for line in looked.lines if line not in untouched.lines)
    assert verdict not in FAULTS, f"{mutation} of {recorder}: {verdict}\n{said[-3000:]}"
