#!/usr/bin/env bash
# Collects what a report of a failure on a GPU needs in one file, tutti-report.tar.gz: versions, the environment, and the
# logs and flight records of a run. It needs a GPU no more than a compiler. The paths in the arguments are what you ran.
#   tests/gpu/collect.sh PROGRAM FILE_OR_FOLDER...    such as build/release/examples/train_resnet runs/mine log.txt
set -uo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
program=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/report"
# ask COMMAND... writes the command and what it says, also where there is no such command.
ask() { { echo "\$ $*"; timeout 20 "$@" 2>&1 || echo "(exit code $?)"; echo; } >>"$work/report/versions.txt"; }
ask "$program" --version
ask git -C "$(dirname "$0")" describe --always --dirty
ask uname -a
ask cat /etc/os-release
ask nvidia-smi
ask nvidia-smi topo -m
ask cat /proc/driver/nvidia/version
ask nvcc --version
ask bash -c 'ldconfig -p | grep -E "libcuda|cudnn|nccl|cublasLt"'
ask python3 -c 'import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())'
# Tokens and passwords are in other variables, and are not asked for.
ask bash -c 'env | grep -E "^(NCCL|CUDA|CUDNN|CUBLAS|TUTTI|NVIDIA|OMP|LD_LIBRARY_PATH|RANK|LOCAL_RANK|WORLD_SIZE)" |
  grep -vE "SECRET|TOKEN" | sort'
for path in "$@"; do
  # Weights stay where they are.
  find "$path" -type f -regex '.*\.\(json\|jsonl\|txt\|log\|err\|out\)' -size -20M -print0 | xargs -0 -r cp --parents -t "$work/report"
done
tar -C "$work" -czf tutti-report.tar.gz report
echo "collect: tutti-report.tar.gz has"
tar -tzf tutti-report.tar.gz | grep -v '/$'
