// The end of the process while threads compute. oneDNN keeps compiled code in objects of static
// duration, which the exit of the process destroys: from then on nobody may call oneDNN.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

namespace tutti::kernels::cpu::onednn {

/// A call of oneDNN, which the exit of the process lets end. Once the process exits, other threads
/// wait in the constructor until the process has ended, and get an Error after 10 s.
class CallBeforeExit {
 public:
  /// `plan` names the plan that the call runs, and `is_first` says that it has not run on this
  /// thread. Where it has run on none, the call may compile code.
  CallBeforeExit(const char* op, const std::string& plan, bool is_first);
  ~CallBeforeExit();
  CallBeforeExit(const CallBeforeExit&) = delete;
  CallBeforeExit& operator=(const CallBeforeExit&) = delete;
  /// Returns false on the thread that ends the process, whose static objects may compute in their
  /// destructors: kernels without oneDNN have to.
  bool may_compute() const { return may_compute_; }

 private:
  const std::size_t plan_;  // a hash
  const int exceptions_ = std::uncaught_exceptions();
  bool may_compute_, compiles_, enters_to_compile_ = false;
};

}  // namespace tutti::kernels::cpu::onednn
