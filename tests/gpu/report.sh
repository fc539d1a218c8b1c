#!/bin/bash
# Prints the registers and spills of the normalisation and optimizer kernels as the Markdown table of benchmarks/results/cuda_kernels.md.
# It needs nvcc but no GPU. Usage: tests/gpu/report.sh [architecture ...]   (default: 80 90)
set -euo pipefail
cd "$(dirname "$0")/../.."
archs=("${@:-80}"); [ $# -eq 0 ] && archs=(80 90)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
for file in kernels/cuda/{batch_norm*,layer_norm,optimizer}.cu; do
  for arch in "${archs[@]}"; do
    start=$(date +%s)
    nvcc -std=c++20 -O3 -DFMT_USE_CONSTEXPR=1 -arch="sm_$arch" -Xptxas -v -c "$file" -o "$work/object" 2>"$work/log"
    echo "seconds $(basename "$file") sm_$arch $(($(date +%s) - start))" >>"$work/seconds"
    awk -v arch="$arch" '
      /Compiling entry function/ { split($0, q, "\047"); name = q[2] }
      /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
      /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print arch, name, substr($0, RSTART + 5, RLENGTH - 5), stack, stores, loads }
    ' "$work/log" >>"$work/rows"
  done
done
cut -d' ' -f2 "$work/rows" | c++filt -p | sed -E 's/.*\(anonymous namespace\)::([a-z_]+)_kernel/\1/; s/__nv_bfloat16/bf16/g; s/__half/f16/g; s/tutti::kernels::cuda::\(anonymous namespace\):://g; s/^([a-z_]+)$/\1<>/' >"$work/names"
echo "| kernel | architecture | registers | stack | spill stores | spill loads |"
echo "| --- | --- | --- | --- | --- | --- |"
paste -d' ' "$work/names" "$work/rows" | awk '{ n = NF; name = $1; for (i = 2; i <= n - 6; ++i) name = name " " $i
  printf "| `%s` | sm_%s | %s | %s | %s | %s |\n", name, $(n - 5), $(n - 3), $(n - 2), $(n - 1), $n }' | sort -u
echo
sed 's/^/    /' "$work/seconds"
