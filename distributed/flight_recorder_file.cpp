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
#include <filesystem>
#include <future>
#include <optional>
#include <system_error>
#include <thread>

namespace tutti::distributed {
namespace {

using Json = nlohmann::ordered_json;

std::mutex folder_mutex;
auto& chosen_folder = *new std::optional<std::string>;  // threads may outlive static objects

using TimeOfTicks = std::function<Json(std::int64_t ticks)>;

// Returns a function that turns ticks into seconds since 1970.
TimeOfTicks time_of_ticks_since_1970() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return [now, ticks_now = ticks_now(),
          per_tick = ticks_to_seconds(1'000'000'000) * 1e-9](std::int64_t ticks) -> Json {
    if (ticks == 0) return nullptr;
    return now.count() - static_cast<double>(ticks_now - ticks) * per_tick;
  };
}

Json describe(const FlightRecorder::Entry& entry, std::int64_t number, const TimeOfTicks& time) {
  const Fingerprint& call = entry.call;
  Json line{{"number", number},
            {"group", entry.group},
            {"group_number", entry.group_number},
            {"sequence", call.sequence},
            {"operation", to_string(call.operation)},
            {"name", call.name_and_step()},
            {"bytes", call.bytes()},
            {"issued", time(entry.times.issued)},
            {"done", time(entry.times.done)}};
  if (entry.times.done == 0) line["waited"] = nullptr;
  else line["waited"] = ticks_to_seconds(entry.times.waited);
  return line;
}

Json describe(const FlightRecorder& recorder, const FlightRecorder::Contents& contents,
              const std::string& failure, const TimeOfTicks& time) {
  Json groups = Json::array();
  for (const auto& group : contents.groups)
    groups.push_back({{"name", group.name}, {"ranks", group.world_ranks}});
  return {{"rank", recorder.world_rank()},
          {"backend", recorder.backend()},
          {"written", time(ticks_now())},
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
  const TimeOfTicks time = time_of_ticks_since_1970();
  std::string text;
  const auto add = [&text](const Json& line) {
    // A name may have been cut within a character.
    text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
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

std::function<void()> start_writing(std::vector<std::shared_ptr<FlightRecorder>> recorders,
                                    const std::string& failure) noexcept {
  std::string folder;
  const int rank = recorders.empty() ? 0 : recorders.front()->world_rank();
  try {
    folder = flight_recorder_folder();
    if (folder.empty()) return {};
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
    return [done, end = std::chrono::steady_clock::now() + std::chrono::seconds(5)] {
      done.wait_until(end);
    };
  } catch (const std::exception& error) {  // there is no thread
    say_unwritten(rank, folder, error.what());
    return {};
  }
}

}  // namespace tutti::distributed
