// Cases in which one rank means something else than the others by a call that looks like theirs:
// another model, layer, step, option, dtype or shape. Every rank must get a DistributedError that
// says both. They run on ranks of every kind, and each case breaks its group.
#pragma once

#include "messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/data_parallel/join.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/sgd.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tutti::test {

/// A case, and what must stand in the error of every rank.
struct UnlikeRanks {
  std::string name;
  std::function<void(const ProcessGroup& group, bool is_odd)> run;  ///< one rank is odd
  std::vector<std::string> words;
};

namespace unlike_ranks {

using distributed::ReduceOp;
using distributed::Work;

inline std::unique_ptr<nn::Sequential> two_linear_layers() {
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Linear>({.in = 4, .out = 4});
  net->append<nn::Linear>({.in = 4, .out = 2});
  return net;
}

/// Calls both in this order, on the odd rank in the other one.
template <class A, class B>
void in_another_order(bool is_odd, const A& a, const B& b) {
  if (!is_odd) a();
  b();
  if (is_odd) a();
}

inline void forward_in_another_order(bool is_odd, nn::Layer& a, nn::Layer& b) {
  in_another_order(
      is_odd,
      [&] {
        a(randn({3, 2}));
      },
      [&] {
        b(randn({3, 2}));
      });
}

inline void add_orders(std::vector<UnlikeRanks>& cases) {
  const std::vector<std::string> of_models = {
      ", DataParallel 1 of group 'world'", ", DataParallel 2 of group 'world'",
      "construct models and layers in the same order", "takes ProcessGroup() as its group"};
  const auto step = [](nn::Layer& net) { sum(net(randn({5, 4}))).backward(); };
  cases.push_back({"two models in another order",
                   [step](const ProcessGroup& group, bool is_odd) {
                     const auto a = two_linear_layers(), b = two_linear_layers();
                     const DataParallel ddp_a(a->named_parameters(), {}, group),
                         ddp_b(b->named_parameters(), {}, group);
                     in_another_order(
                         is_odd, [&] { step(*a); }, [&] { step(*b); });
                   },
                   of_models});
  cases.push_back({"two models wrapped in another order",
                   [](const ProcessGroup& group, bool is_odd) {
                     const auto a = two_linear_layers(), b = two_linear_layers();
                     std::optional<DataParallel> ddp_a, ddp_b;
                     in_another_order(
                         is_odd, [&] { ddp_a.emplace(a->named_parameters(), StateDict{}, group); },
                         [&] { ddp_b.emplace(b->named_parameters(), StateDict{}, group); });
                   },
                   {"the models differ at the options", "made after 1 of those wrapped before it",
                    "made after 0 of those wrapped before it"}});
  cases.push_back({"two models of unused parameters in another order",
                   [step](const ProcessGroup& group, bool is_odd) {
                     const auto a = two_linear_layers(), b = two_linear_layers();
                     const distributed::DataParallelOptions options{.find_unused_parameters = true};
                     const DataParallel ddp_a(a->named_parameters(), {}, group, options),
                         ddp_b(b->named_parameters(), {}, group, options);
                     in_another_order(
                         is_odd, [&] { step(*a); }, [&] { step(*b); });
                   },
                   of_models});
  cases.push_back(
      {"buffers of two models in another order",
       [](const ProcessGroup& group, bool is_odd) {
         const auto net = two_linear_layers();
         DataParallel a({}, net->named_parameters(), group), b({}, net->named_parameters(), group);
         in_another_order(
             is_odd, [&] { a.broadcast_buffers(); }, [&] { b.broadcast_buffers(); });
       },
       {"(DataParallel: values of 4 float32 tensors, DataParallel 1 of group 'world'",
        "(DataParallel: values of 4 float32 tensors, DataParallel 2 of group 'world'"}});
  const std::vector<std::string> of_layers = {"layer 1 of group 'world'",
                                              "layer 2 of group 'world'",
                                              "construct models and layers in the same order"};
  cases.push_back({"two layers without a parent in another order",
                   [](const ProcessGroup& group, bool is_odd) {
                     nn::SyncBatchNorm a({.channels = 2, .group = group}),
                         b({.channels = 2, .group = group});
                     forward_in_another_order(is_odd, a, b);
                   },
                   of_layers});
  cases.push_back({"two converted models in another order",
                   [](const ProcessGroup& group, bool is_odd) {
                     nn::Sequential a, b;
                     for (nn::Sequential* net : {&a, &b})
                       net->append<nn::BatchNorm>({.channels = 2});
                     nn::convert_sync_batchnorm(a, group);
                     nn::convert_sync_batchnorm(b, group);
                     forward_in_another_order(is_odd, a, b);
                   },
                   {"SyncBatchNorm '0' forward #1", of_layers[0], of_layers[1]}});
  cases.push_back({"two models in a group of all ranks in another order",
                   [](const ProcessGroup& group, bool is_odd) {
                     const ProcessGroup part = group.split(0);
                     nn::SyncBatchNorm a({.channels = 2}), b({.channels = 2});
                     for (nn::SyncBatchNorm* layer : {&b, &a}) layer->set_process_group(part);
                     forward_in_another_order(is_odd, a, b);
                   },
                   {"layer 1 of group 'world/split0'", "layer 2 of group 'world/split0'"}});
  cases.push_back({"two backwards in another order",
                   [](const ProcessGroup& group, bool is_odd) {
                     nn::SyncBatchNorm a({.channels = 2, .group = group}),
                         b({.channels = 2, .group = group});
                     const Tensor ya = a(randn({3, 2}).requires_grad_()),
                                  yb = b(randn({3, 2}).requires_grad_());
                     in_another_order(
                         is_odd, [&] { sum(ya).backward(); }, [&] { sum(yb).backward(); });
                   },
                   {"SyncBatchNorm backward #1", of_layers[0], of_layers[1]}});
}

inline void add_steps(std::vector<UnlikeRanks>& cases) {
  for (const bool find_unused : {false, true})
    cases.push_back(
        {find_unused ? "a step left out where parameters may be unused" : "a step left out",
         [=](const ProcessGroup& group, bool is_odd) {
           const auto net = two_linear_layers();
           optim::SGD sgd(net->parameters(), {.lr = 0.1});
           sgd.step();  // steps before the construction do not count
           const DataParallel ddp(net->named_parameters(), {}, group,
                                  {.find_unused_parameters = find_unused});
           for (int step = 0; step < 4; ++step) {
             sgd.zero_grad();
             if (!is_odd || step != 1) sum((*net)(randn({5, 4}))).backward();
             sgd.step();
           }
         },
         {"backward 2, 1 optimizer step,", "backward 2, 2 optimizer steps,", "NoGrad"}});
  cases.push_back({"an evaluation with gradients",
                   [](const ProcessGroup& group, bool is_odd) {
                     const auto net = two_linear_layers();
                     const DataParallel ddp(net->named_parameters(), {}, group);
                     for (int step = 0; step < 2; ++step) {
                       sum((*net)(randn({5, 4}))).backward();
                       if (is_odd) (*net)(randn({5, 4}));
                     }
                   },
                   {"after a forward without backward",
                    "What one rank does alone belongs under "
                    "NoGrad"}});
}

inline void add_options(std::vector<UnlikeRanks>& cases) {
  using Options = nn::BatchNorm::Options;
  const auto differ = [&](const char* name, const std::function<void(Options&)>& change,
                          const std::vector<std::string>& words) {
    cases.push_back({fmt::format("another {} of a layer", name),
                     [change](const ProcessGroup& group, bool is_odd) {
                       Options options{.channels = 2, .group = group};
                       if (is_odd) change(options);
                       nn::SyncBatchNorm layer(options);
                       layer(randn({4, 2}));
                     },
                     words});
  };
  differ("eps", [](Options& o) { o.eps = 0.1; }, {"eps=1e-05,", "eps=0.1,"});
  differ("floor", [](Options& o) { o.eps_is_floor = true; }, {"eps=1e-05,", "eps=1e-05 as floor,"});
  differ("momentum", [](Options& o) { o.momentum = 0.2; }, {"momentum=0.1,", "momentum=0.2,"});
  differ("average", [](Options& o) { o.momentum = {}; }, {"momentum=0.1,", "momentum=none,"});
  differ("pooling", [](Options& o) { o.pooled = true; }, {"momentum=0.1,", "pooled,"});
  differ("affine", [](Options& o) { o.affine = false; },
         {"affine=true, bias=true", "affine=false"});
  differ("bias", [](Options& o) { o.bias = false; }, {"bias=true", "bias=false"});
  differ("tracking", [](Options& o) { o.track_running_stats = false; },
         {"track_running_stats=true", "track_running_stats=false"});
  for (const DType dtype : {float64, bfloat16})
    cases.push_back({fmt::format("input of {}", to_string(dtype)),
                     [dtype](const ProcessGroup& group, bool is_odd) {
                       nn::SyncBatchNorm layer({.channels = 2, .group = group});
                       layer(randn({4, 2}).to(is_odd ? dtype : float32));
                     },
                     {"float32 input", to_string(dtype) + " input"}});
  const auto models = [&](const char* name, const distributed::DataParallelOptions& odd,
                          const std::vector<std::string>& words) {
    cases.push_back({fmt::format("another {} of a model", name),
                     [odd](const ProcessGroup& group, bool is_odd) {
                       const auto net = two_linear_layers();
                       distributed::DataParallelOptions usual{.name = "A"};
                       const DataParallel ddp(net->named_parameters(), {}, group,
                                              is_odd ? odd : usual);
                       sum((*net)(randn({5, 4}))).backward();
                     },
                     words});
  };
  models("name", {.name = "B"}, {"rank 0 has the name 'A', ", " has the name 'B', "});
  models("size of buckets", {.bucket_cap_mb = 3, .name = "A"},
         {"bucket_cap_mb=25, ", "bucket_cap_mb=3, "});
  models("size of the first bucket", {.first_bucket_mb = 3, .name = "A"},
         {"first_bucket_mb=1, ", "first_bucket_mb=3, "});
  models("choice of parameters", {.find_unused_parameters = true, .name = "A"},
         {"find_unused_parameters=false, ", "find_unused_parameters=true, "});
  models("order of buckets", {.reorder_buckets = false, .name = "A"},
         {"reorder_buckets=true, ", "reorder_buckets=false. "});
  // What a hook does shows in its calls.
  models(
      "communication", {.communication = distributed::compress_gradients(bfloat16), .name = "A"},
      {"of float32 of shape (", "of bfloat16 of shape (", ", DataParallel 1 'A' of group 'world'"});
  cases.push_back({"another policy of Join",
                   [](const ProcessGroup& group, bool is_odd) {
                     distributed::Join join(
                         group, is_odd ? distributed::Uneven::stop : distributed::Uneven::shadow);
                     (void)join.step(2);
                   },
                   {"uneven=shadow", "uneven=stop"}});
}

/// Calls that differ in one property, of a size that travels with the fingerprint and of another.
inline void add_calls(std::vector<UnlikeRanks>& cases) {
  using Call = std::function<Work(const ProcessGroup&, bool is_odd, std::int64_t n)>;
  const auto differ = [&](const char* name, const Call& call,
                          const std::vector<std::string>& words) {
    for (const std::int64_t n : {2, 60000})
      cases.push_back(
          {fmt::format("another {} of {} rows", name, n),
           [call, n](const ProcessGroup& group, bool is_odd) { call(group, is_odd, n).wait(); },
           words});
  };
  const auto of = [](std::int64_t n, bool is_odd) {  // as many elements in another shape
    return is_odd ? ones({n / 2 * 3, 4}) : ones({n, 6});
  };
  const auto stacked = [of](const ProcessGroup& group, std::int64_t n, bool is_odd) {
    Shape shape = of(n, is_odd).shape();
    shape.insert(0, group.size());
    return ones(shape);
  };
  const std::vector<std::string> shapes = {", 6)", ", 4)"};
  differ(
      "shape of all_reduce",
      [=](const ProcessGroup& g, bool odd, std::int64_t n) { return g.all_reduce(of(n, odd)); },
      shapes);
  differ(
      "shape of broadcast",
      [=](const ProcessGroup& g, bool odd, std::int64_t n) { return g.broadcast(of(n, odd)); },
      shapes);
  differ(
      "shape of all_gather",
      [=](const ProcessGroup& g, bool odd, std::int64_t n) {
        return g.all_gather(of(n, odd), stacked(g, n, odd));
      },
      shapes);
  differ(
      "shape of reduce_scatter",
      [=](const ProcessGroup& g, bool odd, std::int64_t n) {
        return g.reduce_scatter(stacked(g, n, odd), of(n, odd));
      },
      shapes);
  differ("number of dimensions",
         [=](const ProcessGroup& g, bool odd, std::int64_t n) {
           return g.all_reduce(odd ? ones({n, 6, 1}) : ones({n, 6}));
         },
         {", 6)", ", 6, 1)"});
  differ("name",
         [=](const ProcessGroup& g, bool odd, std::int64_t n) {
           return g.all_reduce(ones({n, 6}), ReduceOp::sum, {.name = odd ? "dw of b" : "dw of a"});
         },
         {"(dw of a)", "(dw of b)"});
  differ("root",
         [=](const ProcessGroup& g, bool odd, std::int64_t n) {
           return g.broadcast(ones({n, 6}), odd ? 1 : 0);
         },
         {"broadcast(root 0)", "broadcast(root 1)"});
  differ("reduction",
         [=](const ProcessGroup& g, bool odd, std::int64_t n) {
           return g.all_reduce(ones({n, 6}), odd ? ReduceOp::max : ReduceOp::sum);
         },
         {"all_reduce(sum)", "all_reduce(max)"});
  differ("dtype",
         [=](const ProcessGroup& g, bool odd, std::int64_t n) {
           return g.all_reduce(ones({n, 6}, {.dtype = odd ? float16 : bfloat16}));
         },
         {"of bfloat16 of shape (", "of float16 of shape ("});
}

}  // namespace unlike_ranks

inline std::vector<UnlikeRanks> all_unlike_ranks() {
  std::vector<UnlikeRanks> cases;
  unlike_ranks::add_orders(cases);
  unlike_ranks::add_steps(cases);
  unlike_ranks::add_options(cases);
  unlike_ranks::add_calls(cases);
  return cases;
}

/// Runs one case on this rank of a fresh world, and expects the error that it must get.
inline void expect_unlike_ranks_are_found(const UnlikeRanks& each, const ProcessGroup& world) {
  SCOPED_TRACE(fmt::format("{} on rank {} of {}", each.name, world.rank(), world.size()));
  const std::string text = message_of<DistributedError>([&] {
    each.run(world, world.rank() == world.size() - 1);
    world.barrier({.name = "the end"});
  });
  expect_contains(text, each.words);
}

/// What one rank does for itself, and what ranks divide among them, is no error.
inline void check_what_ranks_may_do_differently(const ProcessGroup& group) {
  const bool is_first = group.rank() == 0;
  if (is_first) nn::SyncBatchNorm alone({.channels = 2, .group = ProcessGroup()});
  nn::Sequential net;
  net.append<nn::Linear>({.in = 4, .out = 3});
  net.append<nn::BatchNorm>({.channels = 3});
  nn::convert_sync_batchnorm(net, group);
  const DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
  // Each rank has the optimizer of some parameters, as many as it likes.
  const std::vector<Tensor> all = net.parameters();
  optim::SGD sgd(is_first ? all : std::vector{all.front()}, {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    net.zero_grad();
    sum(net(randn({5, 4}))).backward();
    sgd.step();
    if (is_first) {
      const NoGrad no_grad;
      net.eval();
      net(randn({5, 4}));
      net.train();
    }
  }
}

}  // namespace tutti::test
