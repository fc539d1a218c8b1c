// What the tests of data/ share: images, fixtures, temporary folders and comparisons of bytes.
#pragma once

#include "distributed/messages.h"
#include "temporary_folder.h"

#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace tutti::test {

/// Returns a tensor of tests/fixtures/data.safetensors.
inline Tensor data_fixture(const std::string& name) {
  static const StateDict all = load_safetensors(TUTTI_TEST_DATA "/data.safetensors");
  for (const auto& [key, tensor] : all)
    if (key == name) return tensor;
  throw std::runtime_error("data.safetensors has no tensor " + name);
}

/// Returns the path of a file of tests/fixtures/images.
inline std::string image_path(const std::string& name) {
  return std::string(TUTTI_TEST_DATA) + "/images/" + name;
}

inline std::vector<std::uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// Expects equal shapes, and bytes that differ by `tolerance` at most.
inline void expect_levels(const Tensor& got, const Tensor& expected, int tolerance,
                          const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(to_string(got.shape()), to_string(expected.shape()));
  ASSERT_EQ(got.dtype(), uint8);
  int worst = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i)
    worst =
        std::max(worst, std::abs(got.data<std::uint8_t>()[i] - expected.data<std::uint8_t>()[i]));
  EXPECT_LE(worst, tolerance);
}

/// Returns a fresh seed, and prints it.
inline std::uint64_t fresh_seed() {
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  return seed;
}

/// Returns an image of random bytes.
inline Tensor random_image(std::int64_t height, std::int64_t width, std::int64_t channels,
                           Generator& random) {
  return randint(256, {height, width, channels}, {.dtype = uint8}, random);
}

/// A folder of pictures for one test.
class PictureFolder : public TemporaryFolder {
 public:
  PictureFolder() : TemporaryFolder("pictures") {}
  /// Copies an image of the fixtures to `name`, and makes the folders on the way.
  std::string add_image(const std::string& name, const std::string& fixture = "rgb.jpg") const {
    const std::string to = *this / name;
    std::filesystem::create_directories(std::filesystem::path(to).parent_path());
    std::filesystem::copy_file(image_path(fixture), to);
    return to;
  }
};

}  // namespace tutti::test
