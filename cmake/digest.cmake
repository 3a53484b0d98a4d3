# Writes OUT, a source file with the digest of the files in csrc/ and tests/emulation/. Runs at every build, and writes
# OUT only if the digest changes. fastagg/_checkout.py computes the digest too, to detect an extension of other sources.
foreach(ending cpp cu cuh h inl)
  list(APPEND patterns "${ROOT}/csrc/*.${ending}" "${ROOT}/tests/emulation/*.${ending}")
endforeach()
file(GLOB_RECURSE files RELATIVE "${ROOT}" ${patterns})
list(SORT files)
set(lines "")
foreach(path IN LISTS files)
  file(SHA256 "${ROOT}/${path}" digest)
  string(APPEND lines "${path} ${digest}\n")
endforeach()
string(SHA256 digest "${lines}")
file(CONFIGURE OUTPUT "${OUT}" CONTENT "extern const char* const fastagg_sources;\nconst char* const fastagg_sources = \"${digest}\";\n")
