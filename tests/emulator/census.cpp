// Implements census.h. Kernels have no external names, so their names are read from the symbol
// table of the library that holds them.
#include "census.h"

#include "emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
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

// ---- use of device memory

constexpr std::size_t large_bytes = 1 << 20;

struct LargeBlocks {
  std::mutex mutex;
  std::map<int, Usage> of_device;
};
LargeBlocks& large_blocks() {
  static auto* all = new LargeBlocks;
  return *all;
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

void note_copy(void* to, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
             from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const char* name = !from_device ? "copy from the host"
                     : !to_device ? "copy to the host"
                                  : "copy on the device";
  const auto moved = static_cast<double>(bytes);
  note({.kind = Kind::copy, .name = name, .bytes = to_device && from_device ? 2 * moved : moved});
  if (!to_device) std::memset(to, 0, bytes);
}

void start_recording(ReadArguments read) { recording.emplace().read_arguments = read; }
std::vector<Call> stop_recording() {
  std::vector<Call> calls = std::move(recording->calls);
  recording.reset();
  return calls;
}

void add_block(std::size_t bytes, int device) {
  const std::lock_guard lock(large_blocks().mutex);
  Usage& large = large_blocks().of_device[device];
  if (bytes >= large_bytes) large.live += bytes;
  large.peak = std::max(large.peak, large.live);
}

void end_block(std::size_t bytes, int device) {
  const std::lock_guard lock(large_blocks().mutex);
  if (bytes >= large_bytes) large_blocks().of_device[device].live -= bytes;
}

std::size_t peak_bytes(int device) {
  const std::lock_guard lock(large_blocks().mutex);
  return large_blocks().of_device[device].peak;
}

void reset_peak_bytes(int device) {
  const std::lock_guard lock(large_blocks().mutex);
  large_blocks().of_device[device].peak = large_blocks().of_device[device].live;
}

void push_span(const char* name) {
  if (recording) spans.emplace_back(name);
}
void pop_span() {
  if (recording && !spans.empty()) spans.pop_back();
}

}  // namespace emulator::census
