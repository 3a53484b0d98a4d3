#!/usr/bin/env bash
# Builds the documentation as a site, with warnings as errors. The notebook runs while it is built.
# Takes WORKDIR. Needs fastagg[docs,sim] installed. It uses no network; if user namespaces are allowed, it is built
# without one, except for the loopback device, over which the notebook's kernel is spoken to.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$1
mkdir -p "$work"
offline=()
if unshare --user --map-root-user --net true 2>/dev/null; then offline=(unshare --user --map-root-user --net); fi
loopback='import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14s", b"lo", 0x49, b""))'
"${offline[@]}" bash -c "${offline:+python -c '$loopback'; }sphinx-build -q -W --keep-going -b html docs '$work/site'"
echo "the site: $(find "$work/site" -name '*.html' | wc -l) pages"
