// Data files: what is read from them, and the errors for files that are missing, truncated or
// corrupt.
#include "data/dataset.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

using namespace examples;

namespace fs = std::filesystem;

class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    fs::create_directories(folder_);
    images_ = header(0x803, {3, 28, 28});
    for (int i = 0; i < 3 * 28 * 28; ++i) images_.push_back(static_cast<char>(i * 7));
    labels_ = header(0x801, {3}) + std::string{1, 9, 0};
    write("train-images-idx3-ubyte.gz", images_);
    write("train-labels-idx1-ubyte.gz", labels_);
  }
  ~DataTest() override { fs::remove_all(folder_); }

  static std::string header(std::uint32_t magic, std::vector<std::uint32_t> sizes) {
    std::string out;
    sizes.insert(sizes.begin(), magic);
    for (const std::uint32_t value : sizes)
      for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
    return out;
  }
  void write(const std::string& name, const std::string& bytes) {
    if (name.ends_with(".gz")) {
      const gzFile file = gzopen((folder_ + "/" + name).c_str(), "wb");
      gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
      gzclose(file);
    } else {
      std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    }
  }
  // Expects an error of one line that names the file and contains `what`.
  void expect_error(const std::string& file, const std::string& what) {
    try {
      load_idx(folder_, "train");
      ADD_FAILURE() << "no error about " << file;
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(file), std::string::npos) << message;
      EXPECT_NE(message.find(what), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }

  std::string folder_ =
      (fs::temp_directory_path() / ("tutti_data_" + std::to_string(getpid()))).string();
  std::string images_, labels_;
};

TEST(Shard, RanksDivideTheImagesAmongThem) {
  const Dataset whole = make_synthetic(11, 2, 4, 3);
  std::vector<std::uint8_t> images, labels;
  for (int r = 0; r < 3; ++r) {
    const Dataset part = shard(whole, r, 3);
    EXPECT_EQ(part.count, r == 0 ? 3 : 4);
    images.insert(images.end(), part.images.begin(), part.images.end());
    labels.insert(labels.end(), part.labels.begin(), part.labels.end());
  }
  EXPECT_EQ(images, whole.images);
  EXPECT_EQ(labels, whole.labels);
}

TEST_F(DataTest, ReadsIdxGzippedOrNot) {
  for (const bool zipped : {true, false}) {
    if (!zipped) {
      fs::remove(folder_ + "/train-images-idx3-ubyte.gz");
      write("train-images-idx3-ubyte", images_);
    }
    const Dataset data = load_idx(folder_, "train");
    EXPECT_EQ(data.count, 3);
    EXPECT_EQ(data.labels, (std::vector<std::uint8_t>{1, 9, 0}));
    ASSERT_EQ(data.images.size(), 3u * 28 * 28);
    EXPECT_EQ(data.images[1000], static_cast<std::uint8_t>(7000));
  }
}

TEST_F(DataTest, MissingFolderAndFile) {
  EXPECT_THROW(load_idx(folder_ + "/nowhere", "train"), DataError);
  fs::remove(folder_ + "/train-labels-idx1-ubyte.gz");
  expect_error("train-labels-idx1-ubyte", "missing");
}

TEST_F(DataTest, TruncatedContent) {
  write("train-images-idx3-ubyte.gz", images_.substr(0, 1000));
  expect_error("train-images-idx3-ubyte.gz", "truncated");
}

TEST_F(DataTest, TruncatedArchiveAtEveryLength) {
  const std::string path = folder_ + "/train-labels-idx1-ubyte.gz";
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    expect_error("train-labels-idx1-ubyte.gz", "");
  }
}

TEST_F(DataTest, FlippedBitFailsTheChecksum) {
  const std::string path = folder_ + "/train-images-idx3-ubyte.gz";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-6, std::ios::end);  // the checksum's third byte
  file.put('\x5a');
  file.close();
  expect_error("train-images-idx3-ubyte.gz", "corrupt");
}

TEST_F(DataTest, CorruptContent) {
  write("train-images-idx3-ubyte.gz", "GIF89a, surely no images of the kind");
  expect_error("train-images-idx3-ubyte.gz", "corrupt");
  write("train-images-idx3-ubyte.gz", header(0x803, {4'000'000'000u, 28, 28}));
  expect_error("train-images-idx3-ubyte.gz", "corrupt");
  write("train-images-idx3-ubyte.gz", images_ + "x");
  expect_error("train-images-idx3-ubyte.gz", "longer");
  write("train-images-idx3-ubyte.gz", images_);
  write("train-labels-idx1-ubyte.gz", header(0x801, {2}) + std::string{1, 2});
  expect_error("train-labels-idx1-ubyte.gz", "2 labels for 3 images");
  write("train-labels-idx1-ubyte.gz", header(0x801, {3}) + std::string{1, 2, 10});
  expect_error("train-labels-idx1-ubyte.gz", "label 10");
}

TEST_F(DataTest, AHeaderThatClaimsTooMuchIsRefusedBeforeAnythingIsRead) {
  write("train-images-idx3-ubyte.gz", header(0x803, {3'000'000, 28, 28}) + std::string(100, 'x'));
  expect_error("train-images-idx3-ubyte.gz", "claims 3000000 images, expected 1 to 1000000");
  // A million images are legal, but 2 MB of zeros, compressed to some 2 KB, cannot become 784 MB.
  write("train-images-idx3-ubyte.gz",
        header(0x803, {1'000'000, 28, 28}) + std::string(2'000'000, '\0'));
  expect_error("train-images-idx3-ubyte.gz", "truncated: its header announces 784000000 bytes");
}

TEST_F(DataTest, WhatIsNoRegularFileIsRefused) {
  const std::string path = folder_ + "/train-images-idx3-ubyte";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // opening it would wait for a writer
  expect_error("train-images-idx3-ubyte", "not a regular file");
  fs::remove(path);
  fs::create_directory(path);
  expect_error("train-images-idx3-ubyte", "not a regular file");
  EXPECT_THROW(load_cifar10(folder_, {"train-images-idx3-ubyte"}), DataError);
  EXPECT_THROW(load_idx(folder_ + "/" + std::string(300, 'x'), "train"), DataError);
}

TEST_F(DataTest, ACifar10FileOfTooManyImagesIsRefusedBeforeAnythingIsRead) {
  write("a.bin", "");
  fs::resize_file(folder_ + "/a.bin", 3073 * std::uintmax_t{1'000'000});  // it has no blocks
  try {
    load_cifar10(folder_, {"a.bin"});
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("a.bin is too long: it has 1000000 images"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(DataTest, Cifar10TurnsPlanesIntoPixels) {
  std::string record(1 + 3072, '\0');
  record[0] = 7;
  record[1] = 11, record[1 + 1024] = 22, record[1 + 2048] = 33, record[2] = 44;
  write("a.bin", record + record);
  const Dataset data = load_cifar10(folder_, {"a.bin"});
  EXPECT_EQ(data.count, 2);
  EXPECT_EQ(data.labels[1], 7);
  EXPECT_EQ((std::vector<std::uint8_t>{data.images.begin(), data.images.begin() + 4}),
            (std::vector<std::uint8_t>{11, 22, 33, 44}));
  write("a.bin", record + "x");
  EXPECT_THROW(load_cifar10(folder_, {"a.bin"}), DataError);
  EXPECT_THROW(load_cifar10(folder_, {"b.bin"}), DataError);
  EXPECT_THROW(load_cifar10(folder_ + "/nowhere", {"a.bin"}), DataError);
  record[0] = 10;
  write("a.bin", record);
  EXPECT_THROW(load_cifar10(folder_, {"a.bin"}), DataError);
}

}  // namespace
}  // namespace tutti
