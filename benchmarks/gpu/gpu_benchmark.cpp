// tutti's side of benchmarks/gpu/run.py: a shared library with a C interface, so that tutti and
// PyTorch take turns in one process, on the same device. A Job is work to repeat; time() repeats it
// and returns how long that took by the device's own clock. It runs on the CPU, too, to try out the
// script without a GPU.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/distributed/backends/local/local.h>
#include <tutti/distributed/launch/devices.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace tutti::benchmarks {
namespace {

thread_local std::string last_error;

class Job {
 public:
  explicit Job(Device device) : device_(device) {}
  virtual ~Job() = default;
  virtual void once(std::int64_t i) = 0;

  /// Returns the milliseconds of `count` repetitions, which begin when the device is idle.
  double time(std::int64_t count) {
    if (device_.is_cpu()) {
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < count; ++i) once(next_++);
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
          .count();
    }
    const cuda::Stream& stream = cuda::current_stream(device_.index());
    cuda::Event begin(cuda::Event::Kind::timing), end(cuda::Event::Kind::timing);
    cuda::synchronize(device_.index());
    begin.record(stream);
    for (std::int64_t i = 0; i < count; ++i) once(next_++);
    end.record(stream);
    end.synchronize("benchmark");
    return end.milliseconds_since(begin);
  }

 private:
  Device device_;
  std::int64_t next_ = 0;
};

struct Shape4 {
  std::int64_t n, c, h, w;
};

// Forward and backward of one normalization layer, over sets of inputs that together are larger
// than the caches.
class Normalisation final : public Job {
 public:
  Normalisation(Device device, Shape4 s, DType dtype, MemoryFormat format, bool add_relu,
                std::int64_t sets, std::optional<ProcessGroup> group)
      : Job(device),
        add_relu_(add_relu),
        layer_({.channels = s.c, .device = device, .group = std::move(group)}) {
    // The sets hold the same numbers, because drawing them on the host takes longer than all else.
    const Tensor drawn = randn({s.n, s.c, s.h, s.w}).to(device);
    const auto make = [&](double factor) { return (drawn * factor).to(dtype).contiguous(format); };
    for (std::int64_t i = 0; i < sets; ++i)
      inputs_.push_back({make(1).requires_grad_(), add_relu ? make(0.5).requires_grad_() : Tensor(),
                         make(-0.25)});
  }
  void once(std::int64_t i) override {
    Set& s = inputs_[static_cast<std::size_t>(i) % inputs_.size()];
    (add_relu_ ? layer_.forward(s.x, {.residual = s.residual, .relu = true}) : layer_(s.x))
        .backward(s.dy);
    s.x.set_grad({});
    if (add_relu_) s.residual.set_grad({});
    layer_.zero_grad();
  }

 private:
  struct Set {
    Tensor x, residual, dy;
  };
  bool add_relu_;
  nn::BatchNorm layer_;
  std::vector<Set> inputs_;
};

// A whole training step of a ResNet: autocast, cross-entropy, SGD with momentum. By option it is a
// CUDA graph.
class Training final : public Job {
 public:
  Training(Device device, const std::string& model, std::int64_t batch, std::int64_t size,
           DType precision, bool graph, std::optional<ProcessGroup> group)
      : Job(device), precision_(precision), net_(nn::resnet(model, {.classes = 1000})) {
    net_->to(device, float32, MemoryFormat::channels_last);
    if (group) nn::convert_sync_batchnorm(*net_, *group);
    sgd_ = std::make_unique<optim::SGD>(
        net_->parameters(), optim::SGD::Options{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4});
    images_ = randn({batch, 3, size, size}).to(device).contiguous(MemoryFormat::channels_last);
    labels_ = randint(1000, {batch}).to(device);
    for (int i = 0; i < 3; ++i) step();  // plans are made and memory pools filled
    if (graph) graph_.emplace(device, [this] { step(); });
  }
  void once(std::int64_t) override { graph_ ? graph_->replay() : step(); }

 private:
  void step() {
    const Autocast autocast(precision_);
    const Tensor loss = nn::cross_entropy((*net_)(images_), labels_);
    sgd_->zero_grad();
    loss.backward();
    sgd_->step();
  }

  DType precision_;
  std::shared_ptr<nn::ResNet> net_;
  std::unique_ptr<optim::SGD> sgd_;
  Tensor images_, labels_;
  std::optional<cuda::Graph> graph_;
};

class Copy final : public Job {
 public:
  Copy(Device device, std::int64_t bytes)
      : Job(device), from_(zeros({bytes}, {uint8, device})), to_(zeros({bytes}, {uint8, device})) {}
  void once(std::int64_t) override { to_.copy_(from_); }

 private:
  Tensor from_, to_;
};

template <class Make>
Job* guarded(Make make) {
  try {
    return make();
  } catch (const std::exception& e) {
    last_error = e.what();
    return nullptr;
  }
}

DType dtype_named(const std::string& name) {
  return name == "bfloat16" ? bfloat16 : name == "float16" ? float16 : float32;
}

// Returns a group of one rank that goes through the whole path of a collective, by NCCL on a GPU.
std::optional<ProcessGroup> one_rank(bool synchronised) {
  if (!synchronised) return {};
  static const ProcessGroup group = [] {
    const auto world = distributed::local::make_world({.communicates_alone = true});
    distributed::set_devices_of_threads(*world[0]->world(), 1, 0, true);
    return ProcessGroup(world[0]);
  }();
  return group;
}

}  // namespace
}  // namespace tutti::benchmarks

using namespace tutti;
using namespace tutti::benchmarks;

extern "C" {

const char* tutti_last_error() { return last_error.c_str(); }

/// Sets how CUDA devices compute from now on, the same for tutti as for its peer.
void tutti_configure(int allow_tf32, int autotune) {
  cuda::settings().allow_tf32 = allow_tf32 != 0;
  cuda::settings().autotune = autotune != 0;
}

void* tutti_batch_norm(const char* device, std::int64_t n, std::int64_t c, std::int64_t h,
                       std::int64_t w, const char* dtype, int channels_last, int add_relu,
                       std::int64_t sets, int synchronised) {
  return guarded([&] {
    return new Normalisation(Device::from_string(device), {n, c, h, w}, dtype_named(dtype),
                             channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous,
                             add_relu != 0, sets, one_rank(synchronised != 0));
  });
}

void* tutti_training(const char* device, const char* model, std::int64_t batch, std::int64_t size,
                     const char* precision, int graph, int synchronised) {
  return guarded([&] {
    return new Training(Device::from_string(device), model, batch, size, dtype_named(precision),
                        graph != 0, one_rank(synchronised != 0));
  });
}

void* tutti_copy(const char* device, std::int64_t bytes) {
  return guarded([&] { return new Copy(Device::from_string(device), bytes); });
}

/// Returns the milliseconds of `count` repetitions; negative where it failed.
double tutti_time(void* job, std::int64_t count) {
  try {
    return static_cast<Job*>(job)->time(count);
  } catch (const std::exception& e) {
    last_error = e.what();
    return -1;
  }
}

void tutti_delete(void* job) { delete static_cast<Job*>(job); }
}
