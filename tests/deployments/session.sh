#!/usr/bin/env bash
# The README's session, run for real: serve, run, kill the worker, resume, evaluations fire. Prints commands and output.
# Writes runs/demo (which must not be there). Usage: tests/deployments/session.sh [flags of `seeker serve`]
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PWD/.venv/bin:$PATH COLUMNS=120 # else the tables cut the states that are looked for
seeker() { python -m flows.cli "$@"; } # what .venv/bin/seeker is, of this checkout
test ! -e runs/demo || { echo "runs/demo is there: move it away first" >&2; exit 2; }
log=$(mktemp)
shown=0

show() { printf '\n$ %s\n' "$1"; }
run() { show "$1"; eval "$1" 2>&1 | sed 's/ *$//' | grep -v '^$' || true; }
first_terminal() { tail -n +$((shown + 1)) "$log" | sed 's/^/  | /'; shown=$(wc -l < "$log"); }
version() { python -c 'import json, pathlib; p = pathlib.Path("runs/demo/LATEST"); print(json.loads(p.read_text())["policy_version"] if p.is_file() else 0)'; }
evaluations() { prefect flow-run ls --flow-name evaluate --state COMPLETED --limit 200 | grep -c COMPLETED || true; }

show "make serve                              # in a first terminal, whose lines begin with |"
python -m flows.cli serve "$@" > "$log" 2>&1 &  # not the function: a signal must reach Python itself
serve=$!
trap 'kill -TERM $serve 2>/dev/null; wait $serve' EXIT
until grep -q "param steps=80" "$log"; do kill -0 $serve; sleep 1; done
first_terminal
address=$(sed -n 's/.*export PREFECT_API_URL=//p' "$log")
run "export PREFECT_API_URL=$address PATH=.venv/bin:\$PATH"
export PREFECT_API_URL=$address
before=$(evaluations)

run "prefect deployment run 'train/train' --param preset=micro --param run_id=demo --param steps=40"
until [ "$(version)" -ge 6 ]; do sleep 0.2; done
run "seeker runs"
worker=$(pgrep -P $serve -f flows.serving.worker)
run "kill -9 $worker                            # the worker"
until grep -q "worker is up again" "$log"; do sleep 0.5; done
first_terminal
run "seeker runs"
run "prefect flow-run ls --flow-name train --limit 1"
run "prefect deployment run 'train/train' --param run_id=demo --watch | grep -E 'Created|flow-run.R|flow-run.C|Completed . evaluate-|finished'"
until [ "$(evaluations)" -gt "$before" ]; do sleep 1; done
run "prefect flow-run ls --flow-name evaluate --state COMPLETED --limit 1    # the trigger fired"

run "rm runs/demo/evaluations/000012-heldout-greedy.*                       # an evaluation gets lost"
run "prefect --no-prompt deployment schedule create evaluate/evaluate --interval 60 --accept-yes   # to see it sooner"
until [ -f runs/demo/evaluations/000012-heldout-greedy.json ]; do sleep 1; done
before=$(evaluations)
until [ "$(evaluations)" -gt "$before" ]; do sleep 1; done
run "prefect deployment schedule ls evaluate/evaluate"
run "prefect flow-run ls --flow-name evaluate --state COMPLETED --limit 2"
run "ls runs/demo/evaluations/000012-heldout-greedy.*"
run "seeker runs"
show "(Ctrl-C in the first terminal)"
kill -INT $serve
trap - EXIT
wait $serve || true
first_terminal
