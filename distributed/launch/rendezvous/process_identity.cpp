#include "process_identity.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>
#include <sstream>

namespace tutti::distributed::rendezvous {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

std::string numbering() {
  char space[64] = "";  // "pid:[4026531836]"
  const std::string boot = boot_id();
  if (boot.empty() || readlink("/proc/self/ns/pid", space, sizeof(space) - 1) <= 0) return {};
  return boot + " " + space;
}

// What /proc/PID/stat says; both empty where it does not exist.
struct Stat {
  std::string state = {}, started = {};
};

Stat stat_of(const std::string& pid) {
  const std::string line = first_line("/proc/" + pid + "/stat");
  // The name of the program stands in parentheses, and may contain any character.
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;  // the third field of the line
  for (int field = 4; field <= 22; ++field) fields >> stat.started;
  return stat;
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string host_identity() { return host_name() + " " + boot_id(); }

std::string boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

ProcessIdentity own_identity() {
  const std::string pid = std::to_string(getpid());
  return {host_name(), numbering(), pid, stat_of(pid).started};
}

ProcessStatus status_of(const ProcessIdentity& process) {
  const std::string here = numbering();
  if (here.empty() || process.numbering != here || process.host != host_name())
    return ProcessStatus::unknown;
  int pid = 0;
  std::from_chars(process.pid.data(), process.pid.data() + process.pid.size(), pid);
  if (pid <= 0) return ProcessStatus::unknown;
  if (kill(pid, 0) != 0 && errno == ESRCH) return ProcessStatus::ended;
  const Stat stat = stat_of(process.pid);
  const bool is_zombie = stat.state == "Z" || stat.state == "X";
  return is_zombie || stat.started != process.started ? ProcessStatus::ended : ProcessStatus::runs;
}

}  // namespace tutti::distributed::rendezvous
