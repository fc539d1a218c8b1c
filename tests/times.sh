#!/usr/bin/env bash
# Prints where the time of the last build and of the last run of ctest went: compiling by target, the dearest objects, the
# tests by label, and the dearest entries. The times are wall times of jobs that ran side by side, so that they are times of
# a core where nothing else ran. After tests/run.sh --all it has the table of tests/README.md.
#   tests/times.sh [BUILD]                 BUILD is build/release unless given
#   tests/times.sh --idle BUILD ARGS...    runs the entries that ctest finds with ARGS one by one, and prints how long each
#                                          takes, how long it computes, and the share of the time that it waits
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --idle ]; then
  exec python3 - "${@:2}" <<'PYTHON'
import json, os, subprocess, sys, time
build, arguments = sys.argv[1], sys.argv[2:]
listing = subprocess.run(['ctest', '--test-dir', build, '--show-only=json-v1', *arguments], capture_output=True, check=True)
rows = []
for test in json.loads(listing.stdout)['tests']:
    properties = {each['name']: each['value'] for each in test.get('properties', [])}
    environment = os.environ | dict(each.split('=', 1) for each in properties.get('ENVIRONMENT', []) if '=' in each)
    begin = time.monotonic()
    process = subprocess.Popen(test['command'], env=environment, cwd=properties.get('WORKING_DIRECTORY', build),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    rows.append((time.monotonic() - begin, used.ru_utime + used.ru_stime, status, test['name']))
print('   wall    core  idle  entry')
for wall, core, status, name in sorted(rows, reverse=True):
    print(f'{wall:7.1f} {core:7.1f} {max(0, 1 - core / wall):5.0%}  {name}{" (failed or skipped)" if status else ""}')
print(f'{sum(r[0] for r in rows):7.1f} {sum(r[1] for r in rows):7.1f}        {len(rows)} entries')
PYTHON
fi
build=${1:-build/release}

echo "compiling by target, core seconds and objects"
awk -F'\t' '$4 ~ /\.o$/ { time[$4] = ($2 - $1) / 1000 }
  END { for (object in time) print time[object] "\t" object }' "$build/.ninja_log" | sort -rn >"$build/times.txt"
awk -F'\t' '{ target = $2; sub(/\.dir\/.*/, "", target); sub(/.*CMakeFiles\//, "", target); sum[target] += $1; ++count[target] }
  { all += $1 } END { for (target in sum) printf "%8.0f %4d  %s\n", sum[target], count[target], target; printf "%8.0f %4d  all\n", all, NR }
  ' "$build/times.txt" | sort -rn | head -n 25
echo "the dearest objects"
head -n 15 "$build/times.txt" | awk -F'\t' '{ printf "%8.1f  %s\n", $1, $2 }'

log=$build/Testing/Temporary/LastTest.log
[ -e "$log" ] || { echo "times: there is no $log; run ctest first" >&2; exit 1; }
awk '/^[0-9]+\/[0-9]+ Testing: / { name = $3 } /^Test time = / { print $4 "\t" name }' "$log" | sort -rn >"$build/times.txt"
echo "tests by label, seconds and entries"
awk -F'\t' '{ label = $2; sub(/\..*/, "", label); sum[label] += $1; ++count[label]; all += $1 }
  END { for (label in sum) printf "%8.1f %4d  %s\n", sum[label], count[label], label; printf "%8.1f %4d  all\n", all, NR }
  ' "$build/times.txt" | sort -rn
echo "the dearest entries"
head -n 30 "$build/times.txt" | awk -F'\t' '{ printf "%8.1f  %s\n", $1, $2 }'
