// Whether ThreadSanitizer checks the tests. It does not see how OpenMP's threads synchronise, and
// lets no child of a fork start threads where its parent had several.
#pragma once

namespace tutti::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif

}  // namespace tutti::test
