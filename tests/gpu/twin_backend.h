// TwinBackend is a group of two ranks whose other rank is imaginary and holds exactly the same
// data, so that a test can watch one rank in one thread. It reduces CUDA tensors on a stream of its
// own, which events order with the caller's stream both ways, as NCCL does.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/core/tensor.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/process_group.h>

#include <functional>

namespace tutti::test {

class TwinBackend : public distributed::Backend {
 public:
  using Log = std::function<void(const std::string&)>;
  explicit TwinBackend(int device, Log log = {}, double noise = 0,
                       const std::string& name = "twins")
      : Backend({.rank = 0,
                 .size = 2,
                 .local_rank = 0,
                 .group = name,
                 .backend = "twins",
                 .world_ranks = {0, 1}}),
        stream_(cuda::Stream::create(device, true)),
        log_(std::move(log)),
        noise_(noise) {}

  bool accepts(Device) const override { return true; }
  std::shared_ptr<distributed::WorkState> submit(const distributed::Collective& call) override {
    using distributed::Operation;
    if (log_) log_("issue " + call.options.name);
    const auto work = std::make_shared<Wait>();
    work->what = "wait " + call.options.name;
    work->log = log_;
    work->kept = call.output;
    const auto compute = [&] {
      if (call.operation == Operation::all_reduce && call.op == distributed::ReduceOp::sum)
        call.output.mul_(2);
      if (noise_ != 0 && call.operation == Operation::all_reduce)
        call.output.copy_(call.output + noise_);
      if (call.operation == Operation::all_gather)
        for (int r = 0; r < 2; ++r) call.output.select(0, r).copy_(call.input);
      if (call.operation == Operation::reduce_scatter)
        call.output.copy_(call.input.select(0, 0) * 2);
    };
    if (!call.input.defined() || call.input.device().is_cpu()) {
      compute();
      return work;
    }
    stream_.wait(cuda::current_stream(stream_.device()));
    {
      const cuda::StreamScope scope(stream_);
      compute();
    }
    work->done.record(stream_);
    work->device = stream_.device();
    return work;
  }
  std::shared_ptr<Backend> subgroup(const std::vector<int>&, const std::string& name) override {
    return std::make_shared<TwinBackend>(stream_.device(), log_, noise_, name);
  }
  void abort(const std::string& cause) override {
    if (log_) log_("abort " + cause);
  }

 private:
  struct Wait : distributed::WorkState {
    cuda::Event done;
    int device = -1;
    std::string what;
    Log log;
    Tensor kept;
    void wait() override {
      if (log) log(what);
      if (device >= 0) cuda::current_stream(device).wait(done);
    }
    bool is_done() override { return done.passed(); }
  };
  cuda::Stream stream_;
  Log log_;
  double noise_;
};

inline ProcessGroup twins(Device device, TwinBackend::Log log = {}, double noise = 0) {
  return ProcessGroup(std::make_shared<TwinBackend>(device.index(), std::move(log), noise));
}

}  // namespace tutti::test
