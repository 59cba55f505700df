#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show: one call, at most 8 minutes, nothing installed,
# no network. Needs Python 3.12 with torch; the probe needs nvidia-ml-py (pynvml) and psutil too, and
# says so where they are not there. Everything is read; nothing of the device's settings is changed.
#
#   tests/device/run.sh [FOLDER]      results go to FOLDER, $OUT, or ./device-results
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
out=${1:-${OUT:-device-results}}
mkdir -p "$out" || exit 2
export PYTHONPATH="$PWD:$PWD/services/agent" PYTHONUNBUFFERED=1 LC_ALL=C
exec timeout --kill-after=10 "${LIMIT_S:-470}" "${PYTHON:-python3}" tests/device/check.py "$out"
