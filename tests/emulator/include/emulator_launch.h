// Defines the two functions of core/cuda/launch.h that differ in the emulator. Only the caller of
// address_of knows the types of a kernel's parameters, so it registers the kernel together with a
// function that reads them.
#pragma once

#include "../emulator.h"

#include <tuple>
#include <utility>

namespace tutti::cuda {

/// The kernel's address, by which cudaLaunchKernel finds it. Registers the kernel.
template <class... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {
  const void* address = reinterpret_cast<const void*>(kernel);
  emulator::register_kernel(address, [](const void* function, void** arguments) {
    const auto typed = reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(function));
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::tuple<Parameters...> values(*static_cast<Parameters*>(arguments[I])...);
      return std::function<void()>([typed, values] { std::apply(typed, values); });
    }
    (std::index_sequence_for<Parameters...>{});
  });
  return address;
}

/// The block's dynamic shared memory.
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::current_thread.shared);
}

}  // namespace tutti::cuda
