// Which sanitizer checks the tests. ThreadSanitizer lets no child of a fork start threads where its
// parent had several. AddressSanitizer of GCC
// does not take the locks of its allocator before a fork: the child of a process whose other
// threads allocate may wait for one of them without end.
#pragma once

namespace tutti::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool under_address_sanitizer = true;
#else
inline constexpr bool under_address_sanitizer = false;
#endif

}  // namespace tutti::test
