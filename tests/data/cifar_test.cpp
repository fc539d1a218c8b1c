// CIFAR's binary files: what is read from them, and the errors for files that are missing,
// truncated or corrupt.
#include "data/fixture.h"

#include <tutti/data/cifar.h>

#include <set>

namespace tutti {
namespace {

using namespace data;
using test::expect_error;

namespace fs = std::filesystem;

// Makes records of random pixels, and keeps what was written.
class Cifar : public ::testing::Test {
 protected:
  // Appends records with these label bytes to a file.
  void add(const std::string& name, const std::vector<std::vector<std::uint8_t>>& labels) {
    std::ofstream file(folder_.path() + "/" + name, std::ios::binary | std::ios::app);
    for (const auto& label : labels) {
      const Tensor planes = randint(256, {3, 32, 32}, {.dtype = uint8}, random_);
      file.write(reinterpret_cast<const char*>(label.data()),
                 static_cast<std::streamsize>(label.size()));
      file.write(static_cast<const char*>(planes.raw()), 3 * 32 * 32);
      planes_.push_back(planes);
    }
  }
  void add_training_files() {
    for (int i = 1; i <= 5; ++i)
      add(fmt::format("data_batch_{}.bin", i), {{static_cast<std::uint8_t>(i)}, {9}});
  }
  // Expects the images in the order in which their records were added.
  void expect_images(const Dataset& images) {
    ASSERT_EQ(images.size(), static_cast<std::int64_t>(planes_.size()));
    for (std::int64_t i = 0; i < images.size(); ++i) {
      const Tensor image = images.get(i).image, planes = planes_[static_cast<std::size_t>(i)];
      ASSERT_EQ(image.shape(), (Shape{32, 32, 3}));
      for (std::int64_t p = 0; p < 32 * 32; ++p)
        for (std::int64_t c = 0; c < 3; ++c)
          ASSERT_EQ(image.data<std::uint8_t>()[3 * p + c],
                    planes.data<std::uint8_t>()[c * 32 * 32 + p]);
    }
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  test::PictureFolder folder_;
  Generator random_{test::fresh_seed()};
  std::vector<Tensor> planes_;
};

TEST_F(Cifar, TheTrainingFilesOfCifar10FollowEachOther) {
  add_training_files();
  const auto images = load_cifar10(folder_.path(), Split::train);
  expect_images(*images);
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(images->get(i).label, i % 2 == 0 ? i / 2 + 1 : 9);
  const auto names = images->class_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 10u);
}

TEST_F(Cifar, TheLabelsOfCifar100AreTheFineOnes) {
  add("test.bin", {{19, 99}, {20, 1}});
  const auto images = load_cifar100(folder_.path(), Split::test);
  expect_images(*images);
  EXPECT_EQ(images->get(0).label, 99);
  EXPECT_TRUE(images->class_names().empty());
  std::ofstream(path("fine_label_names.txt")) << "only one\n";
  expect_error<DataError>([&] { load_cifar100(folder_.path(), Split::test); },
                          {"fine_label_names.txt", "1 names of classes, expected 100"});
  for (int i = 1; i < 100; ++i)
    std::ofstream(path("fine_label_names.txt"), std::ios::app) << "class " << i << "\n";
  EXPECT_EQ(load_cifar100(folder_.path(), Split::test)->class_names()[99], "class 99");
}

TEST_F(Cifar, WrongFilesAreNamed) {
  const auto load = [&] { load_cifar10(folder_.path(), Split::train); };
  expect_error<DataError>([&] { load_cifar10(path("nowhere"), Split::test); },
                          {"nowhere", "missing"});
  add_training_files();
  fs::resize_file(path("data_batch_2.bin"), 2 * 3073 - 1);
  expect_error<DataError>(load, {"data_batch_2.bin is truncated"});
  fs::resize_file(path("data_batch_2.bin"), 0);
  expect_error<DataError>(load, {"data_batch_2.bin is truncated"});
  fs::remove(path("data_batch_2.bin"));
  expect_error<DataError>(load, {"data_batch_2.bin is missing"});
  fs::copy_file(path("data_batch_1.bin"), path("data_batch_2"));
  expect_error<DataError>(load, {"data_batch_2 is of the version for Python"});
  fs::create_directory(path("data_batch_2.bin"));
  expect_error<DataError>(load, {"data_batch_2.bin is not a regular file"});
  fs::remove(path("data_batch_2.bin"));
  add("data_batch_2.bin", {{10}});
  expect_error<DataError>(load, {"data_batch_2.bin is corrupt: label 10, expected 0 to 9"});
  add("train.bin", {{3, 100}});
  expect_error<DataError>([&] { load_cifar100(folder_.path(), Split::train); },
                          {"train.bin is corrupt: label 100, expected 0 to 99"});
}

TEST_F(Cifar, AFileOfTooManyImagesIsRefusedBeforeAnythingIsRead) {
  add("test_batch.bin", {{1}});
  fs::resize_file(path("test_batch.bin"), 3073 * std::uintmax_t{1'000'000});  // it has no blocks
  expect_error<DataError>([&] { load_cifar10(folder_.path(), Split::test); },
                          {"test_batch.bin is too long: it has 1000000 images"});
}

}  // namespace
}  // namespace tutti
