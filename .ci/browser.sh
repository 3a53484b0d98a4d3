#!/usr/bin/env bash
# Checks the reports in a browser: runs tests/page with Chromium, which is installed if possible.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v chromium >/dev/null && test "$(id -u)" = 0; then
  { apt-get update && apt-get install -y --no-install-recommends chromium; } >"$1.apt" 2>&1 || true
fi
command -v chromium >/dev/null || echo "no Chromium: the reports were not looked at in a browser"
pytest -q -p no:cacheprovider -rs tests/page
