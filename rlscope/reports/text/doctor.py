"""`rlscope doctor` in words: what a run records, what each missing piece would add, and how to add it.

For a run recorded by hooks, that is a line of code or a config entry; for an imported run, a file or a flag.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.checkup import NOTICED_RATIO, Checkup, WorkerTime
from rlscope.frameworks import framework_of
from rlscope.reports.blocks import Check
from rlscope.reports.text.origin import bad_lines
from rlscope.trace.imported import Certainty, Imported

_WORKERS_NAMED: Final = 4
_ANY_ENGINE_LOG: Final = (
    "pass the output of SGLang (log level info) or vLLM (without disable_log_stats) with --engine-log 'PATTERN'"
)
_ANY_SAMPLE_FILES: Final = (
    "record the next run with hooks (docs/frameworks.md); if its engines are SGLang's, starting them with "
    "--export-metrics-to-file and passing their sglang-request-metrics-*.log with --with does it too"
)


class _Counted(NamedTuple):
    """A check that the rows of a table pass if there are any."""

    name: str
    unit: str
    adds: str
    hook: str
    """The line of code that adds them to a run that hooks record."""
    file: str
    """The file or flag that adds them to an imported run; may name the files of its framework."""


_WITH_HOOKS: Final = "record the next run with hooks (docs/frameworks.md)"
_COUNTED: Final[Mapping[str, _Counted]] = {
    "train_steps": _Counted(
        "training steps",
        "training steps",
        "the verdict, throughput and every rate",
        "put `with run.train_step(step, version_in=version, samples=n, tokens=m):` around the trainer's step",
        "pass the trainer's metrics or log",
    ),
    "engine_steps": _Counted(
        "forward passes",
        "engine rows",
        "batch sizes, the cost of a pass, and a recommended layout",
        "call run.engine_step(...) after every forward pass",
        "{engine_log}",
    ),
    "samples": _Counted(
        "samples and their lengths",
        "sample segments",
        "staleness, response lengths, the long tail, and a recommended layout",
        "hold a handle from run.sample(id, group_id=..., prompt_tokens=n) per request; call .tokens(n, version) and "
        ".finish(reason)",
        "{sample_files}",
    ),
    "deliveries": _Counted(
        "deliveries",
        "deliveries",
        "what was trained on and what was dropped, time in the queue, and trained response tokens",
        'call run.delivery(id, "trained", queued_ns=..., step=step, consumer_version=version) for each sample',
        "{sample_files}",
    ),
    "queue_depths": _Counted(
        "depth of the queue",
        "readings",
        "how full the queue was",
        "call run.queue_depth(name, depth=n, capacity=m) where the queue is used",
        _WITH_HOOKS,
    ),
    "gpu_samples": _Counted(
        "readings of the GPUs",
        "readings",
        "how busy the GPUs were in each state",
        "pass gpu_interval_s=1.0 to rlscope_otel.start_run",
        _WITH_HOOKS,
    ),
}
_NAMED: Final = frozenset({"train_steps", "engine_steps", "samples", "deliveries"})
"""Tables whose check also tells lost rows."""
_RESTORE: Final = "the hook is there: restore these files from a copy, or record the run again"


def checks(run: Checkup) -> list[Check]:
    """Everything that answers need, in the order in which they need it."""
    found = [_counted("train_steps", run), _gpus(run), *_times(run), _passes(run), _counted("samples", run)]
    found += [_versions(run), _counted("deliveries", run), _counted("queue_depths", run), _updates(run)]
    found += [_counted("gpu_samples", run), _settings(run), *_damage(run)]
    return found if run.imported is None else [*found, *_of_the_file(run.imported)]


def _counted(table: str, run: Checkup) -> Check:
    words, count = _COUNTED[table], run.rows.get(table, 0)
    if count:
        return _with_losses(table, Check(words.name, "there", f"{count:,} {words.unit}"), run)
    how = words.hook if run.imported is None else words.file.format(**_files(run.imported))
    return _with_losses(table, Check(words.name, "missing", f"no {words.unit}", words.adds, how), run)


def _files(imported: Imported) -> dict[str, str]:
    """Return how to pass the engines' logs and the samples of the run's framework."""
    framework = framework_of(imported.framework)
    named = framework.doctor if framework else None
    return {
        "engine_log": (named and named.engine_log) or _ANY_ENGINE_LOG,
        "sample_files": (named and named.sample_files) or _ANY_SAMPLE_FILES,
    }


def _with_losses(table: str, check: Check, run: Checkup) -> Check:
    """Return the check with the rows that were recorded and then lost, which no hook can restore."""
    lost = run.lost.get(table)
    if lost is None or table not in _NAMED:
        return check
    status = "missing" if check.status == "missing" else "in part"
    return Check(check.name, status, f"{check.found}; {lost}", check.adds or "what the lost rows say", _RESTORE)


def _damage(run: Checkup) -> list[Check]:
    """Return a check of files that cannot be read, or only in part, unless another check names them."""
    found = [words for table, words in run.lost.items() if table not in _NAMED]
    how = _RESTORE
    if run.imported is not None:
        found += [bad_lines(file).removesuffix(".") for file in run.imported.files if file.bad_lines]
        how = "copy the file again from the machine that wrote it; only whole lines or records are read"
    return [Check("readable files", "in part", "; ".join(found), "what the unreadable rows say", how)] if found else []


def _of_the_file(imported: Imported) -> list[Check]:
    found = [_refused(reason) for reason in imported.no_verdict]
    if imported.is_incomplete:
        short = ", ".join(f"{worker} {fmt.percent(ratio)}" for worker, ratio in imported.coverage.items())
        adds = "exact totals and durations" if imported.refusal is None else "a verdict"
        how = "pass the whole log, the .wandb file, or an export of all rows (run.scan_history() in W&B's API)"
        found.append(Check("all steps", "in part", f"share of the steps: {short}", adds, how))
    if imported.clock == "relative":
        how = "pass the .wandb file or the TensorBoard events of the run, whose rows have times"
        adds = "gaps between steps, and joining logs by time"
        found.append(Check("dates", "missing", "no row has a time", adds, how))
    inferred = [f"{table}: {origin.rule}" for table, origin in imported.tables.items() if origin.rule]
    placed = [table for table, origin in imported.tables.items() if origin.certainty is Certainty.PLACED]
    if placed or inferred:
        what = "; ".join([*inferred, *([f"laid out in program order: {', '.join(placed)}"] if placed else [])])
        adds = "which phases of the two sides overlap, and how long engines take to apply new weights"
        how = "record the next run with hooks: one line or one environment variable (docs/frameworks.md)"
        found.append(Check("recorded times", "in part", what, adds, how))
    return found


def _refused(reason: str) -> Check:
    """Return the check of data that supports no verdict: the reason on the card, and the step that it ends with."""
    found, _, step = reason.rpartition("; ")
    if not found or not step.startswith(("pass ", "export ")):
        found, step = reason, "pass another file of the run, or name the metrics of the phases with --phases"
    return Check("a verdict", "missing", found, "the bottleneck, and what a change could gain", step)


def _gpus(run: Checkup) -> Check:
    assumed = [note for note in run.imported.notes if "Pass --gpus" in note] if run.imported else []
    missing = [role for role in ("trainer", "sampler") if role not in run.roles and "colocated" not in run.roles]
    sides = list(dict.fromkeys([*run.roles_without_gpus, *missing]))
    if not sides and not assumed:
        return Check("GPUs of both sides", "there", "both sides own GPUs")
    if assumed:
        return Check("GPUs of both sides", "in part", "; ".join(assumed), "GPU-hours and money", _gpu_flags(assumed))
    found = f"no GPU of the {' and the '.join(f'{side}s' for side in sides)}"
    how = "call rlscope_otel.start_run(RUN_DIR, ROLE, WORKER_ID, gpu_count=N) in each of them"
    if run.imported:
        how = "pass their log with --engine-log, or --gpus"
    return Check("GPUs of both sides", "missing", found, "the verdict, which weighs both sides, and any layout", how)


def _gpu_flags(notes: Sequence[str]) -> str:
    """Return the flags that the notes of the card name, with a value for each side."""
    sides = [side for side in ("trainer", "sampler") if any(f"{side}=N" in note for note in notes)]
    flags = [f"--gpus {','.join(f'{side}=N' for side in sides or ('trainer', 'sampler'))}"]
    per_engine = ["--gpus-per-engine N" for note in notes if "--gpus-per-engine" in note]
    return f"pass {' '.join(per_engine if len(per_engine) == len(notes) else [*flags, *per_engine])}"


def _times(run: Checkup) -> list[Check]:
    """One check for each role whose workers lack a noticeable part of their time."""
    found: list[Check] = []
    for role in sorted({worker.role for worker in run.workers}):
        own = [worker for worker in run.workers if worker.role == role]
        short = [worker for worker in own if worker.unattributed_ratio > NOTICED_RATIO]
        name = f"time of the {role} workers"
        if not short:
            worst = fmt.percent(own[0].unattributed_ratio)
            found.append(Check(name, "there", f"at most {worst} of a worker's time is in no recorded state"))
            continue
        named = [f"{fmt.percent(each.unattributed_ratio)} of {each.worker_id}" for each in short]
        words = f"{fmt.some(named, _WORKERS_NAMED)} is in no recorded state"
        how = _files(run.imported)["engine_log"] if run.imported else _wrap(role, short[0], run)
        found.append(Check(name, "in part", words, "what these GPUs do, and a reliable verdict", how))
    return found


_SAMPLER_LINES: Final = {
    "backpressure": 'wrap queue.put in run.wait("backpressure")',
    "requests": 'the wait for prompts in run.wait("requests")',
    "passes": "call run.engine_step(start_ns, end_ns, ...) after every forward pass, or, if your code does not see the "
    'passes, wrap each request in run.activity("generate")',
    "environment": 'tool calls in run.wait("environment")',
}
_TRAINER_LINES: Final = {
    "samples": 'wrap the call that takes a batch in run.wait("samples")',
    "train": "the step in run.train_step(...)",
    "logprobs": 'recomputed log-probabilities in run.activity("logprobs")',
    "others": 'rewards in run.activity("reward"); evaluation in run.activity("eval"), saving in '
    'run.activity("checkpoint")',
}
"""Lines of code by the reason or the state that shows that they are there."""


def _wrap(role: str, worker: WorkerTime, run: Checkup) -> str:
    """The lines of code that would name the time of a worker: those of waits and work that it never recorded."""
    known = {*worker.reasons, *worker.states, *(["passes"] if run.rows.get("engine_steps") else [])}
    lines = (_SAMPLER_LINES if role != "trainer" else {}) | (_TRAINER_LINES if role != "sampler" else {})
    return "; ".join(line for name, line in lines.items() if name not in known)


def _passes(run: Checkup) -> Check:
    count = run.rows.get("engine_steps", 0)
    if not count or not run.polled_engines:
        return _counted("engine_steps", run)
    found = f"{count:,} rows, polled or from a log, of {fmt.counted(len(run.polled_engines), 'engine')}"
    how = "record the engines with hooks (docs/frameworks.md): each pass is then measured"
    polled = Check("forward passes", "in part", found, "exact batch sizes and idle time between passes", how)
    return _with_losses("engine_steps", polled, run)


def _versions(run: Checkup) -> Check:
    count, name = run.rows.get("samples", 0), "versions of the tokens"
    found = f"{count - run.known_versions:,} of {count:,} segments have only the version at their admission"
    how = "pass the version to sample.tokens(n, version) with every pass, or use the engine's hooks"
    status = "in part" if run.known_versions else "missing"
    check = Check(name, status, found, "staleness added during generation", how)
    if not count:
        check = Check(name, "missing", "no samples", "staleness of every token", "comes with the samples")
    elif run.known_versions == count:
        check = Check(name, "there", "named by the engines for every segment")
    return _with_losses("samples", check, run)


def _updates(run: Checkup) -> Check:
    name, found = "weight updates", f"{run.publications:,} published, {run.applications:,} applied"
    if "colocated" in run.roles and not run.publications:
        return Check(name, "there", "the roles share their GPUs and publish nothing")
    if "colocated" in run.roles and run.imported:
        return Check(name, "there", f"{run.publications:,} published, on GPUs that the roles share")
    if run.publications and run.applications:
        return Check(name, "there", found)
    hooks = [] if run.publications else ["wrap publication in run.publish_weights(version)"]
    hooks += [] if run.applications else ["loading in run.apply_weights(version, paused=..., kv=...) on each sampler"]
    how = "the trainer's metrics name no phase for it" if run.imported else "; ".join(hooks)
    adds = "what updates cost, and whether engines run the trained weights"
    return Check(name, "in part" if run.publications or run.applications else "missing", found, adds, how)


def _settings(run: Checkup) -> Check:
    name, adds = "settings of the run", "limits that the model must know to predict another layout"
    if not run.missing_settings:
        return Check(name, "there", "every setting that the model uses")
    found = f"{', '.join(run.settings) or 'none'}; missing: {', '.join(run.missing_settings)}"
    how = (
        "pass the file that holds the config: the .wandb file, or the console log from its first line on"
        if run.imported
        else "pass config={...} to rlscope_otel.start_run (docs/trace-format.md#runjson-config)"
    )
    return Check(name, "in part" if run.settings else "missing", found, adds, how)
