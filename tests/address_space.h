// Says whether a test can limit the memory of its process.
#pragma once

#include <sys/resource.h>

namespace tutti::test {

/// Returns why no test can limit its address space, or an empty string. qemu's user mode accepts
/// the limit and ignores it, so that a test that fills its memory would fill the machine's.
inline const char* no_memory_limit() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "a sanitizer needs more address space than a limit would leave";
#else
  rlimit before{}, after{};
  if (getrlimit(RLIMIT_AS, &before) != 0) return "the address space has no limit here";
  rlimit lower = before;
  lower.rlim_cur = rlim_t{1} << 46;
  if (lower.rlim_cur >= before.rlim_cur) return "";  // a limit is in force
  const bool kept = setrlimit(RLIMIT_AS, &lower) == 0 && getrlimit(RLIMIT_AS, &after) == 0 &&
                    after.rlim_cur == lower.rlim_cur;
  setrlimit(RLIMIT_AS, &before);
  return kept ? "" : "limits of the address space have no effect here, as in qemu";
#endif
}

}  // namespace tutti::test
