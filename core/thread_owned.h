// Objects that belong to the thread that uses them, such as caches. Destructors of a thread's other
// objects, and of static ones, may still compute when such an object has been destroyed.
#pragma once

#include <utility>

namespace tutti::detail {

/// Returns the T of the calling thread, which is made when the thread first asks and destroyed when
/// the thread ends. Whoever asks after that gets another one, which is never destroyed.
template <class T>
T& of_thread() {
  static constinit thread_local T* object = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(object, nullptr); }
  };
  if (!object) {
    object = new T;
    static thread_local const Owner owner;
  }
  return *object;
}

}  // namespace tutti::detail
