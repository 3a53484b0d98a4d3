"""Check a source distribution: .ci/sources.py ARCHIVE. It has every file of git that a build needs, as it is here."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

needed = ["CMakeLists.txt", "cmake", "csrc", "fastagg", "pyproject.toml", "setup.py", "README.md", "LICENSE", "bench"]
needed += ["tests/emulation"]  # of a build that emulates CUDA, and of every build's digest
listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *needed]
names = subprocess.check_output(listed, text=True).split()
with tarfile.open(sys.argv[1]) as archive:
    packed = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
    missing = [name for name in names if name not in packed]
    other = [n for n in names if n in packed and archive.extractfile(packed[n]).read() != Path(n).read_bytes()]
if missing or other:
    sys.exit(f"{sys.argv[1]}: missing {missing}, different {other}")
print(f"{sys.argv[1].rpartition('/')[2]}: {len(packed)} files, all {len(names)} that a build needs")
