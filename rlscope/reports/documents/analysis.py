"""The analysis as a JSON document. The named keys are a contract (`schema_version`): they are only ever added to.

Numbers are as measured, in the unit that their name ends in; what is not known is null, and NaN never appears.
"""

from typing import Final

from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.result import Analysis, Finding, Ledger, RunFacts, Staleness, TokenStaleness, Verdict
from rlscope.format import finite
from rlscope.reports.documents.check import alert_document
from rlscope.reports.documents.layouts import Json
from rlscope.reports.documents.model import model_documents, predicted_document
from rlscope.reports.text import findings
from rlscope.reports.text import verdict as verdict_words

SCHEMA_VERSION: Final = 1


def as_document(analysis: Analysis) -> dict[str, Json]:
    """The whole analysis, ready for `json.dumps(..., allow_nan=False)`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": _run(analysis.run),
        "verdict": _verdict(analysis.verdict, analysis),
        "throughput": {
            "achieved_tokens_per_s": finite(analysis.throughput.achieved_tokens_per_s),
            "steady_tokens_per_s": finite(analysis.throughput.steady_tokens_per_s),
            "generated_tokens_per_s": finite(analysis.throughput.generated_tokens_per_s),
            **predicted_document(analysis.model),
        },
        "ledger": _ledger(analysis.ledger),
        "staleness": _staleness(analysis.staleness),
        **model_documents(analysis.model, analysis.run),
        "findings": [_finding(finding) for finding in analysis.findings],
        "alerts": [alert_document(alert) for alert in analysis.alerts],
        "data_quality": _data_quality(analysis.data_quality),
    }


def _run(run: RunFacts) -> dict[str, Json]:
    window = run.window
    return {
        "run_id": run.run_id,
        "started_ns": run.started_ns,
        "duration_s": finite(run.duration_s),
        "n_gpus": run.n_gpus,
        "trainer_gpus": run.trainer_gpus,
        "sampler_gpus": run.sampler_gpus,
        "colocated_gpus": run.colocated_gpus,
        "steps": run.steps,
        "samples_trained": run.samples_trained,
        "tokens_trained": run.tokens_trained,
        "max_staleness": run.max_staleness,
        "window": window
        and {
            "start_ns": window.start_ns,
            "end_ns": window.end_ns,
            "first_step": window.first_step,
            "last_step": window.last_step,
            "reason": run.window_reason,
        },
        "window_reason": run.window_reason,
    }


def _verdict(verdict: Verdict, analysis: Analysis) -> dict[str, Json]:
    return {
        "bottleneck": verdict.bottleneck,
        "alarm": verdict_words.alarm(analysis),
        "headline": verdict_words.headline(analysis),
        "why": verdict_words.why(analysis),
        "next": verdict_words.next_step(analysis),
        "unknown_reason": verdict.unknown_reason,
        "losses": [
            {"cause": loss.cause, "gpu_s": finite(loss.gpu_s), "side_share_ratio": finite(loss.side_share_ratio)}
            for loss in verdict.losses
        ],
        "start_ns": verdict.start_ns,
        "end_ns": verdict.end_ns,
    }


def _ledger(ledger: Ledger) -> dict[str, Json]:
    return {
        "total_gpu_s": ledger.total_gpu_s,
        "total_gpu_ns": ledger.total_gpu_ns,
        "states": [
            {
                "role": state.role,
                "state": state.state,
                "reason": state.reason,
                "gpu_s": state.gpu_s,
                "gpu_ns": state.gpu_ns,
                "share_ratio": finite(state.share_ratio),
                "gpu_idle_ratio": finite(state.gpu_idle_ratio),
                "underfilled_gpu_s": None if state.underfilled_gpu_ns is None else state.underfilled_gpu_ns / 1e9,
                "underfilled_gpu_ns": state.underfilled_gpu_ns,
            }
            for state in ledger.states
        ],
    }


def _staleness(staleness: Staleness) -> dict[str, Json]:
    samples = staleness.samples
    return {
        "tokens": staleness.tokens and _token_staleness(staleness.tokens),
        "samples": samples and {"mean": finite(samples.mean), "max": samples.max},
        "in_flight_mean": finite(staleness.in_flight_mean),
        "in_queue_mean": finite(staleness.in_queue_mean),
        "over_cap_tokens": staleness.over_cap_tokens,
        "version_source": dict(staleness.version_source_tokens),
    }


def _token_staleness(tokens: TokenStaleness) -> dict[str, Json]:
    return {
        "mean": finite(tokens.mean),
        "p50": tokens.p50,
        "p95": tokens.p95,
        "p99": tokens.p99,
        "max": tokens.max,
        "histogram": [{"staleness": age, "tokens": count} for age, count in tokens.histogram],
    }


def _finding(finding: Finding) -> dict[str, Json]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "title": findings.title(finding),
        "sentence": findings.sentence(finding),
        "remedy": findings.remedy(finding),
        "cost_gpu_s": finite(finding.cost_gpu_s),
        "evidence": {key: finite(v) if isinstance(v, float) else v for key, v in finding.evidence.items()},
        "start_ns": finding.start_ns,
        "end_ns": finding.end_ns,
    }


def _data_quality(quality: DataQuality) -> dict[str, Json]:
    return {
        "skipped_files": [{"path": file.path, "why": file.why} for file in quality.skipped_files],
        "dropped_rows": dict(quality.dropped_rows),
        "workers_without_end": list(quality.workers_without_end),
        "clock_offsets": [
            {
                "host": offset.host,
                "against": offset.against,
                "offset_s": finite(offset.offset_s),
                "uncertainty_s": finite(offset.uncertainty_s),
            }
            for offset in quality.clock_offsets
        ],
        "gaps": list(quality.gaps),
        "sampled_engines": [
            {
                "worker_id": engine.worker_id,
                "interval_s": finite(engine.interval_s),
                "knows_busy": engine.knows_busy,
            }
            for engine in quality.sampled_engines
        ],
    }
