// Training on folders of pictures: the same loss curve for any number of ranks, folders that are
// refused, broken files, and a file that breaks in the middle of a run.
#include "data/fixture.h"
#include "data/write_image.h"
#include "distributed/equal_bits.h"
#include "distributed/messages.h"
#include "resumed_run.h"
#include "train/checkpoint.h"
#include "train/data_check.h"
#include "train/network.h"
#include "train/trainer.h"
#include "train/training_data.h"
#include "trainer_program.h"

#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/data/transforms/resize.h>
#include <tutti/nn/models/predictor.h>
#include <tutti/nn/models/resnet.h>

#include <gtest/gtest.h>

#include <atomic>

namespace tutti {
namespace {

using namespace examples;
using test::expect_error;

using namespace std::string_literals;
namespace fs = std::filesystem;

// A folder with train/ and val/, each with pictures of the classes "a", "b" and "c": PNG and JPEG
// files of different sizes.
class FolderTraining : public ::testing::Test {
 protected:
  FolderTraining() {
    add_pictures("train", 12);
    add_pictures("val", 5);
    options_.dataset = "folder";
    options_.data = folder_.path() + "/data";
    options_.image_size = 8;
    options_.epochs = 2;
    options_.batch_size = 5;
    options_.threads = 1;
    options_.optimizer.lr = 0.02;
    options_.log_every = 1;
  }

  void add_pictures(const std::string& part, std::int64_t count) {
    Generator random(test::fresh_seed());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string path = picture(part, i);
      fs::create_directories(fs::path(path).parent_path());
      const Tensor image = test::random_image(9 + i % 4, 8 + i % 3, 3, random);
      if (path.ends_with(".png")) test::write_png(path, image);
      else test::write_jpeg(path, image);
    }
  }
  // Returns the path of a picture.
  std::string picture(const std::string& part, std::int64_t index) const {
    return fmt::format("{}/data/{}/{}/{:03}.{}", folder_.path(), part, "abc"[index % 3], index,
                       index % 2 == 0 ? "png" : "jpg");
  }
  // Cuts a file in half.
  static void break_file(const std::string& path) {
    fs::resize_file(path, fs::file_size(path) / 2);
  }

  std::vector<TrainResult> train_on(int ranks, const TrainingData& data,
                                    std::FILE* screen = nullptr) {
    std::vector<TrainResult> results(static_cast<std::size_t>(ranks));
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      results[static_cast<std::size_t>(group.rank())] = train(options_, data, group, screen);
    });
    return results;
  }
  std::vector<TrainResult> train_on(int ranks) {
    return train_on(ranks, load_training_data(options_));
  }

  test::TemporaryFolder folder_;
  TrainOptions options_;
};

TEST(SameData, ImagesInMemoryHaveAFingerprint) {
  const auto made = [](std::uint64_t seed) {
    return make_synthetic({.train = 30, .test = 13, .channels = 2, .size = 8, .seed = seed});
  };
  const TrainingData data = made(1), other = made(2);
  EXPECT_EQ(data.images, made(1).images);
  for (const char* key : {"train_fingerprint", "test_fingerprint"})
    EXPECT_NE(data.images.at(key), other.images.at(key)) << key;
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    expect_error<ValueError>([&] { expect_same_data(group.rank() == 1 ? other : data, group); },
                             {"the same data on every rank", "train_fingerprint = "});
  });
}

TEST_F(FolderTraining, RanksWithOtherCopiesOfTheDataAreRefused) {
  const TrainingData whole = load_training_data(options_);
  fs::remove(picture("train", 4));
  const TrainingData fewer = load_training_data(options_);
  fs::copy_file(picture("train", 1), picture("train", 4));
  fs::copy_file(picture("train", 10), picture("train", 10) + ".jpg");
  fs::remove(picture("train", 10));
  const TrainingData renamed = load_training_data(options_);
  distributed::run_ranks(3, [&](const ProcessGroup& group) {
    expect_same_data(whole, group);
    expect_error<ValueError>(
        [&] { expect_same_data(group.rank() == 2 ? fewer : whole, group); },
        {"rank 0 has", "train_images = 12", "rank 2 has", "train_images = 11"});
    expect_error<ValueError>([&] { expect_same_data(group.rank() == 1 ? renamed : whole, group); },
                             {"train_fingerprint = "});
  });
}

TEST_F(FolderTraining, AllBrokenFilesAreListedAtOnce) {
  for (const int i : {1, 4, 6}) break_file(picture("train", i));
  std::ofstream(folder_.path() + "/data/val/a/Thumbs.db") << "no picture";
  const TrainingData data = load_training_data(options_);
  const auto [text, broken] = check_files(data, 2);
  EXPECT_EQ(broken, 3u);
  test::expect_contains(
      text, {"3 of 12 pictures cannot be decoded:", picture("train", 1), picture("train", 4),
             picture("train", 6), "0 of 5 pictures cannot be decoded\n"});
  EXPECT_EQ(data.folders[0]->other_files() + data.folders[1]->other_files(), 1);
  const std::string dry = "--dataset folder --image-size 8 --dry-run --data " + options_.data;
  EXPECT_EQ(test::run_trainer(dry + " --check-files", 1).output, text);  // before it trains on one
  test::expect_contains(test::run_trainer(dry, 2).output, {"; --dry-run --check-files lists all"});
}

// The weights file alone is enough to classify: its card holds the names and the preprocessing.
TEST_F(FolderTraining, TheWeightsFileClassifiesAsTheTrainerDid) {
  options_.out = folder_.path() + "/run";
  const TrainResult result = train_on(1).front();
  const nn::Predictor predictor(
      options_.out + "/model.safetensors",
      {.preprocess = [](const Tensor& image, const nn::ModelCard& card) {
        return data::normalize(data::center_crop(data::resize_shorter_side(image, card.resize_size),
                                                 card.input_size, card.input_size),
                               {card.mean.begin(), card.mean.end()},
                               {card.std.begin(), card.std.end()});
      }});
  EXPECT_EQ(predictor.card().class_names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(predictor.card().input_size, 8);
  const auto test = load_training_data(options_).test;
  double right = 0;
  for (std::int64_t i = 0; i < test->size(); ++i) {
    const data::Sample sample = test->get(i);
    right += predictor.classify(sample.image, 1).front().name == "abc"s.substr(sample.label, 1);
  }
  EXPECT_DOUBLE_EQ(right / static_cast<double>(test->size()), result.test_accuracy);
}

TEST_F(FolderTraining, ANameThatTheWeightsFileCannotHoldIsRefused) {
  for (const std::string part : {"train", "val"}) {
    const std::string folder = folder_.path() + "/data/" + part + "/";
    fs::rename(folder + "b", folder + "b\xff");
  }
  expect_error<DataError>([&] { model_card(options_, load_training_data(options_)); },
                          {"the weights file cannot describe these images"});
}

// What a resume says of the folder as it is now; empty if it goes on.
class ResumedFolder : public FolderTraining {
 protected:
  ResumedFolder() {
    options_.out = folder_.path() + "/run";
    train_on(1);
    options_.resume = true;
  }
  std::string refusal(int ranks = 1) {
    options_.epochs += 1;
    const std::string before = test::content(options_.out + "/metrics.jsonl");
    test::Screen screen;
    try {
      train_on(ranks, load_training_data(options_), screen.file());
    } catch (const ErrorOnAllRanks& refused) {
      EXPECT_EQ(test::content(options_.out + "/metrics.jsonl"), before);
      return refused.what();
    }
    said_ = screen.text();
    return {};
  }
  void rename_class(const std::string& from, const std::string& to) const {
    for (const char* part : {"/train/", "/val/"})
      fs::rename(options_.data + part + from, options_.data + part + to);
  }
  std::string said_;
};

TEST_F(ResumedFolder, OtherClassesAreRefusedByName) {
  rename_class("a", "d");  // so that labels shift
  for (const int ranks : {1, 2})
    test::expect_contains(refusal(ranks),
                          {"of a run with class 0 = 'a', this one has 'b'", "--weights"});
  rename_class("d", "a");
  rename_class("b", "bb");
  test::expect_contains(refusal(), {"class 1 = 'b', this one has 'bb'"});
  rename_class("bb", "b");
  for (const char* part : {"/train/", "/val/"}) {
    fs::create_directories(options_.data + part + "d");
    fs::copy_file(picture("train", 0), options_.data + part + "d/1.png");
  }
  test::expect_contains(refusal(), {"classes = 3, this one has 4"});
  for (const char* part : {"/train/", "/val/"}) fs::remove_all(options_.data + part + "d");
  EXPECT_EQ(refusal(), "");
}

TEST_F(ResumedFolder, OtherPicturesAreRefused) {
  fs::copy_file(picture("train", 1), picture("train", 13));
  test::expect_contains(refusal(), {"train_images = 12, this one has 13"});
  fs::remove(picture("train", 13));
  fs::rename(picture("train", 1), picture("train", 13));
  test::expect_contains(refusal(), {"of a run with train_fingerprint = "});
  fs::rename(picture("train", 13), picture("train", 1));
  fs::rename(picture("train", 1), options_.data + "/train/a/001.jpg");  // of another class
  test::expect_contains(refusal(), {"of a run with train_fingerprint = "});
  fs::rename(options_.data + "/train/a/001.jpg", picture("train", 1));
  fs::remove(picture("val", 4));
  test::expect_contains(refusal(), {"test_images = 5, this one has 4"});
}

TEST_F(ResumedFolder, TheSameFolderElsewhereAndOtherRanksGoOn) {
  fs::rename(options_.data, options_.data + "-with-another-name");
  options_.data += "-with-another-name";
  EXPECT_EQ(refusal(2), "");
  options_.workers = 0;
  EXPECT_EQ(refusal(3), "");
}

TEST_F(ResumedFolder, ACheckpointThatDoesNotDescribeItsDataIsRefused) {
  Metadata metadata;
  const StateDict tensors = load_safetensors(checkpoint_path(options_), &metadata);
  for (const char* key : data_metadata) EXPECT_EQ(metadata.erase(key), 1u) << key;
  save_safetensors(checkpoint_path(options_), tensors, metadata);
  test::expect_contains(refusal(), {"does not say of which classes and images it is"});
}

TEST_F(ResumedFolder, AsWeightsItsCheckpointSaysThatTheClassesHaveOtherNames) {
  options_.resume = false;
  options_.weights = checkpoint_path(options_);
  options_.out = folder_.path() + "/other";
  rename_class("b", "bb");
  const TrainingData data = load_training_data(options_);
  const auto net = nn::resnet(options_.model, {.classes = 3});
  test::expect_contains(load_weights(options_, data, *net), {"model card differs in class_names"});
}

TEST_F(FolderTraining, AnyNumberOfRanksAndWorkersFollowsTheSameLossCurve) {
  options_.precision = float64;
  const TrainResult alone = train_on(1).front();
  ASSERT_EQ(alone.rows.size(), 6u);
  for (const int workers : {0, 2}) {
    options_.workers = workers;
    const TrainResult together = train_on(2).front();
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(together.rows[i].train_loss / alone.rows[i].train_loss, 1, 1e-10) << i;
    EXPECT_NEAR(*together.rows[5].test_loss / *alone.rows[5].test_loss, 1, 1e-8);
  }
}

TEST_F(FolderTraining, WhatTheFolderSaysIsKnown) {
  const TrainingData data = load_training_data(options_);
  EXPECT_EQ(data.train->size(), 12);
  EXPECT_EQ(data.test->size(), 5);
  EXPECT_EQ(data.class_names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(data.classes, 3);
  EXPECT_EQ(data.image_size, 8);
  EXPECT_EQ(data.resize_size, 9);
}

TEST_F(FolderTraining, WrongFoldersAreNamed) {
  const auto load = [&] { load_training_data(options_); };
  const std::string root = options_.data;
  fs::create_directory(root + "/val/dog");
  expect_error<DataError>(load, {root + "/val/dog", "has no images"});
  test::write_png(root + "/val/dog/1.png", zeros({9, 9, 3}, {.dtype = uint8}));
  expect_error<DataError>(load, {root + "/train and " + root + "/val have different classes",
                                 "class 3 is none and 'dog'"});
  fs::remove_all(root + "/val/dog");
  fs::remove_all(root + "/val/a");
  fs::remove_all(root + "/val/b");
  expect_error<DataError>(load, {"class 0 is 'a' and 'c'"});
  fs::remove_all(root + "/train/a");
  fs::remove_all(root + "/train/b");
  expect_error<DataError>(load, {root + "/train has one class only, 'c'"});
  fs::remove_all(root + "/train");
  expect_error<DataError>(load, {root + "/train is missing"});
  fs::create_directory(root + "/train");
  expect_error<DataError>(load, {root + "/train has no folders"});
}

TEST_F(FolderTraining, ABrokenFileEndsAllRanksWithItsName) {
  break_file(picture("train", 7));
  for (const int ranks : {1, 2})
    expect_error<DataError>([&] { train_on(ranks); }, {picture("train", 7)});
  const std::string flags =
      "--dataset folder --image-size 8 --model resnet20 --batch-size 4 --data " + options_.data +
      " --out " + folder_.path() + "/program";
  const test::Outcome run = test::run_trainer(flags, 2);
  EXPECT_EQ(run.code, 2);
  test::expect_contains(run.output, {picture("train", 7), "--dry-run --check-files lists all"});
  const test::Outcome checked = test::run_trainer(flags + " --dry-run --check-files", 1);
  EXPECT_EQ(checked.code, 2);
  test::expect_contains(checked.output, {"1 of 12 pictures", picture("train", 7)});
}

// A dataset whose files can no longer be read after some number of samples, as when a disk or a
// network goes away.
class BreaksLater final : public data::Dataset {
 public:
  BreaksLater(std::shared_ptr<const data::Dataset> dataset, int samples)
      : dataset_(std::move(dataset)), left_(samples) {}
  std::int64_t size() const override { return dataset_->size(); }
  data::Sample get(std::int64_t index) const override {
    if (left_.fetch_sub(1) <= 0) fail<DataError>("{}: Input/output error", describe(index));
    return dataset_->get(index);
  }
  std::string describe(std::int64_t index) const override { return dataset_->describe(index); }

 private:
  std::shared_ptr<const data::Dataset> dataset_;
  mutable std::atomic<int> left_;
};

// A run in which the data can no longer be read after some samples, and the same run in one piece.
class BrokenOff : public FolderTraining {
 protected:
  // Returns the error of a run on the data.
  std::string error_of(const TrainingData& data) {
    return test::message_of<Error>([&] { train_on(2, data); });
  }

  void expect_continues_to(const std::vector<TrainResult>& whole, const TrainingData& data) {
    ASSERT_TRUE(fs::exists(options_.out + "/checkpoint.safetensors"));
    options_.resume = true;
    const auto parts = train_on(2, data);
    for (std::size_t r = 0; r < 2; ++r) test::expect_equal_results(parts[r], whole[r]);
  }
};

TEST_F(BrokenOff, ATestLeavesACheckpointOfTheTrainedEpoch) {
  options_.log_every = 2;
  options_.out = folder_.path() + "/whole";
  const TrainingData data = load_training_data(options_);
  const auto whole = train_on(2, data);
  for (const int samples : {0, 7}) {  // in the test of the first epoch, and of the last
    options_.resume = false;
    options_.out = fmt::format("{}/parts{}", folder_.path(), samples);
    TrainingData breaking = data;
    breaking.test = std::make_shared<BreaksLater>(data.test, samples);
    EXPECT_NE(error_of(breaking).find("Input/output error"), std::string::npos);
    expect_continues_to(whole, data);
  }
}

}  // namespace
}  // namespace tutti
