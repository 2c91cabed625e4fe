"""Log density of a decode curve's vectors: the prior of its parameters times the likelihood of the passes.

It is built once for a form and its passes, and evaluated for many vectors at a time. A fit evaluates it thousands of
times for a hundred vectors, and each call of an array function costs more than its few numbers, so calls are kept few:
the normal priors are one matrix, and all batch sizes with any information are one row. Not covered: the meaning of the
parameters and where to search; see `posterior`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.decode.posterior import (
    FARTHEST,
    FORM_ERROR,
    GROWTH_UNIT,
    HIT_RATE,
    LINEAR_UNITS,
    OVERHEAD_UNIT_S,
    RESIDUAL,
    ROOT_2_PI,
    ROW_NOISE,
    FormModel,
    PassEvidence,
    Reference,
    work_s,
)
from rlscope.model.decode.prior import LogNormal

_SHARPNESS_UNKNOWN: Final = LogNormal(1.7, 0.5)
"""Exponent p over GPUs and CPUs: CPUs and small models mostly add up the costs of a pass (p = 1)."""
_LEVEL_LOG_SD: Final = 2.0
"""Log deviation of the flat branch about a typical pass if no device is known: it only keeps the search bounded."""
_STEP_SCALE: Final = 0.2
_LISTED_RATIO: Final = 0.3
"""If no device is known, the probability that its hinge is that of a listed GPU."""
_LISTED_HINGE: Final = LogNormal(200.0, 0.7)
"""Operations over bytes per second of the listed devices: 37 to 420, mostly 150 to 300."""
_PART_LOG_SD: Final = 1.5
"""Log deviation of parts of an expert curve whose size is unknown: within a factor of twenty."""


class Law(NamedTuple):
    """A normal prior of a weighted sum of parameters, up to a constant."""

    weights: Mapping[str, float]
    mean: float
    sd: float
    log_constant: float = 0.0


def _normal(expected: LogNormal, **weights: float) -> Law:
    constant = -math.log(expected.log_sd * ROOT_2_PI)
    return Law(weights, math.log(expected.median), expected.log_sd, constant)


def _half_normal(name: str, scale: float) -> Law:
    """Half-normal prior of a parameter that is 0 or more, in the vector's units."""
    return Law({name: 1.0}, 0.0, scale)


class CurveDensity:
    """Log of prior times likelihood, up to a constant that all forms share."""

    def __init__(self, model: FormModel, evidence: PassEvidence) -> None:
        self._model, self._evidence, self._prompts = model, evidence, model.prompts
        names = model.names
        self._units = np.array([LINEAR_UNITS.get(name, 0.0) for name in names])
        self._least, self._most = np.maximum(model.least, np.nextafter(-FARTHEST, 0.0)), np.nextafter(FARTHEST, 0.0)
        self._lay_out_laws(names)
        self._lay_out_sizes()
        self._errors = [names.index(name) for name in ("residual", "row_noise", "form_error")]
        # With a device, the priors include that of its hinge.
        unknown = model.form != "expert_hit" and model.shape_prior is None
        self._log_running = math.log(model.reference.running) if unknown and model.reference else None

    def _lay_out_laws(self, names: tuple[str, ...]) -> None:
        laws = tuple(laws_of(self._model))
        self._law_weights = np.array([[each.weights.get(name, 0.0) / each.sd for each in laws] for name in names])
        self._law_means = np.array([each.mean / each.sd for each in laws])
        self._law_constant = sum(each.log_constant for each in laws)

    def _lay_out_sizes(self) -> None:
        """Combine the batch sizes of the cells, of passes over prompts, and of the typical pass into one row."""
        model, evidence = self._model, self._evidence
        prompts, reference = model.prompts, _compared_kv(model)
        running, log_s, kv_tokens = [evidence.running], [evidence.log_pass_s], [evidence.kv_tokens]
        self._cells = self._known = len(evidence.running)
        if prompts is not None:
            self._known += len(prompts.tokens)
            running.append(prompts.tokens)
            log_s.append(np.log(prompts.pass_s))
            kv_tokens.append(prompts.kv_tokens)
        if reference is not None and reference.kv_tokens is not None:
            running.append(np.array([reference.running]))
            log_s.append(np.log([reference.kv_tokens]))
            kv_tokens.append(np.zeros(1))
        self._running, self._log_s = np.concatenate(running), np.concatenate(log_s)
        self._kv_tokens = np.concatenate(kv_tokens) if model.has_kv else None
        self._kv = model.names.index("kv_s_per_token") if reference is not None else None
        self._is_pass = np.arange(len(self._running)) < self._known

    def __call__(self, vectors: Reals) -> Reals:
        """Log density per row of vectors; -inf if a parameter is out of its bounds."""
        feasible = ((vectors >= self._least) & (vectors <= self._most)).all(axis=-1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            factors = np.exp(vectors)
            log_ratio = np.log(self._pass_s(vectors, factors)) - self._log_s
            of_laws = np.einsum("ij,jk->ik", vectors, self._law_weights) - self._law_means
            total = self._law_constant - np.einsum("ij,ij->i", of_laws, of_laws) / 2
            if self._log_running is not None:
                total += _log_unknown_hinge(vectors[:, self._model.names.index("hinge")], self._log_running)
            if self._kv is not None:
                total += _logistic(vectors[:, self._kv] - log_ratio[:, -1])
            if self._prompts is not None:
                total += self._prompts.log_density(log_ratio[:, self._cells : self._known])
            residual, row_noise, form_error = (factors[:, number, None] for number in self._errors)
            total += self._evidence.log_likelihood(log_ratio[:, : self._cells], residual, row_noise, form_error)
        return np.where(feasible & np.isfinite(total), total, -np.inf)

    def _pass_s(self, vectors: Reals, factors: Reals) -> Reals:
        """Seconds at each batch size; at the typical one only the work, which the KV term is compared with."""
        names = self._model.names
        given = {
            name: vectors[:, number, None] * unit if unit else factors[:, number, None]
            for number, (name, unit) in enumerate(zip(names, self._units.tolist(), strict=True))
        }
        pass_s = work_s(self._model.form, given, self._running)
        if "overhead_s" in given:
            pass_s = pass_s + given["overhead_s"] * self._is_pass
        return pass_s if self._kv_tokens is None else pass_s + given["kv_s_per_token"] * self._kv_tokens


def _compared_kv(model: FormModel) -> Reference | None:
    """Return the typical pass if the KV term may be any share of it, equally likely; None if a device is known."""
    known = model.prior is not None and model.prior.kv_s_per_token is not None
    return model.reference if model.has_kv and not known else None


def laws_of(model: FormModel) -> Iterator[Law]:
    """Yield the normal priors of the vector's parameters."""
    yield _normal(RESIDUAL, residual=1.0)
    yield _normal(ROW_NOISE, row_noise=1.0)
    yield _normal(FORM_ERROR, form_error=1.0)
    if model.prior is not None:
        yield _half_normal("overhead_s", model.prior.overhead_scale_s / OVERHEAD_UNIT_S)
        if model.has_kv and model.prior.kv_s_per_token is not None:
            yield _normal(model.prior.kv_s_per_token, kv_s_per_token=1.0)
    yield from _expert_laws(model) if model.form == "expert_hit" else _dense_laws(model)


def _dense_laws(model: FormModel) -> Iterator[Law]:
    shapes, hardware = model.shapes, model.shape_prior
    slope = {"flat_s": 1.0, "hinge": -1.0}
    if model.form == "pnorm":
        yield _normal(_SHARPNESS_UNKNOWN if model.prior is None else shapes.sharpness, sharpness=1.0)
    else:
        is_softplus = model.form == "softplus"
        yield _normal(shapes.softplus_width if is_softplus else shapes.sigmoid_width, width=1.0)
        yield _normal(shapes.softplus_rise if is_softplus else shapes.sigmoid_rise, rise=1.0)
        slope["rise"] = 1.0
    if model.form == "sigmoid":
        yield Law({"step": 1.0}, 0.0, _STEP_SCALE, -math.log(_STEP_SCALE * ROOT_2_PI / 2))
    yield _half_normal("growth", shapes.growth_scale / GROWTH_UNIT)
    if hardware is not None:
        yield _normal(hardware.flat_s, flat_s=1.0)
        yield _normal(hardware.per_request_s, **slope)
        return
    assert model.reference is not None
    yield _normal(LogNormal(model.reference.pass_s, _LEVEL_LOG_SD), flat_s=1.0)


def _expert_laws(model: FormModel) -> Iterator[Law]:
    hardware = model.shape_prior
    if hardware is not None and hardware.experts is not None:
        yield _normal(hardware.flat_s, flat_s=1.0)
        yield _normal(hardware.per_request_s, per_request_s=1.0)
        yield _normal(hardware.experts.experts_s, experts_s=1.0)
        yield _normal(hardware.experts.hit_rate, hit_rate=1.0)
        return
    assert model.reference is not None
    yield _normal(LogNormal(model.reference.pass_s, _LEVEL_LOG_SD), flat_s=1.0)
    yield _normal(LogNormal(1.0, _PART_LOG_SD), experts_s=1.0, flat_s=-1.0)
    # Work of the typical batch over the flat branch.
    yield _normal(LogNormal(1.0 / model.reference.running, _PART_LOG_SD), per_request_s=1.0, flat_s=-1.0)
    yield _normal(HIT_RATE, hit_rate=1.0)


def _log_unknown_hinge(log_hinge: Reals, log_running: float) -> Reals:
    """Log density of a hinge if no device is known: that of a listed device, or any near the batches seen.

    The logistic distribution has scale 1. For the p-norm, scale 1/p would make all elasticities between 0 and 1 at the
    batch sizes seen equally likely, and p is about 2.
    """
    deviation = (log_hinge - math.log(_LISTED_HINGE.median)) / _LISTED_HINGE.log_sd
    constant = math.log(_LISTED_RATIO) - math.log(_LISTED_HINGE.log_sd * ROOT_2_PI)
    return np.logaddexp(constant - deviation**2 / 2, math.log1p(-_LISTED_RATIO) + _logistic(log_hinge - log_running))


def _logistic(distance: Reals) -> Reals:
    """Log density of the logistic distribution: that of log(s / (1 - s)) if s is uniform between 0 and 1."""
    away = np.abs(distance)
    return -away - 2 * np.log1p(np.exp(-away))
