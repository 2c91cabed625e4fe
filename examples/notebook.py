# %% [markdown]
# # A recorded run in a notebook
#
# VS Code, PyCharm and Jupytext open this file as a notebook. The run is a recording of TRL with vLLM that
# comes with the repository; put the folder of your own run in its place.

# %%
from pathlib import Path

import rlscope

here = Path(globals().get("__file__", "examples/notebook.py")).resolve()
recorded = here.parents[1] / "sample_traces" / "vllm_trl"

# %% [markdown]
# ## Ask the recording
#
# A question by its name, with units in the names of its columns; `rlscope queries` lists them all. Or a SELECT of your
# own over the tables of the trace. Both answer as polars frames.

# %%
with rlscope.open(recorded) as run:
    by_step = run.query("token_staleness_by_step")
    passes = run.sql("""
        SELECT worker_id, count(*) AS passes, avg(running) AS running_mean
        FROM engine_steps GROUP BY worker_id ORDER BY worker_id
    """)
by_step.select("step", "tokens", "staleness_mean", "staleness_max").tail(5)

# %%
passes

# %% [markdown]
# ## Analyze it
#
# Last in a cell, an analysis shows itself as a card: the verdict, where the GPU time went, and the recommended layout.

# %%
analysis = rlscope.analyze(recorded)
analysis

# %%
tokens = analysis.staleness.tokens
print(f"bottleneck: {analysis.verdict.bottleneck}")
print(f"trained: {analysis.throughput.steady_tokens_per_s:,.0f} tokens/s over the steady state")
print(f"staleness: p95 {tokens.p95}, at most {tokens.max} versions")
for finding in analysis.findings:
    cost = "" if finding.cost_gpu_s is None else f", {finding.cost_gpu_s:.1f} GPU-s"
    print(f"{finding.severity}: {finding.rule}{cost}")

# %% [markdown]
# ## Look at it
#
# The charts of the HTML report, as Altair charts; `dir(analysis.charts)` lists those that this run has.

# %%
analysis.charts.workers_all()

# %%
analysis.charts.staleness_heat()

# %% [markdown]
# ## Ask the model
#
# What would change with a training step twice as fast, and with fewer requests in flight?

# %%
faster = analysis.what_if(trainer_speed=2)
fewer = analysis.what_if(max_running=8)
[faster, fewer]

# %%
gain = fewer.gain_ratio
print(f"{gain.value:+.1%} trained tokens/s, 90% interval {gain.low:+.1%} to {gain.high:+.1%}")

# %% [markdown]
# ## Compare it with another
#
# Two recordings of one pipeline: the second carried out what the analysis of the first recommended. The comparison
# shows itself as a card; its charts have both runs on one scale.

# %%
traces = here.parents[1] / "sample_traces"
compared = rlscope.compare(traces / "starved_trainer", traces / "starved_trainer_after")
compared

# %%
rate = compared.pairs[0].differences.row("tokens_per_s")
print(f"{rate.change:+.1%} trained tokens/s, 95% interval {rate.low:+.1%} to {rate.high:+.1%}")
compared.charts.staleness()

# %% [markdown]
# ## Plan the next run
#
# Without a recording: `rlscope plan --example > plan.toml` writes a plan to start from.

# %%
example = here.parents[1] / "rlscope" / "planning" / "example.toml"
answer = rlscope.plan(example)
answer

# %% [markdown]
# ## Check it in CI
#
# The built-in alert rules, or a limit of your own; `rlscope check` does the same with an exit code.

# %%
checked = rlscope.check(recorded, fail_if="staleness.tokens.p95 > 4")
print(checked.to_text())
