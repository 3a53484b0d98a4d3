#!/usr/bin/env bash
# Runs tests of the CUDA kernels and the smoke while GPGPU-Sim executes nvcc's PTX of them, and prints the instructions
# that it counts in each kernel (tests/emulation/README.md). Takes BUILD. FASTAGG_GPGPUSIM_SOURCES: a clone to use instead
# of the public one. Without the sources, or where they do not build, it says that it is skipped.
set -euo pipefail
mkdir -p "$1/objects"
build=$(realpath "$1")
commit=667834cfe5214523edd7769aeab77f91b7137686
skip() { echo "SKIPPED: $1"; exit 0; }
for tool in nvcc bison flex; do command -v $tool >"$build/log" || skip "there is no $tool"; done
git clone -q "${FASTAGG_GPGPUSIM_SOURCES:-https://github.com/accel-sim/gpgpu-sim_distribution}" "$build/sources" &&
  git -C "$build/sources" checkout -q $commit || skip "GPGPU-Sim's sources cannot be fetched"
toolkit=$(nvcc --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
build_simulator() {
  cd "$build/sources/src/cuda-sim"
  # Its mistakes: a fused product is rounded twice; -0.0 is its own absolute value; a 64-bit integer becomes 0.0; a negative first operand
  # of prmt overwrites the second; bfi inserts no more than 32 bits; addresses lose their upper half.
  sed -E -i -e 's/d\.(f32|f64) = a\.f.. \* b\.f.. \+ c\.f..;/d.\1 = std::fma(a.\1, b.\1, c.\1);/' \
    -e 's/my_abs\(a\.f/std::fabs(a.f/' -e 's/tmpdata.s64 = src1_data.s32 \|/tmpdata.s64 = src1_data.u32 |/' \
    -e '/^ptx_reg_t s2f/,/^}/s/y\.s64/x.s64/' -e '/^void bfi_impl/,/^}/{s/(data|src1_data)\.u32/\1.u64/g;s/\(0x00000001\)/1ull/g}' \
    -e '/^void ld_exec/,/^}/s/if \(type == S16_TYPE/if (type == S8_TYPE || type == S16_TYPE/' \
    -e '/^void (ld_exec|st_impl)/,/^}/s/addr = (\w+)\.u32;/addr = space.get_type() == shared_space ? \1.u32 : \1.u64;/' instructions.cc
  # A warp has its own number, which shuffles need; no folder is made at every block; an argument of a call is freed twice.
  sed -i 's/if (m_is_param) free(m_param_value);//' ptx_ir.h
  sed -i -e 's/wi.set_active(\(.*get_active_mask()\));/wi.issue(\1, warpId, 0, warpId, 0, 0);/' -e '/mkdir("checkpoint_files"/d' \
    ../abstract_hardware_model.cc
  for grammar in ptx ptxinfo; do
    bison --name-prefix=${grammar}_ -d $grammar.y --file-prefix=$grammar && mv $grammar.tab.c $grammar.tab.cc
    flex --outfile=lex.$grammar.cc $grammar.l
  done
  { echo '#include "ptx_ir.h"' && grep '_impl(' instructions.cc | sed 's/{.*//;s/$/;/'; } >instructions.h
  sed -nE 's/^ +([A-Z_0-9]+) = ([0-9]+).*/DEF(\1,"\1")/p' ptx.tab.h | grep -v '(YY' >ptx_parser_decode.def
  echo 'const char* g_gpgpusim_build_string = "";' >detailed_version
  # What CUDA 13 no longer declares. Of the interconnect only what its constructors call, nothing of the power model.
  echo 'struct textureReference { int normalized, filterMode, addressMode[3]; };' >texture.h
  flags=(-std=gnu++17 -O2 -w -fPIC -DNDEBUG -DCUDART_VERSION=13000 -DGPGPUSIM_POWER_MODEL -DYYDEBUG -include "$PWD/texture.h" -I "$PWD"
    -I "$toolkit/include" -iquote "$build/sources" -I ../intersim2 -I .. -I ../accelwattch)
  ls ../*.cc ./*.cc ../gpgpu-sim/*.cc decuda_pred_table/*.cc ../intersim2/{stats,module}.cpp "$project/tests/emulation/gpgpusim.cpp" |
    grep -v power_interface | xargs -P "$(nproc)" -I '{}' sh -c \
    'source=$1; shift; exec g++ "$@" -c "$source" -o "'"$build"'/objects/$(basename "$source").o"' - '{}' "${flags[@]}"
  g++ -shared -o "$build/libgpgpusim.so" "$build"/objects/*.o -lz -Wl,-z,lazy
  cp ../../configs/tested-cfgs/SM7_QV100/gpgpusim.config "$build"
}
export build toolkit project=$PWD && export -f build_simulator
bash -euo pipefail -c build_simulator >"$build/log" 2>&1 || { tail -n 5 "$build/log" && skip "GPGPU-Sim cannot be built"; }
# The build's PTX, less what the simulator's parser does not know: redux and bfind.shiftamt in other instructions,
# literals of 64 bits as doubles. It executes one instruction after the other, so fences are left out: it takes them for
# barriers of the block.
for kernels in csrc/cuda/*.cu; do
  ptx=$build/$(basename "$kernels" .cu).ptx
  nvcc -std=c++17 -fmad=false --expt-relaxed-constexpr -ptx -arch=compute_80 "$kernels" -o "$ptx"
  perl -i -pe '
    s/(shfl\S+\s+%\w+)\|%\w+/$1/; s/^\{$/{\n.reg .b32 %lane;\n.reg .pred %any;/; s/^\s*membar\..*\n//;
    s/redux\.sync\.max\.u32 (%r\d+), (%r\d+), %r\d+;/"mov.u32 $1, $2;" . join "", map
      {"\nshfl.sync.bfly.b32 %lane, $1, $_, 31, -1;\nmax.u32 $1, $1, %lane;"} 16, 8, 4, 2, 1/e;
    s/bfind\.shiftamt\.u32\s+(%r\d+), (%r\d+);/clz.b32 $1, $2;\nsetp.eq.s32 %any, $1, 32;\nselp.b32 $1, -1, $1, %any;/;
    s/(\.[bsu]64\s.*, )(-?\d{10,});/$1 . sprintf("0d%016X", $2) . ";"/e' "$ptx"
done
(cd "$build" && grep -l '\.entry' *.ptx >files)
cmake -S . -B "$build/emulated" -G Ninja -DFASTAGG_EMULATE_CUDA=ON -DPython_EXECUTABLE="$(command -v python)" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build/log"
cmake --build "$build/emulated" --target _native >"$build/log" || { cat "$build/log"; exit 1; }
mkdir "$build/package" && cp -r fastagg "$build/package" && cp "$build"/emulated/_native*.so "$build/package/fastagg"
nm "$build"/package/fastagg/_native*.so | sed -n 's/ [tTW] / /p' >"$build/kernels"
export PYTHONSAFEPATH=1 PYTHONPATH=$build/package:$PWD/tests FASTAGG_SIMULATOR=$build/libgpgpusim.so FASTAGG_GPGPUSIM=$build
python -c 'import fastagg, sys; sys.exit(None if fastagg.__file__.startswith(sys.argv[1]) else "uninstall fastagg first")' "$build"
python bench/gpu_smoke.py
python -m pytest -q -p no:cacheprovider tests/csrc/test_cuda_agreement.py --hypothesis-profile sanitizer \
  -k "test_step or test_cached_step or test_reading or test_measure or (test_robust_rules and not 40)"
if grep -m 3 -E "WARNING (actual|\()|ERROR" "$build/gpgpusim.log"; then exit 1; fi
sort -t"$(printf '\t')" -k4 -u "$build/counts" | cut -c 1-150 # instructions, blocks, threads, kernel
