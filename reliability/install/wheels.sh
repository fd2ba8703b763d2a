#!/usr/bin/env bash
# Build wheels from the source distribution and test them like a user installation: in an empty environment with only torch
# and numpy, and without a compiler. There is one wheel each for 3.10, 3.11, 3.12 and later, and free-threaded Python.
#   reliability/install/wheels.sh "torch==2.6.0" python3.10 [python3.12 ...]
# WHEELS  folder in which wheels and environments are kept for the next run (5 GB each with CUDA)
set -euo pipefail
[ $# -ge 2 ] || { echo "wheels.sh: the arguments must be a version of torch and at least one interpreter, got '$*'" >&2; exit 2; }
cd "$(dirname "$0")/../.."
torch=$1
shift
out=$(realpath -m "${WHEELS:-out/wheels}")
mkdir -p "$out"
rm -f "$out"/pointgrad-*
[ -x "$out/tools/bin/python" ] || "$1" -m venv "$out/tools"
"$out/tools/bin/python" -m pip install --quiet --no-cache-dir build auditwheel twine
# Determined before the run, which takes long.
commit=$("$1" -m reliability.checkout)
"$out/tools/bin/python" -m build --sdist --outdir "$out" . >/dev/null
for python in "$@"; do
  name=$("$python" -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))')-${torch//[^A-Za-z0-9.]/}
  venv=$out/$name
  echo "== $name"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  # Only the dependencies of the wheel: other packages could hide a missing one.
  "$venv/bin/python" -m pip install --quiet --no-cache-dir "$torch" numpy
  "$venv/bin/python" -m pip uninstall --quiet --yes pointgrad
  install=("$venv/bin/python" -m pip install --quiet --no-deps --no-index --only-binary :all: --find-links "$out" pointgrad)
  if ! "${install[@]}" 2>/dev/null; then
    "$venv/bin/python" -m pip wheel --quiet --no-deps --no-cache-dir --wheel-dir "$out" "$out"/pointgrad-*.tar.gz
    "${install[@]}"
  fi
  wheel=$("$venv/bin/python" - "$out"/pointgrad-*.whl <<'PY'
import sys
from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import parse_wheel_filename
tags = {tag: rank for rank, tag in enumerate(sys_tags())}
rank = lambda path: min((tags[t] for t in parse_wheel_filename(path.rpartition("/")[2])[3] if t in tags), default=len(tags))
print(min(sys.argv[1:], key=rank))
PY
  )
  "$out/tools/bin/python" -m twine check --strict "$wheel"
  "$out/tools/bin/python" -m auditwheel show "$wheel" >"$venv/tags.txt"
  # Without a compiler, build tools and the checkout.
  env -i HOME="$venv" PATH="$venv/bin" CC=/bin/false CXX=/bin/false \
    "$venv/bin/python" -I -W error reliability/install/smoke.py >"$venv/smoke.json"
  "$venv/bin/python" -m reliability.install.wheels "$wheel" --sdist "$out"/pointgrad-*.tar.gz \
    --tags "$venv/tags.txt" --smoke "$venv/smoke.json" --commit "$commit" --out reliability/results/wheels.json
done
