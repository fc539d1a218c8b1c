// Datasets: folders of images, parts and concatenations, tensors in memory, made-up images.
#include <tutti/data/dataset.h>
#include <tutti/data/image_folder.h>

#include "fixture.h"

#include <sys/resource.h>

#include <set>

namespace tutti {
namespace {

using namespace data;
using namespace test;

TEST(ImageFolder, FilesAreOrderedByClassThenFolderThenName) {
  const PictureFolder folder;
  for (const char* name : {"dog/b.jpg", "dog/a.JPG", "cat/z.jpeg", "cat/sub/x.png",
                           "cat/sub-2/y.jfif", "cat/sub/deep/w.jpg", "dog/notes.txt", "Eel/1.jpg"})
    folder.add_image(name);
  folder.add_image("beside_the_classes.jpg");
  // What file managers, notebooks and macOS leave in folders is no class and no picture.
  for (const char* name : {".ipynb_checkpoints/a.jpg", "dog/.ipynb_checkpoints/a.jpg",
                           "dog/.hidden.jpg", "dog/._b.jpg", "dog/Thumbs.db"})
    folder.add_image(name);
  const ImageFolder images(folder.path());
  EXPECT_EQ(images.other_files(), 2) << "notes.txt and Thumbs.db";
  EXPECT_EQ(images.class_names(), (std::vector<std::string>{"Eel", "cat", "dog"}));
  std::vector<std::string> names;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < images.size(); ++i) {
    names.push_back(images.describe(i).substr(folder.path().size() + 1));
    labels.push_back(images.get(i).label);
    EXPECT_EQ(images.get(i).name, images.describe(i));
  }
  // torchvision orders folders by their paths as texts, where '-' comes before '/'.
  EXPECT_EQ(names, (std::vector<std::string>{"Eel/1.jpg", "cat/z.jpeg", "cat/sub/x.png",
                                             "cat/sub-2/y.jfif", "cat/sub/deep/w.jpg", "dog/a.JPG",
                                             "dog/b.jpg"}));
  EXPECT_EQ(labels, (std::vector<std::int64_t>{0, 1, 1, 1, 1, 2, 2}));
  expect_levels(images.get(0).image, data_fixture("rgb.jpg.rgb"), 1, "image");
}

TEST(ImageFolder, MissingAndEmptyFoldersAreNamed) {
  const PictureFolder folder;
  expect_error<DataError>([&] { ImageFolder(folder.path() + "/none"); },
                          {"/none is missing", "CLASS"});
  expect_error<DataError>([&] { ImageFolder{folder.path()}; },
                          {folder.path(), "one for each class"});
  folder.add_image("cat/a.jpg");
  std::filesystem::create_directories(folder.path() + "/dog/sub");
  expect_error<DataError>([&] { ImageFolder{folder.path()}; },
                          {folder.path() + "/dog", "no images"});
}

TEST(ImageFolder, ALinkToAFolderAboveIsAnError) {
  const PictureFolder folder;
  folder.add_image("cat/a.jpg");
  std::filesystem::create_directory_symlink(folder.path() + "/cat", folder.path() + "/cat/loop");
  EXPECT_THROW(ImageFolder{folder.path()}, DataError);
}

TEST(ImageFolder, ALinkToItselfIsNamedAndOneToNothingIsNoPicture) {
  const PictureFolder folder;
  folder.add_image("cat/a.jpg");
  std::filesystem::create_symlink("nowhere", folder.path() + "/cat/nothing");
  EXPECT_EQ(ImageFolder(folder.path()).size(), 1);
  std::filesystem::create_symlink("self.jpg", folder.path() + "/cat/self.jpg");
  expect_error<DataError>([&] { ImageFolder{folder.path()}; },
                          {"cannot follow " + folder.path() + "/cat/self.jpg", "remove the link"});
}

class BrokenFolder : public ::testing::Test {
 protected:
  BrokenFolder() {
    folder_.add_image("a/1.png", "rgb.png");
    std::ofstream(folder_.path() + "/a/2.png") << "no image";
    folder_.add_image("b/3.png", "grey.png");
    std::ofstream(folder_.path() + "/b/4.jpg");
  }
  PictureFolder folder_;
};

TEST_F(BrokenFolder, ABrokenFileIsNamed) {
  const ImageFolder images(folder_.path());
  EXPECT_EQ(images.get(0).label, 0);
  expect_error<DataError>([&] { images.get(1); }, {folder_.path() + "/a/2.png", "JPEG or PNG"});
}

TEST_F(BrokenFolder, AFileThatTheSystemCannotReadNowIsAFileError) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs file descriptors itself";
#endif
  const ImageFolder images(folder_.path());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string text;
  try {
    images.get(0);
  } catch (const FileError& error) {
    text = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(text.find("/a/1.png: cannot open the file"), std::string::npos) << text;
  EXPECT_EQ(images.get(0).label, 0);
}

TEST(TensorDataset, SamplesAreViewsOfTheImages) {
  Generator random(fresh_seed());
  const Tensor images = randint(256, {5, 3, 4, 2}, {.dtype = uint8}, random),
               labels = tensor({4, 3, 2, 1, 0}, {.dtype = int64});
  const TensorDataset dataset(images, labels, {"a", "b", "c", "d", "e"});
  ASSERT_EQ(dataset.size(), 5);
  const Sample sample = dataset.get(3);
  EXPECT_EQ(sample.label, 1);
  EXPECT_EQ(sample.image.data<std::uint8_t>(), images.data<std::uint8_t>() + 3 * 24);
  EXPECT_EQ(sample.image.shape(), (Shape{3, 4, 2}));
  EXPECT_EQ(dataset.class_names().size(), 5u);
  expect_error<ValueError>([&] { dataset.get(5); }, {"0 to 4", "got 5"});
  EXPECT_THROW(dataset.get(-1), ValueError);
  EXPECT_THROW(TensorDataset(images, tensor({1, 2}, {.dtype = int64})), ShapeError);
  EXPECT_THROW(TensorDataset(images, zeros({5})), DTypeError);
}

TEST(SyntheticDataset, SamplesFollowFromTheSeedAndTheIndex) {
  const std::uint64_t seed = fresh_seed();
  const SyntheticDataset a({.count = 200, .seed = seed}), b({.count = 300, .seed = seed}),
      other({.count = 200, .seed = seed + 1});
  std::set<std::int64_t> labels;
  int differences = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const Sample x = a.get(i), y = b.get(i);
    EXPECT_EQ(x.label, y.label);
    EXPECT_EQ(to_vector(x.image), to_vector(y.image));
    labels.insert(x.label);
    differences += to_vector(x.image) != to_vector(other.get(i).image);
  }
  EXPECT_EQ(labels.size(), 10u);
  EXPECT_EQ(differences, 200);
  EXPECT_THROW(SyntheticDataset({.channels = 0}), ValueError);
}

TEST(Subset, HasTheListedSamplesInTheirOrder) {
  const auto whole = std::make_shared<SyntheticDataset>(SyntheticDataset::Options{.count = 10});
  const Subset part(whole, {7, 2, 7});
  ASSERT_EQ(part.size(), 3);
  EXPECT_EQ(to_vector(part.get(2).image), to_vector(whole->get(7).image));
  EXPECT_EQ(part.describe(1), "sample 2");
  EXPECT_THROW(part.get(3), ValueError);
  expect_error<ValueError>([&] { Subset(whole, {3, 10}); }, {"0 to 9", "got 10"});
}

}  // namespace
}  // namespace tutti
