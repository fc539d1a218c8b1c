// This program trains on all of its ranks, stops all of them after the same step when one gets a
// signal, and goes on from its checkpoint with the same bits, called in the same way:
// mpirun -n 2 training_loop run.safetensors. Without an argument it checks that it does so.
#include <tutti/tutti.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
using namespace tutti;

namespace {

std::shared_ptr<nn::Sequential> make_net(const ProcessGroup& group) {
  manual_seed(1);
  const auto net = std::make_shared<nn::Sequential>();
  net->append<nn::Conv2d>({.in = 3, .out = 8, .kernel = 3, .padding = 1});
  net->append<nn::SyncBatchNorm>({.channels = 8, .group = group});
  net->append<nn::ReLU>();
  net->append<nn::AdaptiveAvgPool2d>();
  net->append<nn::Flatten>();
  net->append<nn::Dropout>({.p = 0.1});
  net->append<nn::Linear>({.in = 8, .out = 4});
  return net;
}

// [snippet]
// The settings on which the numbers of a run depend.
struct Settings {
  double lr = 0.1;
  std::int64_t batch_size = 32;  // of all ranks together
};

// A training run: what it consists of, and how it is saved and goes on.
class Run {
 public:
  Run(ProcessGroup group, std::string file, const Settings& settings = {})
      : group_(std::move(group)), file_(std::move(file)), settings_(settings) {
    distributed::check_same_on_ranks(group_, "settings",
                                     "lr = " + std::to_string(settings.lr) +
                                         "\nbatch size = " + std::to_string(settings.batch_size));
    manual_seed(1 + group_.rank());  // from here on, dropout draws other masks on every rank
    load();
  }
  void train(std::int64_t steps, const distributed::StopRequest* request);

 private:
  void save();
  void load();

  ProcessGroup group_;
  std::string file_;
  Settings settings_;
  std::shared_ptr<nn::Sequential> net_ = make_net(group_);
  distributed::DataParallel ddp_{net_->named_parameters(), net_->named_buffers(), group_};
  optim::SGD sgd_{net_->parameters(), {.lr = settings_.lr, .momentum = 0.9}};
  optim::Scheduler schedule_{sgd_, optim::cosine({.steps = 120})};
  data::DataLoader loader_{std::make_shared<data::SyntheticDataset>(data::SyntheticDataset::Options{
                               .count = 256, .height = 8, .width = 8, .classes = 4}),
                           {.sampler = {.batch_size = settings_.batch_size,
                                        .seed = 1,
                                        .rank = group_.rank(),
                                        .ranks = group_.size()},
                            .transforms = {data::Normalize()}}};
  std::int64_t step_ = 0;
};

// Trains up to `steps` steps, or until a rank is asked to stop, and saves. Every rank calls it.
void Run::train(std::int64_t steps, const distributed::StopRequest* request) {
  distributed::StopAgreement stop(group_, request);
  distributed::MetricSums sums(1, Device::cpu());
  while (step_ < steps && stop.signal() == 0) {
    const auto batch = loader_.next();
    if (!batch) continue;  // the end of an epoch
    stop.begin_step();
    const Tensor loss = nn::cross_entropy((*net_)(batch->images), batch->labels);
    sgd_.zero_grad();
    loss.backward();
    sgd_.step();
    schedule_.set_position(++step_);
    sums.add({loss.detach() * static_cast<double>(batch->labels.size(0))});
    sums.count(batch->global_size);
    stop.end_step();
    if (step_ % 8 > 0) continue;
    const double mean = sums.take(group_)[0];  // of all ranks since the last call
    if (group_.rank() == 0) std::printf("step %3d  loss %.4f\n", static_cast<int>(step_), mean);
  }
  save();
}

// Rank 0 alone works with files. Where it throws, all ranks throw the same error.
void on_rank_0(const ProcessGroup& group, const char* what, const std::function<void()>& work) {
  const auto call = [&] {
    if (group.rank() == 0) work();
  };
  distributed::call_on_all_ranks(group, what, call, [](const std::exception&) { return 1; });
}

void Run::save() {
  distributed::RunState state;
  state.add("model", net_->state_dict());
  const optim::OptimizerState optimizer = sgd_.state_dict();
  state.add("optimizer", optimizer.tensors, optimizer.metadata);
  state.tensors.emplace_back("random", distributed::gather_generators(group_));  // of every rank
  state.metadata["step"] = std::to_string(step_);
  on_rank_0(group_, "save", [&] { save_safetensors(file_, state.tensors, state.metadata); });
}

void Run::load() {
  distributed::RunState state;
  on_rank_0(group_, "load", [&] {
    if (std::filesystem::exists(file_)) state.tensors = load_safetensors(file_, &state.metadata);
  });
  state = distributed::broadcast(state, group_);
  if (state.tensors.empty()) return;  // a run that begins
  net_->load_state_dict(state.part("model"));
  sgd_.load_state_dict({state.part("optimizer"), state.metadata_of("optimizer")});
  const Tensor random = state.tensor("random", int64, {group_.size(), 2});
  distributed::set_generator(random.select(0, group_.rank()));
  step_ = state.number("step");
  schedule_.set_position(step_);
  loader_.set_state(
      {.epoch = step_ / loader_.batches_per_epoch(), .batch = step_ % loader_.batches_per_epoch()});
}
// [/snippet]

// Trains 24 steps at once, and again with a stop after the first ones: the files must be equal.
int check(const ProcessGroup& group) {
  const std::string whole = "training_loop_whole.safetensors", parts = "training_loop.safetensors";
  on_rank_0(group, "clean up", [&] {
    std::filesystem::remove(whole);
    std::filesystem::remove(parts);
  });
  const distributed::StopRequest nobody{0}, scheduler{group.rank() == 0 ? SIGTERM : 0};
  Run(group, whole).train(24, &nobody);
  Run(group, parts).train(24, &scheduler);
  int failures = 0;
  on_rank_0(group, "look for the step", [&] {
    distributed::RunState state;
    state.tensors = load_safetensors(parts, &state.metadata);
    failures += state.number("step") >= 24;
  });
  Run(group, parts).train(24, &nobody);
  on_rank_0(group, "compare", [&] {
    const StateDict expected = load_safetensors(whole), found = load_safetensors(parts);
    for (std::size_t i = 0; i < expected.size(); ++i)
      failures += expected[i].first != found[i].first ||
                  to_vector(expected[i].second) != to_vector(found[i].second);
  });
  if (failures > 0) std::printf("%d entries differ from those of a run without a stop\n", failures);
  return failures > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto group = ProcessGroup::from_environment();
  if (argc < 2) return check(group);
  const distributed::StopRequest& request =
      distributed::catch_stop_signals("stopping after this step\n");
  Run(group, argv[1]).train(120, &request);
}
