// The program that the fault matrix starts: a short training with SyncBatchNorm, DataParallel and a
// checkpoint after each step. TUTTI_FAULT says which rank fails, where and how. Usage: mpi_victim
// FOLDER; the tests find the processes by the folder's name.
#include "launched.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <cstdio>
#include <exception>

using namespace tutti;

namespace {

void train(const ProcessGroup& group, const std::string& folder) {
  nn::SyncBatchNorm layer({.channels = 3, .group = group});
  const Tensor head =
      ones({40000}).requires_grad_();  // 160 kB: its bucket goes through the communication thread
  StateDict parameters = layer.named_parameters();
  parameters.emplace_back("head", head);
  DataParallel ddp(parameters, layer.named_buffers(), group,
                   {.bucket_cap_mb = 0.1, .first_bucket_mb = 0.1});
  for (int step = 1; step <= 4; ++step) {
    for (const auto& [name, parameter] : parameters) Tensor(parameter).set_grad({});
    const Tensor x = full({2, 3}, group.rank() + step).requires_grad_();
    (sum(layer(x)) + sum(head)).backward();
    if (group.rank() == 0)
      save_safetensors(folder + "/checkpoint.safetensors", parameters,
                       {{"step", std::to_string(step)}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  ProcessGroup group;
  try {
    group = ProcessGroup::from_environment(std::chrono::seconds(3));
    train(group, argv[1]);
    return 0;
  } catch (const std::exception& error) {
    // std::fprintf of glibc 2.37 would let other ranks write in the middle of the text.
    const std::string text =
        fmt::format("rank {} caught: {}\n", test::launched_rank(), error.what());
    std::fputs(text.c_str(), stderr);
    group.abort(error.what());
    return 3;
  }
}
