// Trains one network of benchmarks/results/when_to_synchronise.md on ranks that are threads, and
// prints one line: the arguments, three test scores (with the running statistics of rank 0, with
// those of all ranks pooled, with recomputed ones), four training losses and the seconds. Sizes,
// lengths and rates are fixed here; when_to_synchronise.py makes all runs and draws them.
#include "../examples/unet.h"

#include <tutti/tutti.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>

namespace {

using namespace tutti;

constexpr std::int64_t global_batch = 16, recomputed_batches = 32, channel_groups = 4;

// The fixed recipe of a task. Both have a one-cycle schedule.
struct Task {
  bool segments;
  std::int64_t steps;
  std::int64_t classes;
  std::shared_ptr<const data::Dataset> training, test;
  std::vector<data::Transform> training_transforms, test_transforms;
};

std::shared_ptr<const data::Dataset> first(std::shared_ptr<const data::Dataset> all,
                                           std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return std::make_shared<data::Subset>(std::move(all), std::move(indices));
}

Task make_task(const std::string& name, const std::string& folder) {
  if (name == "segmentation") {
    const data::Transform crop = data::RandomCrop({.size = 48, .padding = 0});
    const data::Transform norm = data::Normalize(
        {.mean = {0.5f}, .deviation = {0.25f}, .format = MemoryFormat::channels_last});
    return {true,
            600,
            11,
            std::make_shared<data::SegmentationFolder>(folder + "/train"),
            std::make_shared<data::SegmentationFolder>(folder + "/val"),
            {crop, data::RandomHorizontalFlip(), norm},
            {crop, norm}};
  }
  if (name != "classification")
    fail<ValueError>("expected segmentation or classification, got '{}'", name);
  const data::Transform norm = data::Normalize(
      {.mean = {0.286f}, .deviation = {0.353f}, .format = MemoryFormat::channels_last});
  return {false,
          500,
          10,
          first(data::load_idx(folder, "train"), 4'000),
          first(data::load_idx(folder, "t10k"), 2'000),
          {data::RandomHorizontalFlip(), norm},
          {norm}};
}

std::shared_ptr<nn::Layer> make_network(const Task& task, const std::string& mode,
                                        const ProcessGroup& group) {
  std::shared_ptr<nn::Layer> net;
  if (task.segments)
    net = std::make_shared<examples::UNet>(
        examples::UNet::Options{.channels = 3, .classes = task.classes, .width = 8, .levels = 4});
  else net = nn::resnet("resnet20", {.classes = task.classes, .channels = 1});
  net->to(MemoryFormat::channels_last);
  if (mode == "sync") nn::convert_sync_batchnorm(*net, group);
  else if (mode == "pairs") nn::convert_sync_batchnorm(*net, group.split_by_size(2));
  else if (mode == "group_norm") nn::convert_batchnorm_to_groupnorm(*net, channel_groups);
  else if (mode != "local")
    fail<ValueError>("expected local, sync, pairs or group_norm, got '{}'", mode);
  return net;
}

// Returns the mean IoU of all pixels, or the accuracy. Crops are the same in every call.
double evaluate(const Task& task, nn::Layer& net) {
  const NoGrad no_grad;
  net.eval();
  data::DataLoader loader(task.test, {.sampler = {.batch_size = 50, .shuffle = false},
                                      .transforms = task.test_transforms,
                                      .workers = 0});
  nn::ConfusionMatrix matrix(task.classes);
  while (const auto batch = loader.next()) {
    matrix.add(argmax(net(batch->images), 1), batch->labels);
  }
  net.train();
  return task.segments ? matrix.mean_iou() : matrix.pixel_accuracy();
}

data::DataLoader loader_of(const Task& task, std::uint64_t seed, const ProcessGroup& group) {
  return data::DataLoader(task.training, {.sampler = {.batch_size = global_batch,
                                                      .seed = seed,
                                                      .rank = group.rank(),
                                                      .ranks = group.size(),
                                                      .remainder = data::Remainder::drop},
                                          .transforms = task.training_transforms,
                                          .workers = 0});
}

data::Batch next(data::DataLoader& loader) {
  std::optional<data::Batch> batch = loader.next();
  return batch ? std::move(*batch) : loader.next().value();  // of the following epoch
}

// Trains and returns the mean losses of step 1, steps up to 10, up to 100, and the last 100.
std::vector<double> train(const Task& task, std::uint64_t seed, nn::Layer& net,
                          const ProcessGroup& group) {
  const DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (task.segments)
    optimizer =
        std::make_unique<optim::AdamW>(net.parameters(), optim::AdamW::Options{.lr = 0.004});
  else
    optimizer = std::make_unique<optim::SGD>(
        net.parameters(), optim::SGD::Options{.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4});
  optim::Scheduler schedule(*optimizer, optim::one_cycle({.steps = task.steps}));
  data::DataLoader loader = loader_of(task, seed, group);
  distributed::MetricSums sums(1, Device::cpu());
  std::vector<double> losses;
  for (std::int64_t step = 1; step <= task.steps; ++step) {
    const data::Batch batch = next(loader);
    const Tensor loss = nn::cross_entropy(net(batch.images), batch.labels);
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    schedule.step();
    sums.add({loss.detach()});
    sums.count(group.size());
    if (step == 1 || step == 10 || step == 100 || step == task.steps - 100 || step == task.steps) {
      losses.push_back(sums.take(group)[0]);
      if (step == task.steps) losses.erase(losses.end() - 2);
    }
  }
  return losses;
}

// Replaces the running statistics by those of other batches of the training data.
void recompute(const Task& task, std::uint64_t seed, nn::Layer& net, const ProcessGroup& group) {
  data::DataLoader loader = loader_of(task, seed + 1000, group);
  const NoGrad no_grad;
  nn::recompute_statistics(
      net,
      [&] {
        for (std::int64_t i = 0; i < recomputed_batches; ++i) net(next(loader).images);
      },
      group);
}

void run(int argc, char** argv) {
  if (argc != 6)
    fail<ValueError>(
        "usage: {} segmentation|classification FOLDER RANKS "
        "local|sync|pairs|group_norm SEED",
        argv[0]);
  const Task task = make_task(argv[1], argv[2]);
  const std::string mode = argv[4];
  const std::uint64_t seed = std::stoull(argv[5]);
  const auto start = std::chrono::steady_clock::now();
  distributed::run_ranks(std::stoi(argv[3]), [&](const ProcessGroup& group) {
    manual_seed(seed);
    const auto net = make_network(task, mode, group);
    const std::vector<double> losses = train(task, seed, *net, group);
    std::vector<double> scores;
    const auto score = [&] {
      if (group.rank() == 0) scores.push_back(evaluate(task, *net));
    };
    score();
    nn::pool_statistics(*net, group);
    score();
    recompute(task, seed, *net, group);
    score();
    if (group.rank() != 0) return;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    std::printf("%s %s %s %s  %.4f %.4f %.4f  %.7f %.7f %.7f %.7f  %.0f\n", argv[1], argv[3],
                argv[4], argv[5], scores[0], scores[1], scores[2], losses[0], losses[1], losses[2],
                losses[3], passed.count());
  });
}

}  // namespace

int main(int argc, char** argv) try { run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "when_to_synchronise: %s\n", error.what());
  return 2;
}
