#!/usr/bin/env bash
# Compiles and links the extension and the trace program (tests/native) for macOS on Apple silicon, without a Mac. The
# package `ziglang` is a Clang with Apple's headers and a linker. What the extension leaves open for Python to fill in
# must be Python's, because at that point a linker accepts everything. Takes BUILD; needs the packages ziglang and lief.
# The hosted workflow runs the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
mkdir -p "$build"
# Zig's linker makes no bundles (what macOS calls a module). A shared library has the same symbols.
cat >"$build/compiler" <<'END'
#!/usr/bin/env bash
exec python -m ziglang c++ -target aarch64-macos.11.0 "${@/#-bundle/-shared}"
END
chmod +x "$build/compiler"
cmake -S . -B "$build" -G Ninja -DCMAKE_SYSTEM_NAME=Darwin -DCMAKE_SYSTEM_PROCESSOR=arm64 \
  -DCMAKE_CXX_COMPILER="$build/compiler" -DCMAKE_INSTALL_NAME_TOOL="$(command -v true)" -DCMAKE_AR="$(command -v true)" \
  -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DFASTAGG_DEVELOPER=ON -DFASTAGG_TRACE=ON -DPython_EXECUTABLE="$(command -v python)" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" >>"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
python - "$build"/_native*.so "$build/fastagg_trace" <<'PY'
import sys

import lief

FLAT = -2  # of any library, found when the extension is loaded
for path in sys.argv[1:]:
    binary = lief.MachO.parse(path).at(0)
    assert binary.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    found = {binding.symbol.name for binding in binary.bindings if binding.library_ordinal == FLAT}
    foreign = {name for name in found if not name.startswith(("_Py", "__Py"))}
    assert not foreign, f"{path}: nobody has {sorted(foreign)}"
    print(f"{path.rpartition('/')[2]}: for macOS on Apple silicon; {len(found)} symbols are Python's")
PY
