# Jobs on emulated hosts. Source this file after network.sh: hosts 2x2 is the list host0:2,host1:2; launch LIST OPTIONS
# -- PROGRAM starts examples/launch.sh on host 0; start_job does so in the background, and end_of_job waits for it.

# The parameters that only emulated hosts need and that Open MPI 4.1 knows by these names. Ranks yield while they wait,
# because the hosts share the machine's cores, which Open MPI cannot know.
export OMPI_MCA_plm_rsh_agent OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_btl=tcp,self,vader
export OMPI_MCA_mpi_yield_when_idle=1
OMPI_MCA_plm_rsh_agent=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/remote_shell.sh
export OMP_NUM_THREADS=1
launcher=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)/launch.sh
case $(mpirun --version 2>/dev/null | head -1) in
  *"Open MPI) 4."*) ;;
  *) skip "these jobs need the parameters of Open MPI 4.1, and this is: $(mpirun --version 2>&1 | head -1)" ;;
esac

hosts() {
  local list='' i
  for ((i = 0; i < ${1%x*}; i++)); do list+=,host$i:${1#*x}; done
  echo "${list#,}"
}

# No job of these tests takes longer than its deadline in seconds, 90 unless `deadline` says otherwise.
launch() {
  local list=$1
  shift
  on_host 0 timeout -k 5 "${deadline:-90}" "$launcher" --hosts "$list" --network 10.77.0.0/24 --dead-after "${dead_after:-16}" \
    --oversubscribe --allow-run-as-root "$@"
}

# Starts a job that has a folder for its results, in which its output is `output`.
start_job() {
  job_folder=$1
  shift
  mkdir -p "$job_folder"
  launch "$@" > "$job_folder/output" 2>&1 &
  job=$!
}

fail() {
  echo "FAILED: $*"
  tail -n +1 "$job_folder"/output "$job_folder"/rank.* 2>/dev/null
  exit 1
}

# Waits for the end of the job and expects that it comes within so many seconds and leaves no process on any host. Sets
# `code`.
end_of_job() {
  local seconds=$1 left host
  for ((left = seconds * 20; left > 0; left--)); do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.05
  done
  kill -0 "$job" 2>/dev/null && fail "the job has not ended after $seconds s"
  code=0
  wait "$job" || code=$?
  for host in "$network_folder"/host*.process; do
    host=${host##*/host}
    host=${host%.process}
    for ((left = 200; left > 0; left--)); do
      [ -z "$(processes_on "$host")" ] && break
      sleep 0.05
    done
    [ "$left" -gt 0 ] || fail "there are processes on host$host 10 s after the end of the job: $(processes_on "$host")"
  done
}

# Waits until all files exist, for 20 s.
wait_for() {
  local file left
  for file in "$@"; do
    for ((left = 400; left > 0; left--)); do
      [ -e "$file" ] && continue 2
      kill -0 "$job" 2>/dev/null || fail "the job ended before it wrote $file"
      sleep 0.05
    done
    fail "there is no $file after 20 s"
  done
}

# expect FILE PATTERN: the file in the job's folder has a line that matches.
expect() {
  grep -qE -- "$2" "$job_folder/$1" || fail "expected in $1: $2"
}
