#!/usr/bin/env bash
# Checks that what the documentation names in backquotes exists: a name occurs in the sources, and a path in the tree.
# Where the text says "`file`, `name`" or "`file`'s `name`", the name occurs in that file. Links lead to files and
# headings that exist. Pages below benchmarks/results tell what was measured once; only their links are checked.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t linked < <(git ls-files '*.md')
mapfile -t pages < <(printf '%s\n' "${linked[@]}" | grep -vE '^(CHANGELOG.md$|benchmarks/results/)')

# Names of other projects, which the pages compare with or say are missing here.
others='CIFAR10 CIFAR100 FashionMNIST MPI_IN_PLACE NCCL_MAX_CTAS ONEDNN_MAX_CPU_ISA all_gather_object argsort
create_graph cumprod cumsum decimals einsum fft linalg mkldnn nonzero register_forward_hook return_indices roll set_epoch
triu ucontext'
git ls-files >"$work/files"
{
  grep -E '\.(h|cpp|cu|cuh|sh|cmake|py|in|txt|json)$' "$work/files" | xargs cat | grep -oE '[A-Za-z_][A-Za-z0-9_]*'
  tr '/' '\n' <"$work/files" | sed 's/\..*//'  # folders, and files without their ending
  tr ' ' '\n' <<<"$others"
} | sort -u >"$work/words"

# Prints "PAGE NAME" for everything in backquotes outside of code blocks.
awk 'FNR == 1 { code = 0 }
     /^ *```/ { code = !code; next }
     !code { n = split($0, part, "`"); for (i = 2; i <= n; i += 2) print FILENAME, part[i] }' "${pages[@]}" |
  sort -u >"$work/quoted"
{
  # Identifiers, with or without what they are qualified by and "()".
  awk 'NR == FNR { known[$1]; next }
       NF == 2 && $2 ~ /^[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_~][A-Za-z0-9_]*)*(\(\))?$/ {
         name = $2; sub(/\(\)$/, "", name); sub(/.*:/, "", name); sub(/^~/, "", name)
         if (!(name in known)) print $1 ": " $2
       }' "$work/words" "$work/quoted"
  # Paths below the folders of the tree, and names of files. Capitals stand for a name of the reader's choice.
  awk 'NR == FNR { known[$1]; program = $1; sub(/\.cpp$/, "", program); known[program]
                   for (path = $1; sub(/\/[^\/]*$/, "", path);) known[path]
                   name = $1; sub(/.*\//, "", name); known[name]; next }
       NF == 2 && ($2 ~ /^(core|kernels|autograd|nn|optim|distributed|data|examples|tests|docs|cmake|packaging|benchmarks|\.ci)\// ||
                   $2 ~ /^[a-z0-9_]+\.(h|cpp|cu|sh)$/) && $2 !~ /[*{<$=A-Z]/ {
         path = $2; sub(/\/$/, "", path)
         beside = $1; sub(/[^\/]*$/, "", beside)
         if (!(path in known) && !(beside path in known)) print $1 ": " $2
       }' "$work/files" "$work/quoted"
  { grep -noE "\`[a-z0-9_/]+\.(h|cpp|cu)\`('s|,) \`[A-Za-z_]+(\(\))?\`" "${pages[@]}" || true; } | while IFS=: read -r page line text; do
    file=$(cut -d'`' -f2 <<<"$text")
    name=$(cut -d'`' -f4 <<<"$text")
    grep -E "(^|/)$file\$" "$work/files" | xargs grep -qw -- "${name%()}" || echo "$page: $text"
  done
  # Links to files of the tree and to headings, which GitHub names in lower case, with - for blanks.
  awk 'FNR == 1 { code = 0 }
       /^ *```/ { code = !code; next }
       !code && /^#+ / {
         anchor = tolower($0); sub(/^#+ +/, "", anchor); gsub(/[^a-z0-9 _-]/, "", anchor); gsub(/ /, "-", anchor)
         print "heading", FILENAME "#" anchor
       }
       !code { while (match($0, /\]\([^)]*\)/)) {
                 print "link", FILENAME, substr($0, RSTART + 2, RLENGTH - 3); $0 = substr($0, RSTART + RLENGTH) } }
      ' "${linked[@]}" >"$work/links"
  grep '^heading ' "$work/links" | cut -d' ' -f2 >"$work/headings"
  grep '^link ' "$work/links" | while read -r _ page target; do
    case $target in http* | mailto:*) continue ;; esac
    file=${target%%#*}
    file=$([ -n "$file" ] && realpath -m --relative-to=. "$(dirname "$page")/$file" || echo "$page")
    [ -e "$file" ] || echo "$page: the link to $target"
    case $target in *#*) [ "${file%.md}" = "$file" ] || grep -qxF "$file#${target#*#}" "$work/headings" || echo "$page: the link to $target" ;; esac
  done
} >"$work/wrong"
if [ -s "$work/wrong" ]; then
  cat "$work/wrong"
  echo "names: the pages above name what is not in the tree" >&2
  exit 1
fi
echo "names: $(wc -l <"$work/quoted") names and $(grep -c '^link ' "$work/links") links in the pages were checked"
