# Emulates hosts on one machine. Source this file, then: make_hosts 2; on_host 1 hostname; cut_link 1.
# Host I is called hostI and has network, UTS and mount namespaces of its own: an address 10.77.0.(I+1) on a bridge that
# joins all hosts, an /etc/hosts, a /dev/shm and a TMPDIR. TCP gives a connection up after 25 s without an answer (15
# minutes by default), by when the ranks have named the absent ones. Process ids are the machine's. The bridge has a
# namespace too, so nothing is left on the machine when the last process of the namespaces has ended, and several
# networks may exist at once. Needs root. Where namespaces cannot be made, make_hosts ends the script with the exit code
# 77, which ctest counts as skipped.

network_folder=$(mktemp -d /tmp/tutti_hosts.XXXXXX)
export network_folder  # remote_shell.sh reads it
network_script=$$
trap remove_hosts EXIT
trap 'exit 130' INT TERM

skip() {
  echo "SKIPPED: $*"
  exit 77
}

# Calls a command in the namespaces of a host, or in those of "bridge". The descriptor 9, whose end is the end of the
# hosts, is the script's alone.
on_host() {
  "$(dirname "${BASH_SOURCE[0]}")/enter.sh" "$@" 9>&-
}

# Starts a process that keeps the namespaces of one host until the script ends.
make_namespaces() {
  local name=$1
  unshare --net --uts --mount sh -c 'echo $$ > "$0.starting"; mv "$0.starting" "$0.process"; read -r _ < "$1"' \
    "$network_folder/$name" "$network_folder/alive" 2> "$network_folder/$name.log" 9>&- &
  disown
  for _ in $(seq 500); do
    [ -e "$network_folder/$name.process" ] && return
    kill -0 $! 2>/dev/null || break
    sleep 0.01
  done
  skip "no namespaces can be made here: $(cat "$network_folder/$name.log")"
}

plug_in() {
  local i=$1 process
  process=$(cat "$network_folder/host$i.process")
  mkdir "$network_folder/tmp$i"
  on_host bridge ip link add "port$i" type veth peer name eth0 netns "$process"
  on_host bridge ip link set "port$i" master bridge up
  on_host "$i" sh -c "set -e; hostname host$i; ip link set lo up; ip address add 10.77.0.$((i + 1))/24 dev eth0
    ip link set eth0 up; mount -t tmpfs none /dev/shm; mount --bind '$network_folder/hosts' /etc/hosts
    echo 6 > /proc/sys/net/ipv4/tcp_retries2"
}

make_hosts() {
  local count=$1 i
  for tool in ip unshare nsenter; do
    command -v "$tool" > /dev/null || skip "$tool is missing; install iproute2 and util-linux"
  done
  mkfifo "$network_folder/alive"
  exec 9<> "$network_folder/alive"
  echo "127.0.0.1 localhost" > "$network_folder/hosts"
  for ((i = 0; i < count; i++)); do echo "10.77.0.$((i + 1)) host$i" >> "$network_folder/hosts"; done
  make_namespaces bridge
  on_host bridge ip link add bridge type bridge 2> "$network_folder/bridge.log" ||
    skip "no bridge can be made here: $(cat "$network_folder/bridge.log")"
  on_host bridge ip link set bridge up
  for ((i = 0; i < count; i++)); do
    make_namespaces "host$i"
    plug_in "$i" || skip "host$i could not be joined to the bridge"
  done
  check_processes_on
}

# The assertion that no process is left on a host would be worth nothing if processes_on found none.
check_processes_on() {
  local left
  on_host 0 sleep 60 2> /dev/null &
  disown
  for ((left = 100; left > 0; left--)); do
    [ "$(cat /proc/"$(processes_on 0 | head -1)"/comm 2>/dev/null)" = sleep ] && break
    sleep 0.02
  done
  [ "$left" -gt 0 ] || { echo "FAILED: expected to find a process on host0" && exit 1; }
  kill "$(processes_on 0)"
}

# Takes the cable of a host out of the bridge, or puts it back.
cut_link() {
  on_host bridge ip link set "port$1" down
}
mend_link() {
  on_host bridge ip link set "port$1" up
}

# Prints the ids of the processes on a host, except for the one that keeps it.
processes_on() {
  local keeper space
  keeper=$(cat "$network_folder/host$1.process")
  space=$(readlink "/proc/$keeper/ns/net")  # net:[NUMBER], whose brackets are no pattern
  { find /proc/[0-9]*/ns/net -prune -printf '%p %l\n' 2>/dev/null || true; } |
    awk -v space="$space" -v keeper="$keeper" '
      { split($1, path, "/") }
      $2 == space && path[3] != keeper { print path[3] }'
}

# Ends everything on the hosts, and with it the namespaces.
remove_hosts() {
  [ "$BASHPID" = "$network_script" ] || return 0
  local keeper host
  for keeper in "$network_folder"/host*.process; do
    [ -e "$keeper" ] || continue
    host=${keeper##*/host}
    # shellcheck disable=SC2046
    kill -9 $(processes_on "${host%.process}") "$(cat "$keeper")" 2>/dev/null || true
  done
  exec 9>&-
  rm -rf "$network_folder"
}
