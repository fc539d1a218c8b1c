#!/usr/bin/env bash
# Takes a fresh clone to a trained network: installs what is missing, builds, and trains a ResNet-20 with SyncBatchNorm on
# Fashion-MNIST with two ranks. Flags are passed on to the trainer; see build/release/examples/train_resnet --help. A
# second call trains anew and replaces what is in runs/quickstart, unless --resume (go on) or --out (elsewhere) is given.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
cmake --preset release >/dev/null  # each time, because setup.sh may have installed something; it rebuilds nothing
cmake --build --preset release --target train_resnet
folder=(--out runs/quickstart --overwrite)
for flag in "$@"; do
  case "$flag" in
    --resume | --overwrite) folder=(--out runs/quickstart) ;;
    --out | --out=*) folder=() && break ;;
  esac
done
exec build/release/examples/train_resnet --ranks 2 "${folder[@]}" "$@"
