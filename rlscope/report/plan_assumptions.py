"""What the answer to a plan rests on: every figure that was taken for true, in sentences with their numbers."""

from rlscope.model.plan import Planned, hours_of
from rlscope.model.planned import Plan
from rlscope.plan_file import PlanFile
from rlscope.report import numbers

NOTHING_MEASURED = (
    "Nothing here was measured. Answers from data sheets are often off by a third and more: record some twenty steps, "
    "and ask `rlscope analyze`."
)


def assumption_lines(planned: Planned) -> list[str]:
    """Device, model, lengths, decoding, training and updates, as the plan has them."""
    plan = planned.plan
    lines = [_device(plan), _model(planned), _lengths(plan), _decoding(plan), _training(planned), _updates(planned)]
    return [*lines, "Engines are alike, lengths stay as they are, and links between GPUs cost nothing of their own."]


def cost_line(planned: Planned, file: PlanFile) -> str | None:
    """How long the whole run takes in the best layout, and its price; None where the plan does not say."""
    steps, price = file.batch.steps, file.price
    hours = None if steps is None else hours_of(planned, steps)
    if steps is None or hours is None:
        return None
    gpu_s = hours.median * planned.plan.gpus * 3600.0
    time = numbers.with_interval(lambda value: numbers.duration(None if value is None else value * 3600.0), *hours)
    money = numbers.money(gpu_s, price.gpu_hour, price.currency)
    text = f"{numbers.counted(steps, 'step', 'steps')} take {time}: {numbers.gpu_time(gpu_s)}"
    return f"{text}, {money}." if money else f"{text}."


def _device(plan: Plan) -> str:
    device = plan.device
    peak, bandwidth = numbers.in_unit(device.bf16_flop_per_s, "FLOP/s"), numbers.size(device.bandwidth_bytes_per_s)
    return (
        f"{numbers.counted(plan.gpus, 'GPU', 'GPUs')}, {device.name}: {peak} in dense bf16, {bandwidth}/s, "
        f"{numbers.size(device.memory_bytes)} each."
    )


def _model(planned: Planned) -> str:
    plan = planned.plan
    shape, gpus = plan.shape, plan.granularity.gpus_per_engine
    token_bytes = shape.kv_bytes_per_token(gpus)
    active = f", {numbers.si(shape.active_parameters)} a token" if shape.active_parameters else ""
    return (
        f"{numbers.si(shape.parameters)} parameters{active}; an engine of {numbers.counted(gpus, 'GPU', 'GPUs')} holds "
        f"{numbers.tokens(plan.kv_capacity_tokens)} of KV cache, {numbers.size(token_bytes)} each: "
        f"{numbers.counted(int(planned.kv_running), 'request', 'requests')} safely."
    )


def _lengths(plan: Plan) -> str:
    law, workload = plan.workload.lengths, plan.workload
    capped = "" if law.cap_tokens is None else f", {numbers.percent(law.capped_ratio)} at the cap of {law.cap_tokens:,}"
    prompts = numbers.tokens(workload.prompt_tokens)
    law_from = "lognormal" if plan.lengths_from is None else f"as recorded in {plan.lengths_from}"
    return f"Responses of {numbers.tokens(law.mean_tokens)} on average{capped}, after prompts of {prompts}, {law_from}."


def _decoding(plan: Plan) -> str:
    decode = plan.decode
    return (
        f"Decode passes read weights at {numbers.percent(decode.weight_bandwidth_ratio)} and the KV cache at "
        f"{numbers.percent(decode.kv_bandwidth_ratio)} of the bandwidth, and compute at "
        f"{numbers.percent(decode.compute_ratio)} of the peak."
    )


def _training(planned: Planned) -> str:
    guess, trainer = planned.plan.training, planned.calibration.system.trainer
    by = "as stated" if guess.tokens_per_gpu_s is not None else f"{numbers.percent(guess.mfu_ratio.median)} of the peak"
    seen = numbers.counted(trainer.seen_gpus, "GPU", "GPUs")
    power = numbers.significant(guess.scaling_exponent)
    power += f" ± {numbers.significant(guess.scaling_exponent_sd)}" if guess.scaling_exponent_sd else ""
    return (
        f"Training runs at {numbers.tokens_per_second(trainer.tokens_per_gpu_s)} a GPU with {seen}, {by}, and grows as "
        f"their number to the power of {power}; it holds "
        f"{numbers.size(guess.state_bytes)} of weights, gradients and optimizer."
    )


def _updates(planned: Planned) -> str:
    update = planned.calibration.system.update
    seconds = max(update.engine_pause_s, update.trainer_blocked_s, update.delay_s)
    if seconds == 0.0:
        return "New weights reach the engines at no cost."
    stopped = [
        name
        for name, held_s in (("engines", update.engine_pause_s), ("trainers", update.trainer_blocked_s))
        if held_s > 0.0
    ]
    held = f"{' and '.join(stopped)} stand still" if stopped else "nothing stands still"
    return f"New weights take {numbers.duration(seconds)}, while {held}."
