#!/bin/sh
# Writes deploy/constraints.txt: what a clean installation of the package pulls in today, exact versions, nothing of ours.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check .
{
  echo "# Written by deploy/lock.sh: the versions that the image is built with."
  "$work/venv/bin/pip" freeze --disable-pip-version-check --exclude llm-exporter --exclude pip --exclude setuptools
} >deploy/constraints.txt
