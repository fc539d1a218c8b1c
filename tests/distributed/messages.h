// Helpers for tests of failures: they catch an exception and check its text.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

// Returns the message of the E that fn throws. Any other outcome fails the test.
template <class E>
std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another type of exception: " << other.what();
    return other.what();
  }
  ADD_FAILURE() << "no exception";
  return {};
}

inline void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

/// Expects that fn throws an E whose message contains all parts.
template <class E>
void expect_error(const std::function<void()>& fn, const std::vector<std::string>& parts) {
  expect_contains(message_of<E>(fn), parts);
}

}  // namespace tutti::test
