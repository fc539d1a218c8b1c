// DataLoader: the same batches on any number of threads and ranks, resuming, errors, memory, ends.
#include <tutti/autograd/functions.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/data/image_folder.h>
#include <tutti/data/loader.h>
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/mixup.h>
#include <tutti/data/transforms/normalize.h>

#include "distributed/process.h"
#include "fixture.h"
#include "which_sanitizer.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <thread>

namespace tutti {
namespace {

using namespace data;
using namespace test;
using namespace std::chrono_literals;

// A dataset whose samples are made by a function.
class FunctionDataset final : public Dataset {
 public:
  FunctionDataset(std::int64_t size, std::function<Sample(std::int64_t)> get)
      : size_(size), get_(std::move(get)) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override { return get_(index); }
  std::string describe(std::int64_t index) const override { return fmt::format("file {}", index); }

 private:
  std::int64_t size_;
  std::function<Sample(std::int64_t)> get_;
};

std::shared_ptr<Dataset> synthetic(std::int64_t count) {
  return std::make_shared<SyntheticDataset>(
      SyntheticDataset::Options{.count = count, .height = 12, .width = 14});
}

std::vector<Transform> augmentations() {
  return {RandomResizedCrop({.size = 8}), RandomHorizontalFlip(), Normalize(),
          [](const Tensor& image, Generator& random) { return image + random.uniform(); }};
}

// Returns what is compared of a batch: its indices, labels and pixels.
std::vector<double> content(const Batch& batch) {
  std::vector<double> all(batch.indices.begin(), batch.indices.end());
  for (const Tensor& part : {batch.labels, batch.images, batch.soft_labels})
    if (part.defined())
      for (const double value : to_vector(part)) all.push_back(value);
  return all;
}

std::vector<std::vector<double>> read_epochs(DataLoader& loader, int epochs) {
  std::vector<std::vector<double>> batches;
  for (int epoch = 0; epoch < epochs; ++epoch)
    while (auto batch = loader.next()) batches.push_back(content(*batch));
  return batches;
}

TEST(DataLoader, BatchesDoNotDependOnTheThreads) {
  const std::uint64_t seed = fresh_seed();
  std::vector<std::vector<double>> first;
  for (const int workers : {0, 1, 3, 8})
    for (const int prefetch : {1, 4}) {
      DataLoader loader(synthetic(50),
                        {.sampler = {.batch_size = 8, .seed = seed},
                         .transforms = augmentations(),
                         .batch_transforms = {SoftLabels({.classes = 10}), MixUp(0.5)},
                         .workers = workers,
                         .prefetch = prefetch});
      const auto batches = read_epochs(loader, 2);
      ASSERT_EQ(batches.size(), 14u);
      if (first.empty()) first = batches;
      EXPECT_EQ(batches, first) << workers << " workers, prefetch " << prefetch;
    }
  EXPECT_NE(first[0], first[7]) << "epochs must differ";
}

TEST(DataLoader, TheRanksPartsMakeTheBatchOfOneRank) {
  const std::uint64_t seed = fresh_seed();
  const auto make = [&](int rank, int ranks) {
    return DataLoader::Options{
        .sampler = {.batch_size = 9, .seed = seed, .rank = rank, .ranks = ranks},
        .transforms = augmentations()};
  };
  DataLoader whole(synthetic(40), make(0, 1));
  std::vector<std::unique_ptr<DataLoader>> parts;
  for (int rank = 0; rank < 3; ++rank)
    parts.push_back(std::make_unique<DataLoader>(synthetic(40), make(rank, 3)));
  while (auto all = whole.next()) {
    std::vector<double> pixels, labels;
    for (auto& loader : parts) {
      const auto part = loader->next();
      ASSERT_TRUE(part);
      EXPECT_EQ(part->global_size, all->images.size(0));
      for (const double value : to_vector(part->images)) pixels.push_back(value);
      for (const double value : to_vector(part->labels)) labels.push_back(value);
    }
    EXPECT_EQ(pixels, to_vector(all->images));
    EXPECT_EQ(labels, to_vector(all->labels));
  }
  for (auto& loader : parts) EXPECT_FALSE(loader->next());
}

TEST(DataLoader, BatchTransformsDrawForEachSampleOnAnyRank) {
  const std::uint64_t seed = fresh_seed();
  for (int rank = 0; rank < 3; ++rank) {
    const BatchTransform compare = [&](Batch& batch, std::span<Generator> randoms) {
      ASSERT_EQ(randoms.size(), batch.indices.size());
      for (std::size_t i = 0; i < randoms.size(); ++i) {
        // The numbers 0 and 1 are those of the transforms of images.
        const RandomKey key{.seed = seed, .epoch = batch.epoch, .sample = batch.indices[i]};
        EXPECT_EQ(randoms[i].state(), key.generator(2).state());
      }
    };
    DataLoader loader(synthetic(20),
                      {.sampler = {.batch_size = 9, .seed = seed, .rank = rank, .ranks = 3},
                       .transforms = {RandomHorizontalFlip(), Normalize()},
                       .batch_transforms = {compare}});
    read_epochs(loader, 2);
  }
}

TEST(DataLoader, ImagesAreStackedInTheLayoutOfTheTransforms) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const auto dataset = synthetic(6);
    const Normalize::Options normalization{.format = format};
    DataLoader loader(dataset, {.sampler = {.batch_size = 4, .shuffle = false},
                                .transforms = {Normalize(normalization)}});
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->images.shape(), (Shape{4, 3, 12, 14}));
    EXPECT_EQ(batch->images.strides(), dense_strides({4, 3, 12, 14}, format));
    for (std::int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(
          to_vector(batch->images.select(0, i)),
          to_vector(normalize(dataset->get(i).image, normalization.mean, normalization.deviation)));
      EXPECT_EQ(batch->labels.data<std::int64_t>()[i], dataset->get(i).label);
    }
  }
  DataLoader bytes(synthetic(6), {.sampler = {.batch_size = 4}});
  EXPECT_EQ(bytes.next()->images.shape(), (Shape{4, 12, 14, 3}));
}

TEST(DataLoader, GoesOnInTheMiddleOfAnEpoch) {
  const std::uint64_t seed = fresh_seed();
  const DataLoader::Options options{
      .sampler = {.batch_size = 8, .seed = seed}, .transforms = augmentations(), .workers = 2};
  DataLoader whole(synthetic(50), options);
  std::vector<std::vector<double>> batches;
  std::vector<DataLoader::State> states{whole.state()};
  for (int epoch = 0; epoch < 2; ++epoch)
    while (auto batch = whole.next()) {
      batches.push_back(content(*batch));
      states.push_back(whole.state());
    }
  ASSERT_EQ(batches.size(), 14u);
  EXPECT_EQ(states[10], (DataLoader::State{.epoch = 1, .batch = 3}));
  for (const std::size_t at : {0, 3, 7, 10, 13}) {
    DataLoader again(synthetic(50), options);
    again.next();  // what was loaded before, and ahead, must not show
    again.set_state(states[at]);
    auto batch = again.next();
    if (!batch) batch = again.next();  // the state at the end of an epoch
    ASSERT_TRUE(batch);
    EXPECT_EQ(content(*batch), batches[at]);
  }
  EXPECT_THROW(whole.set_state({.epoch = 0, .batch = 8}), ValueError);
  EXPECT_THROW(whole.set_state({.epoch = -1}), ValueError);
}

TEST(DataLoader, TheErrorOfASampleReachesTheCallerWithTheNameOfItsFile) {
  const PictureFolder folder;
  for (int i = 0; i < 20; ++i) folder.add_image(fmt::format("a/{:02}.jpg", i));
  for (const char* broken : {"/a/13.jpg", "/a/14.jpg"})
    std::ofstream(folder.path() + broken) << "no image";
  const auto dataset = std::make_shared<ImageFolder>(folder.path());
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(dataset,
                      {.sampler = {.batch_size = 4, .shuffle = false}, .workers = workers});
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(loader.next());
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error<DataError>([&] { loader.next(); }, {folder.path() + "/a/13.jpg", "JPEG or PNG"});
      EXPECT_EQ(loader.state(), (DataLoader::State{.epoch = 0, .batch = 3}));
    }
    loader.set_state({.epoch = 0, .batch = 4});
    EXPECT_TRUE(loader.next()) << "the loader stays usable";
  }
}

TEST(DataLoader, ABatchThatFailedIsTriedAgain) {
  std::atomic<bool> broken = true;
  const auto dataset = std::make_shared<FunctionDataset>(8, [&](std::int64_t index) -> Sample {
    if (broken && index == 5) throw std::runtime_error("the disk is away");
    return {.image = full({2, 2, 3}, static_cast<double>(index), {.dtype = uint8}), .label = index};
  });
  DataLoader loader(dataset, {.sampler = {.batch_size = 4, .shuffle = false}});
  ASSERT_TRUE(loader.next());
  expect_error<DataError>([&] { loader.next(); }, {"file 5", "the disk is away"});
  broken = false;
  const auto batch = loader.next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(to_vector(batch->labels), (std::vector<double>{4, 5, 6, 7}));
  EXPECT_FALSE(loader.next());
}

TEST(DataLoader, ErrorsOfTransformsNameTheSampleOrTheBatch) {
  const Transform refuse = [](const Tensor&, Generator&) -> Tensor { fail<ValueError>("refused"); };
  DataLoader sample(synthetic(4), {.sampler = {.shuffle = false}, .transforms = {refuse}});
  expect_error<DataError>([&] { sample.next(); }, {"sample 0", "refused"});
  const Transform throw_a_number = [](const Tensor&, Generator&) -> Tensor { throw 7; };
  DataLoader number(synthetic(4), {.sampler = {.shuffle = false}, .transforms = {throw_a_number}});
  expect_error<DataError>([&] { number.next(); }, {"sample 0"});
  DataLoader batch(synthetic(4), {.batch_transforms = {MixUp(0.2)}});
  expect_error<DataError>([&] { batch.next(); }, {"batch 0 of epoch 0", "SoftLabels"});
  const Transform nothing = [](const Tensor&, Generator&) { return Tensor(); };
  DataLoader undefined(synthetic(4), {.sampler = {.shuffle = false}, .transforms = {nothing}});
  expect_error<DataError>([&] { undefined.next(); }, {"sample 0"});
}

// A dataset may name another sample than the one that was asked for.
TEST(DataLoader, ErrorsNameTheFileThatWasReadOnce) {
  const auto dataset = std::make_shared<FunctionDataset>(1, [](std::int64_t) -> Sample {
    return {.image = zeros({2, 2, 3}, {.dtype = uint8}), .name = "the next file"};
  });
  for (const char* text : {"refused", "the next file is refused"}) {
    const Transform refuse = [text](const Tensor&, Generator&) -> Tensor {
      fail<ValueError>("{}", text);
    };
    DataLoader loader(dataset, {.transforms = {refuse}});
    const std::string what = message_of<DataError>([&] { loader.next(); });
    EXPECT_NE(what.find("the next file"), std::string::npos) << what;
    EXPECT_EQ(what.find("the next file"), what.rfind("the next file")) << what;
    EXPECT_EQ(what.find("file 0"), std::string::npos) << what;
  }
}

TEST(DataLoader, ABatchTransformThatThrowsANumberLeavesTheLoaderUsable) {
  for (const int workers : {0, 1}) {
    std::atomic<bool> throws = true;
    const BatchTransform sometimes = [&](Batch&, std::span<Generator>) {
      if (throws) throw 7;
    };
    DataLoader loader(synthetic(4), {.batch_transforms = {sometimes}, .workers = workers});
    for (int i = 0; i < 2; ++i)
      expect_error<DataError>([&] { loader.next(); }, {"batch 0 of epoch 0", "no std::exception"});
    throws = false;
    EXPECT_TRUE(loader.next());
  }
}

TEST(DataLoader, WhatTheMachineLacksIsNoDataError) {
  const auto loader_of = [](auto fault) {
    return DataLoader(std::make_shared<FunctionDataset>(1,
                                                        [fault](std::int64_t) -> Sample {
                                                          fault();
                                                          return {};
                                                        }),
                      {});
  };
  DataLoader memory = loader_of([] { throw std::bad_alloc(); }),
             tensor = loader_of([] { fail<OutOfMemoryError>("no memory for a tensor"); }),
             file = loader_of([] { fail<FileError>("too many open files"); });
  for (DataLoader* loader : {&memory, &tensor})
    expect_error<OutOfMemoryError>([&] { loader->next(); }, {"file 0: "});
  expect_error<FileError>([&] { file.next(); }, {"file 0: too many open files"});
}

TEST(DataLoader, ImagesOfDifferentSizesAreNamed) {
  const auto dataset = std::make_shared<FunctionDataset>(6, [](std::int64_t index) -> Sample {
    return {.image = zeros({4, index < 3 ? 5 : 6, 3}, {.dtype = uint8})};
  });
  for (const int workers : {0, 4})
    for (int repeat = 0; repeat < 10; ++repeat) {
      DataLoader loader(dataset, {.sampler = {.shuffle = false}, .workers = workers});
      expect_error<DataError>([&] { loader.next(); },
                              {"file 0", "(4, 5, 3)", "file 3", "(4, 6, 3)", "CenterCrop"});
    }
}

TEST(DataLoader, ARankWithoutSamplesGetsAnEmptyBatchOfTheRightShape) {
  DataLoader loader(synthetic(5),
                    {.sampler = {.batch_size = 4, .rank = 0, .ranks = 2},
                     .transforms = {Normalize({.format = MemoryFormat::channels_last})},
                     .batch_transforms = {SoftLabels({.classes = 10}), MixUp(0.2)}});
  EXPECT_EQ(loader.next()->images.size(0), 2);
  const auto batch = loader.next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->images.shape(), (Shape{0, 3, 12, 14}));
  EXPECT_EQ(batch->labels.shape(), (Shape{0}));
  EXPECT_EQ(batch->soft_labels.shape(), (Shape{0, 10}));
  EXPECT_EQ(batch->global_size, 1);
  EXPECT_TRUE(batch->indices.empty());
  DataLoader none(synthetic(0), {});
  EXPECT_FALSE(none.next());
  EXPECT_FALSE(none.next());
}

TEST(DataLoader, NoMoreBatchesThanAskedForAreLoadedAhead) {
  for (const int prefetch : {1, 3}) {
    std::atomic<int> loaded = 0;
    const auto dataset = std::make_shared<FunctionDataset>(1000, [&](std::int64_t) -> Sample {
      ++loaded;
      return {.image = zeros({2, 2, 3}, {.dtype = uint8})};
    });
    DataLoader loader(dataset, {.sampler = {.batch_size = 10}, .workers = 4, .prefetch = prefetch});
    for (int taken = 1; taken <= 5; ++taken) {
      ASSERT_TRUE(loader.next());
      const int most = 10 * (taken + prefetch);
      for (int i = 0; i < 3000 && loaded < most; ++i) std::this_thread::sleep_for(10ms);
      EXPECT_EQ(loaded, most) << "the threads must go on without next()";
      std::this_thread::sleep_for(20ms);
      EXPECT_EQ(loaded, most);
    }
  }
}

TEST(DataLoader, EndsAtOnceInTheMiddleOfWork) {
  std::atomic<int> loaded = 0;
  const auto dataset = std::make_shared<FunctionDataset>(100'000, [&](std::int64_t) -> Sample {
    ++loaded;
    std::this_thread::sleep_for(1ms);
    return {.image = zeros({2, 2, 3}, {.dtype = uint8})};
  });
  for (int repeat = 0; repeat < 20; ++repeat) {
    const int before = loaded;
    {
      DataLoader loader(dataset, {.sampler = {.batch_size = 50'000, .seed = 1}, .workers = 4});
      if (repeat % 2 == 1) loader.set_state({.epoch = 3, .batch = 1});
      if (repeat % 4 == 3) std::this_thread::sleep_for(2ms);
    }
    EXPECT_LT(loaded - before, 25'000) << "a batch has 50,000";
  }
  const int before = loaded;
  {
    DataLoader loader(dataset, {.sampler = {.batch_size = 4}, .workers = 4, .prefetch = 1000});
    ASSERT_TRUE(loader.next());
  }
  EXPECT_LT(loaded - before, 10'000) << "an epoch has 100,000";
}

TEST(DataLoader, TheChildOfAForkIsToldThatTheThreadsAreTheParents) {
  for (const int workers : {0, 2}) {
    DataLoader::Options options;
    options.sampler.batch_size = 4;
    options.workers = workers;
    auto loader = std::make_unique<DataLoader>(synthetic(40), options);
    ASSERT_TRUE(loader->next());
    std::fflush(nullptr);
    const pid_t child = test::fork_beside_threads();
    if (child == 0) {
      alarm(20);  // ends a child that hangs
      bool is_right = workers == 0;
      try {
        loader->next();
      } catch (const Error& error) {
        is_right = workers == 2 &&
                   std::string(error.what()).find("forked from") != std::string::npos;
      }
      loader.reset();
      if (test::under_thread_sanitizer) options.workers = 0;
      _exit(is_right && DataLoader(synthetic(40), options).next() ? 0 : 1);
    }
    test::expect_exit(child, 0);
    EXPECT_TRUE(loader->next());
  }
}

TEST(DataLoader, TheTimeOfWaitingIsCounted) {
  const auto dataset = std::make_shared<FunctionDataset>(8, [](std::int64_t) -> Sample {
    std::this_thread::sleep_for(10ms);
    return {.image = zeros({2, 2, 3}, {.dtype = uint8})};
  });
  DataLoader loader(dataset, {.sampler = {.batch_size = 4}});
  loader.next();
  const double first = loader.waited().count();
  EXPECT_GE(first, 0.039);
  std::this_thread::sleep_for(500ms);  // meanwhile the second batch becomes ready
  loader.next();
  EXPECT_LT(loader.waited().count() - first, first);
}

TEST(DataLoader, MemoryIsPinnedOnlyWhereThereIsCuda) {
  const auto images = std::make_shared<SyntheticDataset>(SyntheticDataset::Options{.count = 5});
  const auto load = [&] {
    return DataLoader(images, {.transforms = {Normalize()}, .pin_memory_for = Device::cuda()})
        .next()
        ->images;
  };
  if (cuda::device_count() == 0) {
    expect_error<DeviceError>([&] { load(); }, {"pinned memory needs CUDA"});
    return;
  }
  EXPECT_EQ(to_vector(load()),
            to_vector(DataLoader(images, {.transforms = {Normalize()}}).next()->images));
}

TEST(DataLoader, BadOptionsAreNamed) {
  EXPECT_THROW(DataLoader(nullptr, {}), ValueError);
  EXPECT_THROW(DataLoader(synthetic(4), {.workers = -1}), ValueError);
  EXPECT_THROW(DataLoader(synthetic(4), {.prefetch = 0}), ValueError);
  EXPECT_THROW(DataLoader(synthetic(4), {.sampler = {.batch_size = 0}}), ValueError);
}

}  // namespace
}  // namespace tutti
