// IDX files: what is read from them, and the errors for files that are missing, truncated or
// corrupt.
#include "data/fixture.h"

#include <tutti/data/idx.h>

#include <sys/stat.h>
#include <zlib.h>

namespace tutti {
namespace {

using namespace data;

namespace fs = std::filesystem;

class IdxFiles : public ::testing::Test {
 protected:
  IdxFiles() {
    images_ = header(0x803, {3, 28, 28});
    for (int i = 0; i < 3 * 28 * 28; ++i) images_.push_back(static_cast<char>(i * 7));
    labels_ = header(0x801, {3}) + std::string{1, 9, 0};
    write("train-images-idx3-ubyte.gz", images_);
    write("train-labels-idx1-ubyte.gz", labels_);
  }

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
  // Expects an error of one line that names the file, its path at most once, and contains `what`.
  void expect_error(const std::string& file, const std::string& what) {
    const std::string message = test::message_of<DataError>([&] { load_idx(folder_, "train"); });
    test::expect_contains(message, {file, what});
    const std::string path = folder_ + "/" + file;
    EXPECT_EQ(message.find(path), message.rfind(path)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }

  test::PictureFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::string images_, labels_;
};

TEST_F(IdxFiles, ReadsIdxGzippedOrNot) {
  for (const bool zipped : {true, false}) {
    if (!zipped) {
      fs::remove(folder_ + "/train-images-idx3-ubyte.gz");
      write("train-images-idx3-ubyte", images_);
    }
    const auto images = load_idx(folder_, "train");
    ASSERT_EQ(images->size(), 3);
    for (std::int64_t i = 0; i < 3; ++i) {
      const Sample sample = images->get(i);
      EXPECT_EQ(sample.label, (std::vector<std::int64_t>{1, 9, 0})[static_cast<std::size_t>(i)]);
      ASSERT_EQ(sample.image.shape(), (Shape{28, 28, 1}));
      for (std::int64_t p = 0; p < 28 * 28; ++p)
        ASSERT_EQ(sample.image.data<std::uint8_t>()[p],
                  static_cast<std::uint8_t>((i * 28 * 28 + p) * 7));
    }
  }
}

TEST_F(IdxFiles, MissingFolderAndFile) {
  EXPECT_THROW(load_idx(folder_ + "/nowhere", "train"), DataError);
  fs::remove(folder_ + "/train-labels-idx1-ubyte.gz");
  expect_error("train-labels-idx1-ubyte", "missing");
}

TEST_F(IdxFiles, TruncatedContent) {
  write("train-images-idx3-ubyte.gz", images_.substr(0, 1000));
  expect_error("train-images-idx3-ubyte.gz", "truncated");
}

TEST_F(IdxFiles, TruncatedArchiveAtEveryLength) {
  const std::string path = folder_ + "/train-labels-idx1-ubyte.gz";
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    expect_error("train-labels-idx1-ubyte.gz", "");
  }
}

TEST_F(IdxFiles, FlippedBitFailsTheChecksum) {
  const std::string path = folder_ + "/train-images-idx3-ubyte.gz";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-6, std::ios::end);  // the checksum's third byte
  file.put('\x5a');
  file.close();
  expect_error("train-images-idx3-ubyte.gz", "corrupt");
}

TEST_F(IdxFiles, CorruptContent) {
  write("train-images-idx3-ubyte.gz", "GIF89a, surely no images of the kind");
  expect_error("train-images-idx3-ubyte.gz", "corrupt");
  write("train-images-idx3-ubyte.gz", header(0x803, {4'000'000'000u, 28, 28}));
  expect_error("train-images-idx3-ubyte.gz", "corrupt");
  write("train-images-idx3-ubyte.gz", images_ + "x");
  expect_error("train-images-idx3-ubyte.gz", "longer");
  write("train-images-idx3-ubyte.gz", images_);
  write("train-labels-idx1-ubyte.gz", header(0x801, {2}) + std::string{1, 2});
  expect_error("train-labels-idx1-ubyte.gz", "2 labels for 3 images");
  write("train-labels-idx1-ubyte.gz", header(0x801, {4}) + std::string{1, 2, 3, 4});
  expect_error("train-labels-idx1-ubyte.gz", "4 labels for 3 images");
  write("train-labels-idx1-ubyte.gz", header(0x801, {3}) + std::string{1, 2, 10});
  expect_error("train-labels-idx1-ubyte.gz", "label 10");
}

TEST_F(IdxFiles, OtherNamesFoldersAndTypesAreTakenOrNamed) {
  for (const std::string kind : {"images-idx3", "labels-idx1"}) {
    std::string dotted = kind;
    dotted[dotted.find('-')] = '.';
    fs::rename(folder_ + "/train-" + kind + "-ubyte.gz",
               folder_ + "/train-" + dotted + "-ubyte.gz");
  }
  EXPECT_EQ(load_idx(folder_, "train")->size(), 3);
  const std::string raw = folder_ + "/MNIST/raw";
  fs::create_directories(raw);
  fs::rename(folder_ + "/train-labels.idx1-ubyte.gz", raw + "/train-labels-idx1-ubyte");
  expect_error("train-labels-idx1-ubyte", "give the folder " + raw);
  write("train-images.idx3-ubyte.gz", header(0xC03, {3, 28, 28}));
  expect_error("train-images.idx3-ubyte.gz", "holds int32 in 3 dimensions, expected uint8 in 3");
}

TEST_F(IdxFiles, AHeaderThatClaimsTooMuchIsRefusedBeforeAnythingIsRead) {
  write("train-images-idx3-ubyte.gz", header(0x803, {3'000'000, 28, 28}) + std::string(100, 'x'));
  expect_error("train-images-idx3-ubyte.gz", "claims 3000000 images, expected 1 to 1000000");
  // A million images are legal, but 2 MB of zeros, compressed to some 2 KB, cannot become 784 MB.
  write("train-images-idx3-ubyte.gz",
        header(0x803, {1'000'000, 28, 28}) + std::string(2'000'000, '\0'));
  expect_error("train-images-idx3-ubyte.gz", "truncated: its header announces 784000000 bytes");
  // A file that is not compressed cannot become larger.
  write("train-images-idx3-ubyte",
        header(0x803, {20, 28, 28}) + std::string(20 * 28 * 28 - 17, 'x'));
  expect_error("train-images-idx3-ubyte", "truncated: its header announces 15680 bytes");
  fs::remove(folder_ + "/train-images-idx3-ubyte");
  write("train-images-idx3-ubyte.gz", header(0x803, {3, 2'000, 28}));
  expect_error("train-images-idx3-ubyte.gz", "2000 x 28 pixels, expected sides of 1 to 1024");
}

TEST_F(IdxFiles, ImagesMayHaveAnySizeAndLabelsAnyNumberOfClasses) {
  write("t10k-images-idx3-ubyte",
        header(0x803, {2, 3, 5}) + std::string(15, 'a') + std::string(15, 'b'));
  write("t10k-labels-idx1-ubyte", header(0x801, {2}) + std::string{46, 0});
  EXPECT_THROW(load_idx(folder_, "t10k"), DataError);  // a label of 46 in 10 classes
  const auto images = load_idx(folder_, "t10k", {.classes = 47});
  EXPECT_EQ(images->get(1).image.shape(), (Shape{3, 5, 1}));
  EXPECT_EQ(images->get(1).image.data<std::uint8_t>()[14], 'b');
  EXPECT_EQ(images->get(0).label, 46);
  EXPECT_TRUE(images->class_names().empty());
  EXPECT_THROW(load_idx(folder_, "t10k", {.classes = 47, .class_names = {"a", "b"}}), ValueError);
  EXPECT_THROW(load_idx(folder_, "t10k", {.classes = 257}), ValueError);
  EXPECT_EQ(load_idx(folder_, "train", {.class_names = std::vector<std::string>(10, "x")})
                ->class_names()
                .size(),
            10u);
}

TEST_F(IdxFiles, WhatIsNoRegularFileIsRefused) {
  const std::string path = folder_ + "/train-images-idx3-ubyte";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // opening it would wait for a writer
  expect_error("train-images-idx3-ubyte", "not a regular file");
  fs::remove(path);
  fs::create_directory(path);
  expect_error("train-images-idx3-ubyte", "not a regular file");
  EXPECT_THROW(load_idx(folder_ + "/" + std::string(300, 'x'), "train"), DataError);
}

}  // namespace
}  // namespace tutti
