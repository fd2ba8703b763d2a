#!/usr/bin/env bash
# The test suite on each given Python, with one torch: an environment each, a build, a run, an entry in the results.
#   reliability/install/versions.sh "torch==2.6.0" python3.10 [python3.12 ...]
# SELECT, arguments of pytest that leave tests out, is written beside the counts: SELECT="--ignore tests/view/test_browser.py".
# WORKERS is how many tests run at once; ENVIRONMENTS where environments are kept for the next time (5 GB each with CUDA).
set -euo pipefail
[ $# -ge 2 ] || { echo "versions.sh: the arguments must be a torch and at least one Python, got '$*'" >&2; exit 2; }
cd "$(dirname "$0")/../.."
torch=$1
shift
environments=${ENVIRONMENTS:-out/versions}
# Of what is tried: taken before the run, which takes long.
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
  # A build folder of its own: one stable-ABI folder would be shared by every Python from 3.12 on.
  "$venv/bin/python" -m pip install --quiet --no-cache-dir --config-settings=build-dir="$venv/build" --editable ".[test]"
  rm -f "$venv/report.xml"
  # shellcheck disable=SC2086  # SELECT is several words
  "$venv/bin/python" -m pytest -q -n "${WORKERS:-auto}" -p no:cacheprovider --junitxml "$venv/report.xml" ${SELECT:-} || failed=1
done
# Not before: tests compare the README with the results.
for venv in "${venvs[@]}"; do
  "$venv/bin/python" -m reliability.install.versions "$venv/report.xml" --selection "${SELECT:-}" \
    --commit "$commit" --out reliability/results/versions.json || failed=1
done
exit $failed
