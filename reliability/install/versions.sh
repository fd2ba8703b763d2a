#!/usr/bin/env bash
# Run the tests with one version of torch and each of the given interpreters, each in its own environment, and record the results.
#   reliability/install/versions.sh "torch==2.6.0" python3.10 [python3.12 ...]
# SELECT        pytest arguments that select tests, recorded with the results: SELECT="--ignore tests/view/test_browser.py"
# WORKERS       number of parallel test processes
# ENVIRONMENTS  folder in which the environments are kept for the next run (5 GB each with CUDA)
set -euo pipefail
[ $# -ge 2 ] || { echo "versions.sh: the arguments must be a version of torch and at least one interpreter, got '$*'" >&2; exit 2; }
cd "$(dirname "$0")/../.."
torch=$1
shift
environments=${ENVIRONMENTS:-out/versions}
# Determined before the run, which takes long.
commit=$("$1" -m reliability.checkout)
failed=0
venvs=()
for python in "$@"; do
  name=$("$python" -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))')-${torch//[^A-Za-z0-9.]/}
  venv=$environments/$name
  venvs+=("$venv")
  echo "== $name"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --no-cache-dir --upgrade pip
  "$venv/bin/python" -m pip install --quiet --no-cache-dir "$torch" numpy
  # A separate build folder: all interpreters from 3.12 on would share the one for the stable ABI.
  "$venv/bin/python" -m pip install --quiet --no-cache-dir --config-settings=build-dir="$venv/build" --editable ".[test]"
  rm -f "$venv/report.xml"
  # shellcheck disable=SC2086  # SELECT may contain several words
  "$venv/bin/python" -m pytest -q -n "${WORKERS:-auto}" -p no:cacheprovider --junitxml "$venv/report.xml" ${SELECT:-} || failed=1
done
# Recorded after all runs, since tests compare the README with the results.
for venv in "${venvs[@]}"; do
  "$venv/bin/python" -m reliability.install.versions "$venv/report.xml" --selection "${SELECT:-}" \
    --commit "$commit" --out reliability/results/versions.json || failed=1
done
exit $failed
