#!/usr/bin/env bash
# Runs the README's session for real: serve, run, kill the worker, resume, the scheduled evaluation fires.
# Needs the project's environments; leaves runs/demo behind. Usage: tests/deployments/session.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
say() { printf '\n$ %s\n' "$*"; }
run() { say "$*"; eval "$*" 2>&1; }
serve_log=$(mktemp)
rm -rf runs/demo

say "make serve"
.venv/bin/python -m flows.cli serve "$@" > "$serve_log" 2>&1 &
serve=$!
trap 'kill -TERM $serve 2>/dev/null; wait $serve' EXIT
until grep -q "another terminal" "$serve_log"; do sleep 1; kill -0 $serve; done
sleep 1; cat "$serve_log"; shown=$(wc -l < "$serve_log")
export PREFECT_API_URL=$(sed -n 's/.*export PREFECT_API_URL=//p' "$serve_log")

run ".venv/bin/prefect deployment run 'train/train' --param preset=micro --param run_id=demo --param steps=40 | grep -v '^$'"
until [ -f runs/demo/LATEST ] && [ "$(.venv/bin/python -c 'import json; print(json.load(open("runs/demo/LATEST"))["policy_version"] >= 6)')" = True ]; do sleep 0.5; done
run ".venv/bin/python -m flows.cli runs"
worker=$(pgrep -P $serve -f flows.serving.worker)
run "kill -9 $worker    # the worker"
until grep -q "worker is up again" "$serve_log"; do sleep 0.5; done
echo "  (the first terminal says)"; tail -n +$((shown + 1)) "$serve_log"
run ".venv/bin/prefect flow-run ls --limit 3"
run ".venv/bin/python -m flows.cli runs"
run ".venv/bin/prefect deployment run 'train/train' --param run_id=demo --watch 2>&1 | grep -E 'Created|flow-run\.|evaluate-0000|finished'"
run ".venv/bin/python -m flows.cli runs"
rm runs/demo/evaluations/000012-heldout-greedy.*
say "rm runs/demo/evaluations/000012-heldout-greedy.*    # an evaluation gets lost"
run ".venv/bin/prefect deployment schedule create evaluate/evaluate --interval 60 | grep -v '^$'    # to see it sooner"
until [ -f runs/demo/evaluations/000012-heldout-greedy.json ]; do sleep 1; done
run ".venv/bin/prefect deployment schedule ls evaluate/evaluate"
run ".venv/bin/prefect flow-run ls --flow-name evaluate --state COMPLETED --limit 2"
run "ls -l --time-style=+%H:%M:%S runs/demo/evaluations/000012-heldout-greedy.json"
say "(Ctrl-C in the first terminal)"
shown=$(wc -l < "$serve_log"); kill -INT $serve; wait $serve || true; trap - EXIT
tail -n +$((shown + 1)) "$serve_log"
