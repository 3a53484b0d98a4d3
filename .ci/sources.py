"""Checks that a source distribution has every file that a build needs, unchanged: .ci/sources.py ARCHIVE"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

needed = ["CMakeLists.txt", "cmake", "csrc", "fastagg", "pyproject.toml", "setup.py", "README.md", "LICENSE", "bench"]
needed += ["tests/emulation"]  # for builds that emulate CUDA, and for the digest of every build
listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *needed]
names = subprocess.check_output(listed, text=True).split()
with tarfile.open(sys.argv[1]) as archive:
    packed = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
    missing = [name for name in names if name not in packed]
    other = [n for n in names if n in packed and archive.extractfile(packed[n]).read() != Path(n).read_bytes()]
if missing or other:
    sys.exit(f"{sys.argv[1]}: missing {missing}, different {other}")
print(f"{sys.argv[1].rpartition('/')[2]}: {len(packed)} files, all {len(names)} that a build needs")
