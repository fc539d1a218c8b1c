// Finds the `__shared__` variables of the library of kernels that this file is linked into. They
// are the library's only thread-local variables (device_language.h), so its segment of thread-local
// memory is the static shared memory of the block that runs.
#include "emulator.h"

#include <link.h>

namespace emulator {
namespace {

thread_local unsigned char anchor = 0;
const char inside = 0;

int look(dl_phdr_info* info, std::size_t, void* found) {
  const auto address = reinterpret_cast<std::uintptr_t>(&inside);
  bool ours = false;
  std::size_t bytes = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && address >= begin && address < begin + part.p_memsz) ours = true;
    if (part.p_type == PT_TLS) bytes = part.p_memsz;
  }
  if (!ours) return 0;
  *static_cast<Region*>(found) = {static_cast<unsigned char*>(info->dlpi_tls_data), bytes};
  return 1;
}

Region region() {
  // A write makes the loader allocate the calling thread's copy.
  *const_cast<volatile unsigned char*>(&anchor) = 0;
  Region found{};
  dl_iterate_phdr(look, &found);
  return found;
}

const bool registered = (shared_regions().push_back(region), true);

}  // namespace
}  // namespace emulator
