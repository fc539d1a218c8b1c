// A stack of a thread for its signal handlers. oneDNN's generated code points the stack pointer
// into the heap for a while, where a handler on the thread's own stack would destroy what lies
// below.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace tutti {

/// Gives the calling thread a stack for handlers that were installed with SA_ONSTACK, unless it has
/// one or there is no memory.
class SignalStack {
 public:
  /// Gives the calling thread its stack until it ends.
  static void of_thread() { static thread_local const SignalStack stack; }

  SignalStack() {
    stack_t present{};
    if (sigaltstack(nullptr, &present) != 0 || !(present.ss_flags & SS_DISABLE)) return;
    const auto frame = static_cast<std::size_t>(std::max(0L, sysconf(_SC_MINSIGSTKSZ)));
    size_ = (64 * 1024 + frame + 4095) / 4096 * 4096;  // the registers of AMX alone are 8 KiB
    void* const memory =
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    memory_ = memory;
    const stack_t own{.ss_sp = memory_, .ss_flags = 0, .ss_size = size_};
    sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    if (!memory_) return;
    stack_t present{};
    sigaltstack(nullptr, &present);
    if (present.ss_sp == memory_) {  // not one that the program has set since
      const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
      sigaltstack(&none, nullptr);
    }
    munmap(memory_, size_);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tutti
