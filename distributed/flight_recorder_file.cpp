#include "flight_recorder_file.h"

#include "../core/atomic_file.h"
#include "../core/error.h"
#include "../core/ticks.h"
#include "collective.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

namespace tutti::distributed {
namespace {

using Json = nlohmann::ordered_json;

std::mutex folder_mutex;
auto& chosen_folder = *new std::optional<std::string>;  // threads may outlive static objects

// Turns ticks into seconds since 1970.
class TimeOfTicks {
 public:
  Json operator()(std::int64_t ticks) const {
    if (ticks == 0) return nullptr;
    return now_ - static_cast<double>(now_ticks_ - ticks) * seconds_per_tick_;
  }
  double now() const { return now_; }
  double duration(std::int64_t ticks) const {
    return static_cast<double>(ticks) * seconds_per_tick_;
  }

 private:
  std::int64_t now_ticks_ = ticks_now();
  double now_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  double seconds_per_tick_ = ticks_to_seconds(1'000'000'000) * 1e-9;
};

Json describe(const FlightRecorder::Entry& entry, std::int64_t number, const TimeOfTicks& time) {
  const CallRecord& call = entry.call;
  Json line{{"number", number},
            {"group", entry.group},
            {"group_number", entry.group_number},
            {"sequence", call.sequence},
            {"operation", to_string(call.operation)},
            {"name", std::string(call.name, strnlen(call.name, sizeof(call.name)))},
            {"bytes", call.bytes},
            {"issued", time(entry.issued)},
            {"done", time(entry.done)}};
  line["waited"] = entry.done == 0 ? Json() : Json(time.duration(entry.waited));
  return line;
}

Json describe(const FlightRecorder& recorder, const FlightRecorder::Contents& contents,
              const std::string& failure, const TimeOfTicks& time) {
  Json groups = Json::array();
  for (const auto& group : contents.groups)
    groups.push_back({{"name", group.name}, {"ranks", group.world_ranks}});
  return {{"rank", recorder.world_rank()},
          {"backend", recorder.backend()},
          {"written", time.now()},
          {"failure", failure},
          {"calls", contents.calls},
          {"groups", groups},
          {"library", flight_recorder_library()}};
}

// Prints why a file is missing. The failure of the world is what counts, and is thrown.
void say_unwritten(int rank, const std::string& folder, const char* why) noexcept try {
  const std::string text =
      fmt::format("tutti: rank {} leaves no flight recorder in '{}': {}\n", rank, folder, why);
  std::fputs(text.c_str(), stderr);
} catch (const std::exception&) {  // no memory, of which the world's failure tells
}

void write_or_say(const std::string& folder, const FlightRecorder& recorder,
                  const std::string& failure) {
  try {
    write_flight_recorder(folder, recorder, failure);
  } catch (const std::exception& error) {
    say_unwritten(recorder.world_rank(), folder, error.what());
  }
}

}  // namespace

void set_flight_recorder_folder(const std::string& folder) {
  const std::lock_guard lock(folder_mutex);
  chosen_folder = folder;
}

std::string flight_recorder_folder() {
  const std::lock_guard lock(folder_mutex);
  if (chosen_folder) return *chosen_folder;
  const char* const folder = std::getenv("TUTTI_FLIGHT_RECORDER");
  return folder ? folder : "";
}

std::string& flight_recorder_library() {
  static auto& library = *new std::string;
  return library;
}

void write_flight_recorder(const std::string& folder, const FlightRecorder& recorder,
                           const std::string& failure) {
  const FlightRecorder::Contents contents = recorder.contents();
  if (contents.calls == 0) return;
  const TimeOfTicks time;
  std::string text;
  const auto add = [&text](const Json& line) {
    // A name may have been cut within a character.
    text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  };
  add(describe(recorder, contents, failure, time));
  std::int64_t number = contents.calls - static_cast<std::int64_t>(contents.entries.size());
  for (const FlightRecorder::Entry& entry : contents.entries) add(describe(entry, ++number, time));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail<FileError>("cannot make the folder: {}", error.message());
  write_file_atomically(fmt::format("{}/flight_recorder.{}.{}.jsonl", folder, recorder.backend(),
                                    recorder.world_rank()),
                        text);
}

RecorderWrite::RecorderWrite(std::vector<std::shared_ptr<FlightRecorder>> recorders,
                             const std::string& failure) noexcept {
  std::string folder;
  const int rank = recorders.empty() ? 0 : recorders.front()->world_rank();
  try {
    folder = flight_recorder_folder();
    if (folder.empty()) return;
    std::promise<void> is_written;
    const auto done = is_written.get_future().share();
    // The thread owns all that it uses, because it may outlive main() where the disk hangs.
    std::thread([folder, recorders = std::move(recorders), failure,
                 is_written = std::move(is_written)]() mutable {
      // A file above RLIMIT_FSIZE shall fail to be written rather than end the process.
      sigset_t too_large;
      sigemptyset(&too_large);
      sigaddset(&too_large, SIGXFSZ);
      pthread_sigmask(SIG_BLOCK, &too_large, nullptr);
      for (const auto& recorder : recorders) write_or_say(folder, *recorder, failure);
      is_written.set_value();
    }).detach();
    done_ = done;
    end_ = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  } catch (const std::exception& error) {  // there is no thread
    say_unwritten(rank, folder, error.what());
  }
}

}  // namespace tutti::distributed
