// A stand-in for NVML that knows one driver. It is a library of its own, because the library under
// test loads NVML by its file name.
#include <cstdio>

extern "C" int nvmlInit_v2() { return 0; }
extern "C" int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  std::snprintf(version, bytes, "550.54.15");
  return 0;
}
