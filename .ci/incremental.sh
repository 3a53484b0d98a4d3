#!/usr/bin/env bash
# What a contributor waits for: the setup lines of CONTRIBUTING.md in a copy of the checkout, then one changed line of C++
# until a test of it has run, twice, and a changed comment. Only what depends on the line may be compiled, in at most
# SECONDS_ALLOWED (30). Takes WORKDIR.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PIP_NO_COMPILE # the first import would take the time of a test
work=$1 allowed=${SECONDS_ALLOWED:-30}
mkdir -p "$work/copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/copy"
setup=$(grep -E '^pip install ' CONTRIBUTING.md)
python3 -m venv "$work/venv"
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
cd "$work/copy"
git init -q . && git add -A
echo "$setup"
SECONDS=0
eval "set -e; $setup" >"$work/setup.log" 2>&1 || { cat "$work/setup.log"; exit 1; }
echo "set up in ${SECONDS}s"
build=$(dirname build/*/build.ninja)

changed() { # WHAT TEST: compiles the change, runs the test, and reports both
  local log=$work/ninja.log begun=$SECONDS compiled took
  cmake --build "$build" >"$log" 2>&1 || { cat "$log"; exit 1; }
  pytest -q -p no:cacheprovider "$2" >"$work/pytest.log" 2>&1 || { cat "$work/pytest.log"; exit 1; }
  took=$((SECONDS - begun))
  compiled=$(grep -oE 'Building CXX object \S+\.cpp\.o' "$log" | grep -v digest.cpp || true)
  echo "$1: $took s, compiled $(grep -c . <<<"$compiled")"
  test "$compiled" = "Building CXX object $3" || { echo "compiled, but does not depend on it: $compiled"; exit 1; }
  ((took <= allowed)) || { echo "more than $allowed s"; exit 1; }
}
line() { # FILE LINE: appends a line, as no compiler can leave it out
  printf '%s\n' "$2" >>"$1"
}
ledger=CMakeFiles/fastagg_engine.dir/csrc/engine/ledger.cpp.o
for time in 1 2; do
  line csrc/engine/ledger.cpp "extern \"C\" int fastagg_changed_line_$time() { return $time; }"
  changed "one line, time $time" tests/server/test_dispatch.py $ledger
done
line csrc/engine/lock.cpp "// a comment"
changed "a comment" tests/server/test_dispatch.py CMakeFiles/fastagg_engine.dir/csrc/engine/lock.cpp.o
python -c 'import fastagg; fastagg.FedBuff'
left=$(git status --porcelain | grep '^??' || true)
test -z "$left" || { echo "the build left files: $left"; exit 1; }
SECONDS=0
python .ci/contribute.py "$build"
echo "the toys: ${SECONDS}s"
