// Trains new heads for a network inside a host program that has threads of its own: two candidates
// at a time, each on its thread, with a progress callback and with cancellation between two steps.
// The better one is saved with its model card, ready for examples/classify.
//   finetune [--data DIR] [--weights FILE] [--out FILE] [--steps N] [--cancel-second-after N]
// DIR has the pictures, DIR/CLASS/*.jpg; without it they are made up. FILE has the weights to start
// from; without it they are random. Errors are one line on standard error and exit status 2.
#include <tutti/tutti.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <stop_token>
using namespace tutti;

namespace {

// What both candidates begin with. It is only read once the threads run.
struct Start {
  nn::ModelCard card;  // of the network with its new head
  StateDict weights;   // of the network with its old head
  std::int64_t old_classes = 0;
  std::shared_ptr<const data::Dataset> dataset;
};

struct Candidate {
  const char* name;
  double learning_rate;
  int steps;
};

struct Outcome {
  std::shared_ptr<nn::ResNet> net;
  double accuracy = 0;  // over the dataset
  bool is_cancelled = false;
};

data::DataLoader make_loader(const Start& start, bool shuffle) {
  const nn::ModelCard& card = start.card;
  std::vector<data::Transform> transforms;
  if (card.resize_size > 0) transforms.push_back(data::Resize(card.resize_size));
  transforms.push_back(data::CenterCrop(card.input_size));
  if (shuffle) transforms.push_back(data::RandomHorizontalFlip());
  transforms.push_back(data::Normalize({.mean = {card.mean.begin(), card.mean.end()},
                                        .deviation = {card.std.begin(), card.std.end()},
                                        .format = MemoryFormat::channels_last}));
  return data::DataLoader(
      start.dataset, {.sampler = {.batch_size = 32, .shuffle = shuffle}, .transforms = transforms});
}

double accuracy_of(nn::ResNet& net, const Start& start) {
  net.eval();
  const NoGrad no_grad;
  data::DataLoader loader = make_loader(start, false);
  double correct = 0;
  while (const auto batch = loader.next())
    correct += sum(eq(argmax(net(batch->images), 1), batch->labels).to(float32)).item<double>();
  return correct / static_cast<double>(start.dataset->size());
}

// [snippet]
// Runs on a thread of the host program and uses nothing that another thread changes: it has a
// network, an optimizer and a loader of its own. `on_step` is called on this thread.
Outcome fine_tune(const Start& start, const Candidate& candidate, const std::stop_token& stop,
                  const std::function<void(const Candidate&, int step, double loss)>& on_step) {
  set_num_threads(std::max(1, available_cores() / 2));  // a new thread computes alone by default
  manual_seed(1);                                       // each candidate begins with the same head
  const auto net =
      nn::resnet(start.card.model, {.classes = start.old_classes, .channels = start.card.channels});
  net->load_state_dict(start.weights);
  nn::freeze(*net);
  net->replace_child("fc", std::make_shared<nn::Linear>(nn::Linear::Options{
                               .in = net->fc->options().in, .out = start.card.classes}));

  optim::Adam adam(net->fc->parameters(), {.lr = candidate.learning_rate});
  data::DataLoader loader = make_loader(start, true);
  for (int step = 1; step <= candidate.steps; ++step) {
    if (stop.stop_requested()) return {.net = net, .is_cancelled = true};
    auto batch = loader.next();
    if (!batch) batch = loader.next();  // the next epoch
    const Tensor loss = nn::cross_entropy((*net)(batch->images), batch->labels);
    adam.zero_grad();
    loss.backward();
    adam.step();
    on_step(candidate, step, loss.item<double>());
  }
  return {.net = net, .accuracy = accuracy_of(*net, start)};
}
// [/snippet]

// ---- The host program.

using Flags = std::map<std::string, std::string>;

Flags parse(std::vector<std::string> words) {
  Flags flags{{"--data", ""},
              {"--weights", ""},
              {"--out", "finetuned.safetensors"},
              {"--steps", "60"},
              {"--cancel-second-after", "0"}};
  const bool overwrites = std::erase(words, "--overwrite") > 0;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    if (!flags.contains(words[i]) || i + 1 == words.size())
      throw ValueError(
          "usage: finetune [--data DIR] [--weights FILE] [--out FILE] [--overwrite] [--steps N] "
          "[--cancel-second-after N]");
    flags[words[i]] = words[i + 1];
  }
  if (!overwrites && std::filesystem::exists(flags["--out"]))
    throw ValueError(flags["--out"] + " exists: --overwrite replaces it, --out names another file");
  return flags;
}

int number(const Flags& flags, const std::string& name, int least) {
  const auto value = parse_number(flags.at(name), least);
  if (!value)
    throw ValueError(name + ": expected a number of at least " + std::to_string(least) + ", got '" +
                     excerpt(flags.at(name)) + "'");
  return *value;
}

// Random weights, whose batch normalisation has seen the pictures: for a first try.
StateDict random_weights(const Start& start) {
  const auto net =
      nn::resnet(start.card.model, {.classes = start.old_classes, .channels = start.card.channels});
  data::DataLoader loader = make_loader(start, false);
  nn::recompute_statistics(*net, [&] {
    while (const auto batch = loader.next()) (*net)(batch->images);
  });
  return net->state_dict();
}

std::shared_ptr<const data::Dataset> open_dataset(const std::string& folder, int channels) {
  if (!folder.empty())
    return std::make_shared<data::ImageFolder>(
        folder, data::ImageFolder::Options{.decode = {.channels = channels}});
  return std::make_shared<data::SyntheticDataset>(
      data::SyntheticDataset::Options{.count = 256, .channels = channels, .classes = 4});
}

Start load_start(const Flags& flags) {
  Start start;
  if (!flags.at("--weights").empty()) {
    Metadata metadata;
    start.weights = load_safetensors(flags.at("--weights"), &metadata);
    start.card = nn::ModelCard::from_metadata(metadata);
  } else {
    start.card = {.model = "resnet20",
                  .classes = 10,
                  .channels = 3,
                  .mean = {0.5, 0.5, 0.5},
                  .std = {0.25, 0.25, 0.25},
                  .resize_size = 32,
                  .input_size = 32};
  }
  start.old_classes = start.card.classes;
  start.dataset = open_dataset(flags.at("--data"), static_cast<int>(start.card.channels));
  start.card.class_names = start.dataset->class_names();
  if (start.card.class_names.empty())
    start.card.class_names = {"wave A", "wave B", "wave C", "wave D"};
  start.card.classes = static_cast<std::int64_t>(start.card.class_names.size());
  if (start.weights.empty()) start.weights = random_weights(start);
  return start;
}

void run(const Flags& flags) {
  const int steps = number(flags, "--steps", 1);
  const int cancel_after = number(flags, "--cancel-second-after", 0);
  const Start start = load_start(flags);
  const std::array<Candidate, 2> candidates{{{"first", 0.01, steps}, {"second", 0.001, steps}}};

  std::mutex printing;
  std::stop_source cancel_second;  // any thread of the host may request the stop
  const auto on_step = [&](const Candidate& candidate, int step, double loss) {
    const std::lock_guard lock(printing);
    if (step == 1 || step % 20 == 0)
      std::printf("%-6s step %3d  loss %.4f\n", candidate.name, step, loss);
    if (&candidate == &candidates[1] && step == cancel_after) cancel_second.request_stop();
  };
  // A future passes the exceptions of its thread on.
  const auto start_thread = [&](const Candidate& candidate, std::stop_token stop) {
    return std::async(std::launch::async, fine_tune, std::cref(start), std::cref(candidate),
                      std::move(stop), on_step);
  };
  auto second = start_thread(candidates[1], cancel_second.get_token()),
       first = start_thread(candidates[0], {});
  const std::array<Outcome, 2> outcomes{first.get(), second.get()};

  for (std::size_t i = 0; i < 2; ++i)
    if (outcomes[i].is_cancelled) std::printf("%-6s cancelled\n", candidates[i].name);
    else std::printf("%-6s accuracy %.4f\n", candidates[i].name, outcomes[i].accuracy);
  const Outcome& best = outcomes[outcomes[1].accuracy > outcomes[0].accuracy ? 1 : 0];
  save_safetensors(flags.at("--out"), best.net->state_dict(), start.card.to_metadata());
  std::printf("saved %s\n", flags.at("--out").c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  run(parse({argv + 1, argv + argc}));
} catch (const std::exception& error) {
  std::fprintf(stderr, "finetune: %s\n", escape_controls(error.what()).c_str());
  return 2;
}
