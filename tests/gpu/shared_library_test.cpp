// A library is loaded when it is first used, and errors say what was tried. No device is used.
#include <tutti/core/cuda/shared_library.h>
#include <tutti/core/error.h>

#include <gtest/gtest.h>
#include <cmath>

namespace tutti::shared_library_test {
namespace {

using cuda::SharedLibrary;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no DeviceError";
}

TEST(SharedLibrary, CallsAFunctionThatItFindsByItsName) {
  const SharedLibrary math("the C library", "libm.so.6", "");
  constexpr double (*round_down)(double) = ::floor;
  EXPECT_EQ(math.call<round_down>("floor", 2.5), 2.0);
}

TEST(SharedLibrary, AnAbsentLibraryIsNamedWithEveryFileThatWasTried) {
  const std::string text =
      error_of([] { SharedLibrary("cuThing", "libcuthing.so.7", "/no/such/folder"); });
  EXPECT_NE(text.find("cuThing could not be loaded"), std::string::npos) << text;
  EXPECT_NE(text.find("libcuthing.so.7: cannot open"), std::string::npos) << text;
  EXPECT_NE(text.find("/no/such/folder/libcuthing.so.7"), std::string::npos) << text;
  EXPECT_NE(text.find("LD_LIBRARY_PATH"), std::string::npos) << text;
}

TEST(SharedLibrary, AnAbsentFunctionAsksForALaterVersion) {
  const SharedLibrary math("the C library", "libm.so.6", "");
  const std::string text = error_of([&] { math.find("cuThingCreate"); });
  EXPECT_NE(text.find("no function cuThingCreate"), std::string::npos) << text;
  EXPECT_NE(text.find("later version"), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::shared_library_test
