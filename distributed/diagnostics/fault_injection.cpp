#include "fault_injection.h"

#include "../../core/parse_number.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>

namespace tutti::distributed {
namespace {

std::mutex faults_mutex;
// The armed faults are never destroyed, because a process looks for them while it exits, too.
std::list<Fault>& armed_faults() {
  static auto& all = *new std::list<Fault>;
  return all;
}

bool counts_collectives(Fault::Moment when) {
  return when == Fault::Moment::call || when == Fault::Moment::data;
}

constexpr std::array<std::pair<const char*, Fault::Action>, 6> actions{
    {{"delay", Fault::Action::delay},
     {"drop", Fault::Action::drop},
     {"raise", Fault::Action::raise},
     {"exit", Fault::Action::exit},
     {"stop", Fault::Action::stop},
     {"kill", Fault::Action::kill}}};
constexpr std::array<std::pair<const char*, Fault::Moment>, 4> moments{
    {{"start", Fault::Moment::start},
     {"call", Fault::Moment::call},
     {"data", Fault::Moment::data},
     {"exit", Fault::Moment::exit}}};

template <class Table>
auto choose(const Table& table, std::string_view key, std::string_view value) {
  std::string known;
  for (const auto& [name, meaning] : table) {
    if (value == name) return meaning;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  fail<ValueError>("fault: {} must be one of {}, got '{}'", key, known, value);
}

std::int64_t number(std::string_view key, std::string_view value, std::int64_t lowest) {
  const auto n = parse_number<std::int64_t>(value, lowest, 1'000'000'000);
  if (!n)
    fail<ValueError>("fault: {} must be a whole number from {}, got '{}'", key, lowest, value);
  return *n;
}

// Calls `use` with each piece of the text that is not empty.
template <class Use>
void split(std::string_view text, char separator, const Use& use) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) use(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

Fault parse_fault(std::string_view text) {
  Fault fault;
  bool has_rank = false, has_action = false, has_collective = false;
  split(text, ',', [&](std::string_view piece) {
    const std::size_t equals = piece.find('=');
    const std::string_view key = piece.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view()
                                                                    : piece.substr(equals + 1);
    if (key == "action") fault.action = choose(actions, key, value), has_action = true;
    else if (key == "when") fault.when = choose(moments, key, value);
    else if (key == "rank") fault.rank = static_cast<int>(number(key, value, 0)), has_rank = true;
    else if (key == "collective") fault.collective = number(key, value, 1), has_collective = true;
    else if (key == "delay") fault.delay = std::chrono::milliseconds(number(key, value, 0));
    else if (key == "group" && !value.empty()) fault.group = value;
    else
      fail<ValueError>(
          "fault: expected action, rank, collective, group, when or delay with '=', got '{}'",
          piece);
  });
  if (!has_action || !has_rank || (counts_collectives(fault.when) && !has_collective))
    fail<ValueError>("fault: expected something like 'rank=1,collective=8,action=kill', got '{}'",
                     text);
  return fault;
}

void check(const Fault& fault) {
  if (fault.action == Fault::Action::drop && fault.when != Fault::Moment::call)
    fail<ValueError>("fault: drop goes with when=call only; nothing else can be dropped");
  if (fault.action == Fault::Action::exit && fault.when == Fault::Moment::data)
    fail<ValueError>(
        "fault: exit does not go with when=data, because the communication thread cannot end the "
        "process in good order; use when=call");
}

std::list<Fault>::iterator arm(Fault fault) {
  check(fault);
  const std::lock_guard lock(faults_mutex);
  ++faults::armed;
  return armed_faults().insert(armed_faults().end(), std::move(fault));
}

// Returns copies of the faults that are due, so that they are carried out without the lock.
std::vector<Fault> find_armed(Fault::Moment when, int rank, const std::string& group,
                              std::int64_t collective) {
  const std::lock_guard lock(faults_mutex);
  std::vector<Fault> found;
  for (const Fault& fault : armed_faults())
    if (fault.when == when && fault.rank == rank && fault.group == group &&
        (!counts_collectives(when) || fault.collective == collective))
      found.push_back(fault);
  return found;
}

}  // namespace

std::vector<Fault> parse_faults(const std::string& text) {
  std::vector<Fault> faults;
  split(text, ';', [&](std::string_view one) {
    faults.push_back(parse_fault(one));
    check(faults.back());
  });
  return faults;
}

InjectFault::InjectFault(Fault fault) : armed_(arm(std::move(fault))) {}

InjectFault::~InjectFault() {
  const std::lock_guard lock(faults_mutex);
  armed_faults().erase(armed_);
  --faults::armed;
}

namespace faults {

std::atomic<int> armed{0};

void read_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* text = std::getenv("TUTTI_FAULT"))
      for (Fault& fault : parse_faults(text)) arm(std::move(fault));
  });
}

bool carry_out(Fault::Moment when, int rank, const std::string& group, std::int64_t collective) {
  bool drop = false;
  for (const Fault& fault : find_armed(when, rank, group, collective)) {
    switch (fault.action) {
      case Fault::Action::delay: std::this_thread::sleep_for(fault.delay); break;
      case Fault::Action::drop: drop = true; break;
      case Fault::Action::raise:
        fail<InjectedError>(
            "injected fault of rank {} in group '{}'{}", rank, group,
            counts_collectives(when) ? fmt::format(" at collective #{}", collective) : "");
      case Fault::Action::exit:
        if (when == Fault::Moment::exit) std::_Exit(0);  // the process is in std::exit already
        std::exit(0);
      case Fault::Action::stop: std::raise(SIGSTOP); break;
      case Fault::Action::kill: std::raise(SIGKILL); break;
    }
  }
  return drop;
}

}  // namespace faults

}  // namespace tutti::distributed
