// Cases in which rank 1 leaves the course of the others, and the words that must stand in the error
// of every rank: the layer in which ranks wait, and where the others were. They run on ranks of
// every kind, and each case breaks its group.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/conv.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tutti::test {

inline constexpr std::chrono::seconds diverging_rank_timeout{3};

struct NormalizedConv : nn::Layer {
  nn::Conv2d& conv1 = add<nn::Conv2d>("conv1", {.in = 3, .out = 4, .kernel = 1});
  nn::SyncBatchNorm& bn1 = add<nn::SyncBatchNorm>("bn1", {.channels = 4});
  Tensor forward(const Tensor& x) override { return bn1(conv1(x)); }
};

struct OneBlockNet : nn::Layer {
  NormalizedConv& layer1 = add<NormalizedConv>("layer1");
  Tensor forward(const Tensor& x) override { return layer1(x); }
};

/// Takes three steps without SyncBatchNorm. In the second one the diverging rank leaves the
/// backward out, or runs that of a loss which depends on no parameter.
inline void train_without_a_backward(const std::string& fault, nn::Conv2d& conv, const Tensor& x,
                                     const ProcessGroup& group) {
  const DataParallel parallel(conv.named_parameters(), {}, group);
  for (int step = 0; step < 3; ++step) {
    const bool diverges = group.rank() == 1 && step == 1;
    const Tensor loss = diverges && fault == "other_loss" ? sum(zeros_like(x).requires_grad_() * x)
                                                          : sum(conv(x));
    if (!diverges || fault == "other_loss") loss.backward();
  }
}

/// Runs two layers of equal names, in another order on the diverging rank; or one whose eps differs
/// there.
inline void run_other_layers(const std::string& fault, const Tensor& x, const ProcessGroup& group) {
  const bool diverges = group.rank() == 1, is_order = fault == "order";
  // Sets up NCCL, whose ranks compare their first call on the hosts and later ones on the devices.
  group.for_normalization().all_reduce(ones({1}, {.device = x.device()})).wait();
  nn::SyncBatchNorm a(
      {.channels = 3, .eps = diverges && !is_order ? 0.1 : 1e-5, .device = x.device()}),
      b({.channels = 3, .device = x.device()});
  (diverges && is_order ? b : a)(x);
  if (is_order) (diverges ? a : b)(x);
  group.barrier({.name = "end of epoch"});
  for (const nn::SyncBatchNorm* layer : {&a, &b}) layer->check_statistics();
}

/// Does what the case `fault` says on this rank. Throws what this rank gets.
inline void diverge(const std::string& fault, const ProcessGroup& group, Device device = {}) {
  const bool diverges = group.rank() == 1;
  OneBlockNet net;
  net.to(device);
  const Tensor x = randn({2, 3, 3, 3}).to(device);
  if (fault == "eval") {  // one rank has called eval()
    const DataParallel parallel(net.named_parameters(), net.named_buffers(), group);
    if (diverges) net.eval();
    sum(net(x)).backward();
  } else if (fault == "forward") {  // one rank runs one forward less than the others
    const NoGrad no_grad;
    net(x);
    if (!diverges) net(x);
  } else if (fault == "busy") {  // one rank is late, and in no call meanwhile
    const NoGrad no_grad;
    net(x);
    if (diverges) std::this_thread::sleep_for(diverging_rank_timeout + std::chrono::seconds(4));
    else net(x);
  } else if (fault == "left_out" || fault == "other_loss") {
    train_without_a_backward(fault, net.layer1.conv1, x, group);
  } else if (fault == "refused") {  // the arguments of one rank are refused
    const Tensor row = ones({1, 3}, {.device = device});
    group.all_reduce(diverges ? row.expand({2, 3}) : ones({2, 3}, {.device = device})).wait();
  } else if (fault == "unfrozen" || fault == "moved") {
    net.layer1.conv1.weight.requires_grad_(false);
    const DataParallel parallel(net.layer1.conv1.named_parameters(), {}, group);
    if (diverges && fault == "unfrozen") net.layer1.conv1.weight.requires_grad_();
    if (diverges && fault == "moved") net.layer1.conv1.to(float64);
    sum(net.layer1.conv1(x.to(net.layer1.conv1.weight.dtype()))).backward();
  } else if (fault == "channels") {
    net.layer1.bn1(randn({2, diverges ? 5 : 4, 3, 3}).to(device));
  } else if (fault == "backward") {  // one rank will run no backward
    std::optional<NoGrad> no_grad;
    if (diverges) no_grad.emplace();
    net(x);
  } else if (fault == "options" || fault == "order") {
    run_other_layers(fault, x, group);
  }
  // Where only the device waits, the host gets the error here.
  group.barrier({.name = "end of epoch"});
  net.layer1.bn1.check_statistics();  // throws what only a packet on a device tells so late
}

/// Returns what must stand in the error of every rank.
inline std::vector<std::string> expected_words(const std::string& fault, const ProcessGroup& group,
                                               Device device = Device::cpu()) {
  const std::string layer = "SyncBatchNorm 'layer1.bn1' forward #";
  // Where only the device waits, the host of the other ranks has gone on to the backward.
  if (fault == "eval" && group.capabilities(device).device_waits)
    return {"SyncBatchNorm 'layer1.bn1'", "rank 1 at ", "(the order of the gradients"};
  const std::string advice = "What one rank does alone belongs under NoGrad, in eval(), or into";
  if (fault == "eval") return {layer + "1", "rank 1 at ", "(bucket 0: layer1.", advice};
  if (fault == "forward")  // rank 1 waits in no call of a model
    return {layer + "2", "rank 1 at ", layer + "1", "(end of epoch)",
            group.rank() == 1 ? "" : advice};
  if (fault == "busy")
    return {layer + "2",
            "rank 1 at all_reduce #1 of group 'world/normalization' (" + layer + "1, 128 B)"};
  if (fault == "left_out")
    return {"rank 0 at all_reduce", "(bucket 0: weight, bias, backward 2, ", "rank 1 at all_reduce",
            "backward 2, after a forward without backward: 2 uses of parameters, "};
  if (fault == "other_loss")
    return {"rank 0 at all_reduce", "(bucket 0: weight, bias, backward 2, ", "rank 1 at all_reduce",
            "(bucket 0: weight, bias, backward 3, "};
  if (fault == "refused")
    return {"rank 0 at all_reduce", "rank 1 at barrier",
            "(refused all_reduce: all_reduce: ", "share memory"};
  if (fault == "unfrozen")
    return {"rank 0 at all_reduce", "(bucket 0: bias, backward 1, ", "rank 1 at barrier",
            "(parameter 'weight' was frozen when this DataParallel was made"};
  if (fault == "moved")
    return {"rank 0 at all_reduce", "(bucket 0: bias, backward 1, ", "rank 1 at barrier",
            "(parameter 'bias' was float32 (4,) on cpu and is float64 (4,) on cpu now"};
  if (fault == "channels")
    return {layer + "1", "rank 1", "expected input of shape (N, 4, ...), got (2, 5, 3, 3)"};
  if (fault == "options" || fault == "order") {
    const bool is_order = fault == "order";
    const std::string other = "SyncBatchNorm forward #1, float32 input, eps=";
    if (group.capabilities(device).device_waits)
      return {other, "not every rank was there", "with the same options"};
    return {is_order ? "layer 2 of group 'world'" : other + "1e-05, ",
            is_order ? "layer 3 of group 'world'" : other + "0.1, "};
  }
  if (group.capabilities(device).device_waits)
    return {layer + "1", fmt::format("only {} of {} ranks will run a backward, and rank {} will{};",
                                     group.size() - 1, group.size(), group.rank(),
                                     group.rank() == 1 ? " not" : "")};
  std::vector<int> others = {0};
  for (int r = 2; r < group.size(); ++r) others.push_back(r);
  return {layer + "1", distributed::ranks_to_string(others) + " will run a backward",
          "rank 1 will not"};
}

}  // namespace tutti::test
