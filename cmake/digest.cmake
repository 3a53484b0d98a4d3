# Writes OUT, a source file with the digest of all that is in csrc/. Runs at every build; the file changes if the digest does.
# fastagg/_build.py computes the same digest, and so notices an extension that was compiled from other sources.
file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/csrc/*.cpp" "${ROOT}/csrc/*.cu" "${ROOT}/csrc/*.cuh" "${ROOT}/csrc/*.h"
  "${ROOT}/csrc/*.inl")
list(SORT files)
set(lines "")
foreach(path IN LISTS files)
  file(SHA256 "${ROOT}/${path}" digest)
  string(APPEND lines "${path} ${digest}\n")
endforeach()
string(SHA256 digest "${lines}")
file(CONFIGURE OUTPUT "${OUT}" CONTENT "extern const char* const fastagg_sources;\nconst char* const fastagg_sources = \"${digest}\";\n")
