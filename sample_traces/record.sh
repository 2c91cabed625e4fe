#!/usr/bin/env bash
# Records the sample traces again, all or those named: sample_traces/record.sh [NAME ...]
# Needs torch (make record installs it) and, for figures that mean something, two idle cores. What vLLM takes part in
# needs the environment of `make pipelines-vllm`, and is left as it is without one.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=" $* "
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

record() {
    local name=$1
    shift
    if [[ $wanted != "  " && $wanted != *" $name "* ]]; then return; fi
    echo "== $name: $*"
    "${PYTHON:-python3}" -m examples.pipeline_rl "$scratch/$name" --flush-interval-s 5 --log-every 20 "$@"
    rm -rf "$scratch/$name/checkpoints" "sample_traces/$name"
    mv "$scratch/$name" "sample_traces/$name"
}

record pipeline --steps 160 --slow-trainer 1.06 --eval-every 40 --checkpoint-every 80
record starved_trainer --steps 120 --samplers 2 --slots 8 --slow-sampler 3
record starved_trainer_after --steps 120 --samplers 2 --slots 32 --slow-sampler 3
record capped_staleness --steps 120 --batch 32 --slow-sampler 1.6 --staleness-policy publication_waits --max-staleness 1
record overproduction --steps 60 --slow-trainer 4 --queue-capacity-samples 512 --max-staleness 2
record synchronous --steps 80 --slots 64 --synchronous
record fleet --steps 80 --trainers 5 --samplers 5 --slow 8 --no-pin --slow-sampler 2 --slow-sampler-id sampler-3 --batch 96 \
    --queue-capacity-samples 192

record_vllm() {
    local name=$1 python=${VLLM_PYTHON:-.venv-vllm/bin/python}
    shift
    if [[ $wanted != "  " && $wanted != *" $name "* ]]; then return; fi
    if [[ ! -x $python ]]; then
        echo "== $name: skipped, there is no $python"
        return
    fi
    echo "== $name: $*"
    "$python" -m "$1" "$scratch/$name" --flush-interval-s 5 "${@:2}"
    rm -rf "$scratch/$name/vllm_serve.log" "sample_traces/$name"
    mv "$scratch/$name" "sample_traces/$name"
}

record_vllm vllm_trl examples.trl_async --engine vllm --steps 80
