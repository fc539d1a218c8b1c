#!/usr/bin/env bash
# Runs the commands of the ```sh blocks of README.md and docs/, word for word, in an empty folder that looks like the
# repository after a build. The trainers in it train for a few steps on small pictures. The test package.doc_commands
# calls this script.
#   docs/commands.sh [BUILD]    BUILD is build/release unless given
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD build=$(realpath "${1:-build/release}")
programs=$build/examples
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT

# Patterns of the commands that are not run, each with the reason. A pattern that fits no command is an error.
not_run=(
  '^\.ci/setup\.sh' 'it installs packages'
  '^tests/run\.sh' 'it is the suite that calls this script'
  '^tests/gpu/(prepare|run)\.sh|--device cuda' 'it needs nvcc or a GPU'
  'launch\.sh --host|elastic\.sh' 'it needs several hosts; tests of mpi and hosts run the script'
  '^sysctl' 'it changes the system'
  'import_torchvision\.py' 'it needs PyTorch; the tests examples.import_torchvision.* run the script'
  '^g\+\+.*--libs tutti' 'it needs a shared library; the test package.consume_shared_pkg_config has one'
)
articles=/usr/share/datasets/fashion-mnist
[ -e $articles ] || not_run+=('segment(ation)?(\.sh|[ ])' 'it needs Fashion-MNIST')
command -v pkg-config >/dev/null || not_run+=('^g\+\+.*--static|^classify' 'it needs pkg-config')

# Writes each block as a file of its commands, a line each, below a line that says where the block stands.
mkdir "$work/blocks"
# shellcheck disable=SC2046
awk -v blocks="$work/blocks" '
  /^```sh$/ { file = sprintf("%s/%03d", blocks, ++count); print FILENAME ":" FNR >file; inside = 1; next }
  /^```$/ { inside = 0 }
  inside && sub(/\\$/, "") { printf "%s", $0 >file; next }
  inside { print >file }
' README.md $(find docs -name '*.md' | sort)

# What a user has after the set-up. program PATH TEXT makes a shell script.
program() { printf '#!/usr/bin/env bash\nset -eu\n%s\n' "$2" >"$1" && chmod +x "$1"; }
cd "$work" && mkdir -p bin home .ci build/release/examples
cp -r "$source/examples" "$source/CMakePresets.json" .
ln -s "$source/tests" .
ln -s "$programs/"{minimal,segment} build/release/examples
cp "$source/examples/classify/classify.cpp" my_program.cpp
for picture in photo street; do cp "$source/tests/fixtures/images/rgb.jpg" $picture.jpg; done
if [ -e $articles ]; then  # its images and masks are two classes of pictures, too
  "$programs/make_scenes" DIR --train 12 --val 8 --size 32
else
  mkdir -p DIR/{train,val}/{images,masks}
  for i in {1..8}; do tee DIR/{train,val}/{images,masks}/"$i".jpg <photo.jpg; done >/dev/null
fi
for layers in 18 50; do
  "$programs/train_resnet" --dataset folder --data DIR --image-size 16 --model resnet$layers --batch-size 8 --threads 1 \
    --max-steps 1 --out weights >weights.log
  mv weights/model.safetensors resnet$layers.safetensors && rm -r weights
done
program build/release/examples/make_scenes "exec $programs/make_scenes \"\$@\" --train 12 --val 4 --size 32"
# A run takes one epoch, and one more whenever it goes on.
# shellcheck disable=SC2016
short='epochs=${EPOCHS:-1}
[[ $* != *--resume* ]] || epochs=$(($(ls runs/a/checkpoint-epoch-* | grep -c .) + 1))
exec $program "$@" --batch-size 8 --threads 1 --epochs $epochs'
program build/release/examples/train_resnet "program='$programs/train_resnet --keep-last 9'
[[ \$* == *'--dataset '* ]] || program+=' --dataset folder --data DIR --image-size 16'
$short"
program build/release/examples/train_segmentation "program=$programs/train_segmentation
set -- \"\$@\" --crop 32
$short"
program bin/train_resnet 'exec build/release/examples/train_resnet "$@"'
program bin/mpirun "exec $(command -v mpirun) --oversubscribe --allow-run-as-root \"\$@\""
program bin/classify 'exec ./a.out "$@"'
program .ci/setup.sh :
program .ci/configure.sh :
# Installing is tried. Of configuring and building only the names are, of presets and targets.
program bin/cmake "case \$1 in
  --install) exec $(command -v cmake) --install $build \"\${@:3}\" ;;
  --preset) grep -q \"\\\"name\\\": \\\"\$2\\\"\" CMakePresets.json ;;
  --build) for target in \"\${@:5}\"; do [ -x $programs/\$target ]; done && exec bin/cmake --preset \"\$3\" ;;
esac"

declare -A used
# Sets `reason` to why a command is not run, or to nothing.
find_reason() {
  reason=''
  for ((i = 0; i < ${#not_run[@]}; i += 2)); do
    if [[ $1 =~ ${not_run[i]} ]]; then reason=${not_run[i + 1]} && used[$i]=yes && return; fi
  done
}

run=0 left=0 failed=0
export HOME=$work/home PATH=$work/bin:$PATH OMP_NUM_THREADS=1
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig:$work/prefix/lib/x86_64-linux-gnu/pkgconfig
for block in blocks/*; do
  { read -r where && mapfile -t commands; } <"$block"
  : >script
  for command in "${commands[@]}"; do
    find_reason "$command"
    if [ -n "$reason" ]; then
      echo "commands: $where: not run, because $reason: $command"
      left=$((left + 1))
    elif [[ $command != '#'* ]]; then
      echo "${command//\/where\/you\/like/$work/prefix}" >>script
      run=$((run + 1))
    fi
  done
  [ -s script ] || continue
  rm -rf runs
  case $(cat script) in  # the runs that a block takes for granted
    *checkpoint-epoch*) EPOCHS=3 build/release/examples/train_resnet --out runs/a ;;
    *collect.sh*) build/release/examples/train_resnet --out runs/mine | tee log.txt ;;
  esac >/dev/null
  if ! timeout 200 bash -euo pipefail script >log 2>&1 </dev/null; then
    echo "commands: $where: failed:" && cat script && tail -20 log && failed=1
  fi
done
for ((i = 0; i < ${#not_run[@]}; i += 2)); do
  [ -n "${used[$i]:-}" ] || { echo "commands: no command fits the pattern '${not_run[i]}'" && failed=1; }
done
echo "commands: $run commands run, $left not"
exit $failed
