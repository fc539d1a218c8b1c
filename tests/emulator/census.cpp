// Implements census.h. Kernels have no external names, so their names are read from the symbol
// table of the library that holds them.
#include "census.h"

#include "emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace emulator::census {
namespace {

const DeviceModel* model = nullptr;

struct Recording {
  std::vector<Call> calls;
  ReadArguments read_arguments;
};
thread_local std::optional<Recording> recording;
thread_local std::vector<std::string> spans;

// ---- names of kernels

template <class T>
T* at_offset(std::vector<char>& file, std::uint64_t offset) {
  return reinterpret_cast<T*>(file.data() + offset);
}

// The functions of a library, by their distance from its beginning.
std::map<std::uint64_t, std::string> read_functions(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  std::vector<char> file((std::istreambuf_iterator<char>(stream)), {});
  if (file.size() < sizeof(Elf64_Ehdr)) fatal(std::string("cannot read ") + path);
  std::map<std::uint64_t, std::string> functions;
  const auto* header = at_offset<Elf64_Ehdr>(file, 0);
  const auto* sections = at_offset<Elf64_Shdr>(file, header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr& section = sections[i];
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto* symbols = at_offset<Elf64_Sym>(file, section.sh_offset);
    const char* names = at_offset<char>(file, sections[section.sh_link].sh_offset);
    for (std::uint64_t s = 0; s < section.sh_size / sizeof(Elf64_Sym); ++s)
      if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC)
        functions[symbols[s].st_value] = names + symbols[s].st_name;
  }
  return functions;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

std::string signature_of(const void* kernel) {
  Dl_info info{};
  if (dladdr(kernel, &info) == 0) fatal("a kernel lies in no library");
  static std::mutex mutex;
  static std::map<std::string, std::map<std::uint64_t, std::string>> libraries;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = libraries.try_emplace(info.dli_fname);
  if (is_new) found->second = read_functions(info.dli_fname);
  const auto distance = static_cast<std::uint64_t>(static_cast<const char*>(kernel) -
                                                   static_cast<const char*>(info.dli_fbase));
  const auto name = found->second.find(distance);
  if (name == found->second.end()) fatal("a kernel has no name; is its library stripped?");
  return demangled(name->second);
}

// ---- small contents of device memory

constexpr std::size_t small_bytes = 64 << 10, large_bytes = 1 << 20;

struct Contents {
  std::mutex mutex;
  std::map<const void*, std::string> by_address;
  std::map<int, Usage> large;  // of each device, in large blocks
};
Contents& contents() {
  static auto* all = new Contents;
  return *all;
}

// Forgets what was copied to some memory. The mutex is held.
void forget(void* to, std::size_t bytes) {
  auto& all = contents().by_address;
  all.erase(all.lower_bound(to), all.lower_bound(static_cast<char*>(to) + bytes));
}

void remember(void* to, std::string bytes) {
  const std::lock_guard lock(contents().mutex);
  contents().by_address[to] = std::move(bytes);
}

std::string recall(const void* from, std::size_t bytes) {
  const std::lock_guard lock(contents().mutex);
  const auto found = contents().by_address.find(from);
  std::string result = found == contents().by_address.end() ? std::string() : found->second;
  result.resize(bytes);
  return result;
}

// What ranks broadcast, by group and number.
struct Broadcasts {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<const void*, std::int64_t>, std::string> contents;
};
Broadcasts& broadcasts() {
  static auto* all = new Broadcasts;
  return *all;
}

void send(const Collective& call) {
  const std::lock_guard lock(broadcasts().mutex);
  broadcasts().contents[{call.group, call.number}] = recall(call.input, call.bytes);
  broadcasts().changed.notify_all();
}

void receive(const Collective& call) {
  std::unique_lock lock(broadcasts().mutex);
  auto& contents = broadcasts().contents;
  const std::pair key(call.group, call.number);
  if (!broadcasts().changed.wait_for(lock, std::chrono::minutes(1),
                                     [&] { return contents.contains(key); }))
    fatal("census: rank 0 did not broadcast within a minute");
  remember(call.output, contents[key]);
}

}  // namespace

void begin(const DeviceModel& device) { model = &device; }
const DeviceModel* device() { return model; }

void note(Call call) {
  if (!recording) return;
  call.spans = spans;
  recording->calls.push_back(std::move(call));
}

bool note_call(const char* function, double bytes) {
  if (recording) note({.name = function, .bytes = bytes});
  return model != nullptr;
}

void note_launch(Call launch, const void* address, void** arguments) {
  if (!recording) return;
  launch.kind = Kind::kernel;
  launch.name = signature_of(address);
  recording->read_arguments(launch, arguments);
  note(std::move(launch));
}

void note_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
             from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const char* name = !from_device ? "copy from the host"
                     : !to_device ? "copy to the host"
                                  : "copy on the device";
  const auto moved = static_cast<double>(bytes);
  note({.kind = Kind::copy, .name = name, .bytes = to_device && from_device ? 2 * moved : moved});
  if (bytes > small_bytes) {
    if (!to_device) return static_cast<void>(std::memset(to, 0, bytes));
    const std::lock_guard lock(contents().mutex);
    return forget(to, bytes);
  }
  const std::string content = from_device ? recall(from, bytes)
                                          : std::string(static_cast<const char*>(from), bytes);
  if (to_device) remember(to, content);
  else std::memcpy(to, content.data(), bytes);
}

void note_collective(const Collective& call) {
  note({.kind = Kind::collective, .name = call.function, .bytes = static_cast<double>(call.bytes)});
  if (!model || call.bytes > small_bytes) return;
  if (call.is_sent) return send(call);
  if (call.is_received) return receive(call);
  std::string all;
  for (int copy = 0; copy < call.copies; ++copy) all += recall(call.input, call.bytes);
  remember(call.output, std::move(all));
}

void start_recording(ReadArguments read) { recording.emplace().read_arguments = read; }
std::vector<Call> stop_recording() {
  std::vector<Call> calls = std::move(recording->calls);
  recording.reset();
  return calls;
}

void add_block(std::size_t bytes, int device) {
  const std::lock_guard lock(contents().mutex);
  Usage& large = contents().large[device];
  if (bytes >= large_bytes) large.live += bytes;
  large.peak = std::max(large.peak, large.live);
}

void end_block(void* block, std::size_t bytes, int device) {
  const std::lock_guard lock(contents().mutex);
  if (bytes >= large_bytes) contents().large[device].live -= bytes;
  forget(block, bytes);
}

std::size_t peak_bytes(int device) {
  const std::lock_guard lock(contents().mutex);
  return contents().large[device].peak;
}

void reset_peak_bytes(int device) {
  const std::lock_guard lock(contents().mutex);
  contents().large[device].peak = contents().large[device].live;
}

void push_span(const char* name) {
  if (recording) spans.emplace_back(name);
}
void pop_span() {
  if (recording && !spans.empty()) spans.pop_back();
}

}  // namespace emulator::census
