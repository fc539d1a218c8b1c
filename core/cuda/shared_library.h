// A library of NVIDIA's (cuDNN, cuBLASLt, NCCL) that the process loads when it first calls one of
// its functions. A program built with CUDA then also starts where these libraries are missing, and
// computes there on the CPU. Each of the three has a file *_functions.cpp that defines the
// functions that we call under their own names and passes the calls on, so that the callers look as
// if they were linked to the library.
#pragma once

#include <string>

namespace tutti::cuda {

/// Owns a loaded library, which stays loaded until the process ends.
class SharedLibrary {
 public:
  /// Loads `file` ("libcudnn.so.9") as the dynamic loader finds it, or else from `folder`, where
  /// CMake found the library; an empty folder is not tried. Throws a DeviceError that says what was
  /// tried. `name` is the library's name in errors.
  SharedLibrary(std::string name, std::string file, const std::string& folder);

  /// Returns the address of a function. Throws a DeviceError if the library does not have it.
  void* find(const char* function) const;

  /// Calls a function of this library. The template parameter is a function that is declared as
  /// the library's; the address is looked up once for each.
  template <auto* function, class... Args>
  auto call(const char* name, Args... args) const {
    static const auto address = reinterpret_cast<decltype(function)>(find(name));
    return address(args...);
  }

 private:
  std::string name_, file_;
  void* handle_ = nullptr;
};

}  // namespace tutti::cuda
