// Tests of Module: registration, names, state dicts, moving in place, printing, hooks.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/identity.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace tutti {
namespace {

using namespace nn;
using test::expect_error;
using test::message_of;

struct Scale : Layer {
  struct Options {
    std::int64_t n = 1;
    bool bias = true;
  };
  explicit Scale(const Options& o)
      : weight(add_parameter("weight", full({o.n}, 2))),
        bias(add_parameter("bias", o.bias ? ones({o.n}) : Tensor())),
        count(add_buffer("count", zeros({}, {.dtype = int64}))),
        mean(add_buffer("mean", zeros({o.n}))) {}
  Tensor forward(const Tensor& x) override { return tensor({to_vector(x).at(0) * 2}); }
  std::string describe() const override { return "n=" + std::to_string(weight.size(0)); }
  const Tensor &weight, &bias, &count, &mean;
};

// A layer that keeps float32, as normalisation layers do.
struct Norm : Scale {
  using Scale::Scale;
  DType own_dtype(const Tensor&, DType requested) const override {
    return requested == float64 ? float64 : float32;
  }
};

struct Net : Module {
  Scale& a = add<Scale>("a", {.n = 3});
  Sequential& body = add<Sequential>("body");
  Net() {
    body.append<Scale>({.n = 2, .bias = false});
    body.append<Norm>(Scale::Options{.n = 2});
  }
};

std::vector<std::string> names(const StateDict& state) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : state) result.push_back(name);
  return result;
}

TEST(Module, NamesFollowTheTreeInPyTorchsOrder) {
  Net net;
  EXPECT_EQ(names(net.named_parameters()),
            (std::vector<std::string>{"a.weight", "a.bias", "body.0.weight", "body.1.weight",
                                      "body.1.bias"}));
  EXPECT_EQ(names(net.state_dict()),
            (std::vector<std::string>{"a.weight", "a.bias", "a.count", "a.mean", "body.0.weight",
                                      "body.0.count", "body.0.mean", "body.1.weight", "body.1.bias",
                                      "body.1.count", "body.1.mean"}));
  EXPECT_EQ(net.parameter_count(), 3 + 3 + 2 + 2 + 2);
  EXPECT_EQ(net.body.children().at(1).second->path(), "body.1");
  EXPECT_EQ(net.path(), "");
  EXPECT_TRUE(net.a.weight.requires_grad());
  EXPECT_FALSE(net.a.mean.requires_grad());
}

TEST(Module, RegisteringANameTwiceIsAnError) {
  Net net;
  EXPECT_THROW(net.add<Scale>("a", {.n = 1}), ValueError);
  EXPECT_THROW(net.a.add_buffer("weight", zeros({1})), ValueError);
  EXPECT_THROW(net.a.add_parameter("mean", zeros({1})), ValueError);
  EXPECT_THROW(net.add_buffer("", zeros({1})), ValueError);
  EXPECT_THROW(net.add_buffer("x.y", zeros({1})), ValueError);
  EXPECT_THROW(net.add_child("none", std::shared_ptr<Scale>()), ValueError);
  EXPECT_THROW(net.add_parameter("integers", zeros({1}, {.dtype = int64})), DTypeError);
  EXPECT_EQ(net.state_dict().size(), 11u);  // Nothing was added.
}

TEST(Module, AModuleCannotContainItself) {
  auto outer = std::make_shared<Sequential>();
  auto inner = std::make_shared<Sequential>();
  outer->add_child("inner", inner);
  EXPECT_THROW(inner->add_child("outer", outer), ValueError);
  EXPECT_THROW(inner->add_child("self", inner), ValueError);
}

TEST(Module, ASharedChildIsVisitedOnceAndSavedUnderEachPath) {
  Sequential net;
  auto shared = std::make_shared<Scale>(Scale::Options{.n = 4});
  net.add_child("first", shared);
  net.add_child("second", shared);
  EXPECT_EQ(net.parameters().size(), 2u);
  EXPECT_EQ(net.parameter_count(), 8);
  EXPECT_EQ(net.named_modules().size(), 2u);
  EXPECT_EQ(shared->path(), "first");
  EXPECT_EQ(net.state_dict().size(), 8u);
  int visits = 0;
  net.apply([&](Module&) { ++visits; });
  EXPECT_EQ(visits, 2);
}

TEST(Module, APathOutlivesItsParent) {
  auto child = std::make_shared<Scale>(Scale::Options{});
  {
    Sequential net;
    net.add_child("child", child);
    EXPECT_EQ(child->path(), "child");
  }
  EXPECT_EQ(child->path(), "");
}

TEST(Module, TrainReachesEveryModule) {
  Net net;
  net.eval();
  for (const auto& [path, module] : net.named_modules())
    EXPECT_FALSE(module->is_training()) << path;
  net.train();
  for (const auto& [path, module] : net.named_modules()) EXPECT_TRUE(module->is_training()) << path;
}

TEST(Module, ToKeepsIdentityAndHonoursOwnDtype) {
  Net net;
  const auto before = net.parameters();
  net.a.bias.requires_grad_(false);
  net.to(bfloat16);
  const auto after = net.parameters();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].is_same(after[i]));
  EXPECT_EQ(before[0].dtype(), bfloat16);
  EXPECT_EQ(to_vector(before[0]), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(net.a.mean.dtype(), bfloat16);
  EXPECT_EQ(net.a.count.dtype(), int64);
  EXPECT_TRUE(net.a.weight.requires_grad());
  EXPECT_FALSE(net.a.bias.requires_grad());
  auto& norm = dynamic_cast<Norm&>(*net.body.children().at(1).second);
  EXPECT_EQ(norm.weight.dtype(), float32);
  EXPECT_EQ(norm.mean.dtype(), float32);
  net.to(float64);
  EXPECT_EQ(norm.mean.dtype(), float64);
  EXPECT_EQ(net.a.weight.dtype(), float64);
}

TEST(Module, ToRefusesWithoutChangingAnything) {
  Net net;
  EXPECT_THROW(net.to(int64), DTypeError);
  EXPECT_THROW(net.to(Device::cuda(99), bfloat16), DeviceError);
  EXPECT_EQ(net.a.weight.dtype(), float32);
  EXPECT_TRUE(net.a.weight.device().is_cpu());
}

TEST(Module, ToMemoryFormatReachesRankFourAndFive) {
  Module net;
  const Tensor& four = net.add_parameter("four", ones({2, 3, 4, 4}));
  const Tensor& five = net.add_parameter("five", ones({2, 3, 2, 4, 4}));
  const Tensor& three = net.add_parameter("three", ones({2, 3, 4}));
  four.set_grad(ones({2, 3, 4, 4}));
  three.set_grad(ones({2, 3, 4}));
  net.to(MemoryFormat::channels_last);
  EXPECT_TRUE(four.is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(five.is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(three.is_contiguous());
  EXPECT_FALSE(four.grad().defined());
  EXPECT_TRUE(three.grad().defined());  // It did not move.
  net.zero_grad();
  EXPECT_FALSE(three.grad().defined());
}

TEST(Module, StateTravelsBetweenModulesAndConvertsDtypes) {
  Net from, to;
  from.a.weight.detach().fill_(7);
  from.a.count.fill_(5);
  to.to(float64);
  const LoadReport report = to.load_state_dict(from.state_dict());
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(to_vector(to.a.weight), (std::vector<double>{7, 7, 7}));
  EXPECT_EQ(to.a.weight.dtype(), float64);
  EXPECT_EQ(to.a.count.item<int>(), 5);
}

TEST(Module, LoadIsAllOrNothingAndNamesWhatDoesNotFit) {
  Net net;
  StateDict state = Net().state_dict();
  for (auto& [name, tensor] : state) tensor.fill_(9);
  state.erase(state.begin());  // a.weight
  state.emplace_back("extra", zeros({1}));
  const std::string strict = message_of<CheckpointError>([&] { net.load_state_dict(state); });
  EXPECT_NE(strict.find("'a.weight' is missing"), std::string::npos) << strict;
  EXPECT_NE(strict.find("'extra' is unexpected"), std::string::npos) << strict;
  EXPECT_EQ(to_vector(net.a.bias).at(0), 1);

  for (auto& [name, tensor] : state)
    if (name == "body.1.mean") tensor = zeros({5});
  const std::string shapes =
      message_of<CheckpointError>([&] { net.load_state_dict(state, false); });
  EXPECT_NE(shapes.find("'body.1.mean' has shape (5,), expected (2,)\nload_fitting()"),
            std::string::npos)
      << shapes;
  EXPECT_EQ(to_vector(net.a.bias).at(0), 1);

  for (auto& [name, tensor] : state)
    if (name == "body.1.mean") tensor = zeros({2});
  const LoadReport report = net.load_state_dict(state, false);
  EXPECT_EQ(report.missing, std::vector<std::string>{"a.weight"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"extra"});
  EXPECT_EQ(to_vector(net.a.bias).at(0), 9);
  EXPECT_EQ(to_vector(net.a.weight).at(0), 2);

  state.emplace_back("a.bias", zeros({3}));
  EXPECT_THROW(net.load_state_dict(state, false), CheckpointError);
}

TEST(Module, LoadsWhatFitsAndReturnsTheOtherNames) {
  Net net;
  StateDict state = Net().state_dict();
  for (auto& [name, tensor] : state) tensor = name == "a.bias" ? zeros({5}) : tensor.fill_(9);
  state.erase(state.begin());  // a.weight
  state.emplace_back("extra", zeros({1}));
  const LoadReport report = net.load_fitting(state);
  EXPECT_EQ(report.missing, std::vector<std::string>{"a.weight"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"extra"});
  EXPECT_EQ(report.misfits, std::vector<std::string>{"a.bias"});
  EXPECT_EQ(to_vector(net.a.weight).at(0), 2);
  EXPECT_EQ(to_vector(net.a.bias).at(0), 1);
  EXPECT_EQ(to_vector(net.a.mean).at(0), 9);
}

TEST(Module, LoadKnowsThePrefixesOfWrappersAndFilesWithoutCounters) {
  Sequential net, model;
  net.append<BatchNorm>({.channels = 2});
  model.add<BatchNorm>("model", {.channels = 2});
  for (const std::string prefix : {"module.", "_orig_mod.", "_orig_mod.module.", "model."}) {
    StateDict state{{prefix + "0.weight", full({2}, 3)},
                    {prefix + "0.bias", ones({2})},
                    {prefix + "0.running_mean", ones({2})},
                    {prefix + "0.running_var", ones({2})}};
    net.load_state_dict(state);
    EXPECT_EQ(to_vector(net.parameters()[0]).at(1), 3) << prefix;
    state[0].first = "0.weight";  // no longer the prefix of all
    EXPECT_THROW(net.load_state_dict(state), CheckpointError);
  }
  model.load_state_dict(model.state_dict());  // a name of its own
}

// A file may hold any number of names; the error stays short, and the report has all of them.
// Modules that keep derived state, such as packed weights, override changed().
TEST(Module, EachModuleHearsOfTrainToAndLoad) {
  struct Derived : nn::Layer {
    Derived() { add_parameter("weight", ones({2})); }
    Tensor forward(const Tensor& x) override { return x; }
    void changed() override { ++changes; }
    int changes = 0;
  };
  nn::Sequential net;
  const Derived& inner = net.append<Derived>();
  const auto expect_change = [&](auto change) {
    const int before = inner.changes;
    change();
    EXPECT_EQ(inner.changes, before + 1);
  };
  expect_change([&] { net.eval(); });
  expect_change([&] { net.to(float64); });
  expect_change([&] { net.load_state_dict(net.state_dict()); });
}

TEST(Module, LoadNamesTheFirstTenOfEachKindAndCountsTheOthers) {
  struct Wide : Module {
    Wide() {
      for (int i = 0; i < 12; ++i) add_buffer(fmt::format("own{}", i), zeros({1}));
    }
  } net;
  StateDict state, shapes = net.state_dict();
  for (int i = 0; i < 1000; ++i) state.emplace_back(fmt::format("foreign{}", i), zeros({1}));
  const std::string names = message_of<CheckpointError>([&] { net.load_state_dict(state); });
  EXPECT_NE(names.find("'own9' is missing\n  and 2 more missing\n  'foreign0' is unexpected"),
            std::string::npos)
      << names;
  EXPECT_NE(names.find("'foreign9' is unexpected\n  and 990 more unexpected\nstrict = false"),
            std::string::npos)
      << names;
  for (auto& [name, tensor] : shapes) tensor = zeros({2});
  const std::string text = message_of<CheckpointError>([&] { net.load_state_dict(shapes, false); });
  EXPECT_NE(text.find("'own9' has shape (2,), expected (1,)\n  and 2 more that do not fit"),
            std::string::npos)
      << text;
  EXPECT_EQ(net.load_state_dict(state, false).unexpected.size(), 1000u);
}

TEST(Module, LoadChangesNothingWhereATensorOfTheModuleCannotBeWritten) {
  struct Expanded : Module {
    const Tensor& first = add_buffer("first", ones({2}));
    const Tensor& second = add_buffer("second", ones({1}).expand({3}));
  } net;
  const StateDict state{{"first", zeros({2})}, {"second", zeros({3})}};
  expect_error<CheckpointError>([&] { net.load_state_dict(state); }, {"'second'"});
  EXPECT_EQ(to_vector(net.first), (std::vector<double>{1, 1}));
}

TEST(Module, LoadTakesTensorsOfTheModuleUnderOtherNames) {
  struct Pair : Module {
    const Tensor& first = add_buffer("first", zeros({2}));
    const Tensor& second = add_buffer("second", ones({2}));
  } net;
  net.load_state_dict({{"first", net.second}, {"second", net.first}});
  EXPECT_EQ(to_vector(net.first), (std::vector<double>{1, 1}));
  EXPECT_EQ(to_vector(net.second), (std::vector<double>{0, 0}));
}

// An assigned parameter would not be trained, so it does not compile: neither that of the library's
// layers nor one of an own layer.
template <class T>
concept can_be_assigned = requires(T& layer) {
  layer.weight = Tensor();
};
static_assert(!can_be_assigned<Linear> && !can_be_assigned<Conv2d> && !can_be_assigned<Scale> &&
              !can_be_assigned<BatchNorm>);
static_assert(!std::is_assignable_v<decltype((std::declval<BatchNorm&>().running_mean)), Tensor>);
// Nor does a member `Tensor` of an own layer, which would be a second handle that can be assigned.
static_assert(std::is_convertible_v<RegisteredTensor, const Tensor&> &&
              !std::is_convertible_v<RegisteredTensor, Tensor> &&
              !std::is_constructible_v<Tensor, RegisteredTensor> &&
              !std::is_assignable_v<Tensor&, RegisteredTensor>);

TEST(Module, ReplaceTensorLetsTwoLayersTrainOneWeight) {
  Sequential net;
  auto& a = net.append<Linear>({.in = 3, .out = 3, .bias = false});
  auto& b = net.append<Linear>({.in = 3, .out = 3, .bias = false});
  EXPECT_EQ(net.parameters().size(), 2u);
  b.replace_tensor(b.weight, a.weight);
  EXPECT_TRUE(b.weight.is_same(a.weight));
  EXPECT_EQ(net.parameters().size(), 1u);
  const Tensor w = full({3, 3}, 0.5).requires_grad_();
  b.replace_tensor(b.weight, w.detach());
  EXPECT_TRUE(b.weight.requires_grad());
  a.replace_tensor(a.weight, b.weight);
  const Tensor x = ones({1, 3});
  sum(net(x)).backward();
  // The gradient of sum(x W^T W^T) at W = 0.5 and x = 1 has 3 * 0.5 + 3 * 0.5 in each element.
  EXPECT_EQ(to_vector(a.weight.grad()), std::vector<double>(9, 3));
  a.replace_tensor(a.bias, zeros({3}));
  EXPECT_EQ(names(net.named_parameters()), (std::vector<std::string>{"0.weight", "0.bias"}));
  expect_error<ValueError>(
      [&] {
        a.replace_tensor(w, zeros({3, 3}));
      },
      {"Linear '0'", "no parameter or buffer of it"});
}

TEST(Module, LoadRefusesTwoValuesForOneTensor) {
  Sequential net;
  auto& a = net.append<Linear>({.in = 2, .out = 2, .bias = false});
  auto& b = net.append<Linear>({.in = 2, .out = 2, .bias = false});
  b.replace_tensor(b.weight, a.weight);
  const Tensor one = tensor({1, 2, NAN, 4}, {2, 2}), other = tensor({1, 2, 3, 5}, {2, 2});
  net.load_state_dict({{"0.weight", one}, {"1.weight", one.clone().to(float64)}});
  EXPECT_EQ(to_vector(b.weight).at(3), 4);
  const StateDict two{{"0.weight", other}, {"1.weight", one}};
  expect_error<CheckpointError>([&] { net.load_state_dict(two); },
                                {"'0.weight' and '1.weight' are one tensor"});
  expect_error<CheckpointError>([&] { net.load_fitting(two); }, {"'0.weight' and '1.weight'"});
  EXPECT_EQ(to_vector(a.weight).at(3), 4);
}

struct Join : TwoInputLayer {
  Linear& fc = add<Linear>("fc", {.in = 4, .out = 2});
  Tensor forward(const Tensor& x, const Tensor& skip) override { return fc(cat({x, skip}, 1)); }
};
struct Decoder : Layer {
  Join& join = add<Join>("join");
  BatchNorm& bn = add<BatchNorm>("bn", {.channels = 2});
  Tensor forward(const Tensor& x) override { return bn(join(x, x)); }
};

TEST(TwoInputLayer, HasHooksAndItsNameInErrors) {
  Decoder net;
  int runs = 0;
  net.join.add_forward_hook([&](Layer&, const Tensor&, const Tensor& y) {
    ++runs;
    return y * 0;
  });
  EXPECT_EQ(to_vector(net.join(ones({3, 2}), ones({3, 2}))), std::vector<double>(6, 0));
  EXPECT_EQ(runs, 1);
  const std::string text = message_of<ShapeError>([&] { net.join(ones({3, 2}), ones({4, 2})); });
  EXPECT_EQ(text.rfind("Join 'join': ", 0), 0u) << text;
  Sequential list;
  list.append<Join>();
  expect_error<Error>([&] { list(ones({3, 2})); }, {"expected two inputs"});
}

TEST(Module, PrintsTheTreeWithShapesAndCount) {
  EXPECT_EQ(Net().to_string(),
            "Net()\n"
            "  a: Scale(n=3): weight (3,), bias (3,), count (), mean (3,)\n"
            "  body: Sequential()\n"
            "    0: Scale(n=2): weight (2,), count (), mean (2,)\n"
            "    1: Norm(n=2): weight (2,), bias (2,), count (), mean (2,)\n"
            "12 parameters");
}

// An error type of an application, with a member of its own.
struct PlanError : ValueError {
  explicit PlanError(int its_step) : ValueError("no plan for this input"), step(its_step) {}
  int step;
};
struct Planner : Layer {
  Tensor forward(const Tensor&) override { throw PlanError(7); }
};
struct Stage : Layer {
  Sequential& body = add<Sequential>("body");
  Stage() { body.append<Planner>(); }
  Tensor forward(const Tensor& x) override { return body(x); }
};

TEST(Module, AnErrorNamesTheInnermostLayerOnceAndKeepsItsClass) {
  Sequential net;
  net.append<Stage>();
  try {
    net(ones({1}));
    ADD_FAILURE() << "no error";
  } catch (const PlanError& error) {
    EXPECT_STREQ(error.what(), "Planner '0.body.0': no plan for this input");
    EXPECT_EQ(error.step, 7);
  }
  // The same error again, of the same layer.
  EXPECT_THROW(net(ones({1})), PlanError);
}

TEST(Module, AnErrorNamesALayerOutsideOfATreeByItsClass) {
  const auto message = [](Layer& layer) -> std::string {
    try {
      layer(ones({1}));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  Planner alone;
  EXPECT_EQ(alone.error_name(), "Planner");
  EXPECT_EQ(message(alone), "Planner: no plan for this input");
  // A hook belongs to its layer. An error that is no Error of the library stays as it is.
  Identity hooked;
  hooked.add_forward_hook([](Layer&, const Tensor&, const Tensor&) -> Tensor {
    CollectiveInfo info;
    info.rank = 3;
    throw DistributedError("no answer", info);
  });
  EXPECT_EQ(message(hooked), "Identity: no answer");
  try {
    hooked(ones({1}));
  } catch (const DistributedError& error) {
    EXPECT_EQ(error.info().rank, 3);
  }
  Identity foreign;
  foreign.add_forward_hook(
      [](Layer&, const Tensor&, const Tensor&) -> Tensor { throw std::logic_error("foreign"); });
  try {
    foreign(ones({1}));
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "foreign");
  }
}

// Runs another layer, which it knows by reference, as well as its own.
struct Outer : Layer {
  explicit Outer(Layer* layer = nullptr) : other(layer) {}
  Tensor forward(const Tensor& x) override { return other ? own((*other)(x)) : own(x); }
  Scale& own = add<Scale>("own", {.n = 1});
  Layer* other;
};
struct Block : Module {
  Outer& layer = add<Outer>("layer");
};
template <class Member>
struct Holder : Layer {
  Tensor forward(const Tensor& x) override { return run(x, member); }
  static Tensor run(const Tensor& x, Layer& layer) { return layer(x); }
  static Tensor run(const Tensor& x, Block& block) { return block.layer(x); }
  static Tensor run(const Tensor& x, const std::unique_ptr<Scale>& layer) { return (*layer)(x); }
  Member member = make();
  static Member make() {
    if constexpr (std::is_same_v<Member, std::unique_ptr<Scale>>)
      return std::make_unique<Scale>(Scale::Options{});
    else if constexpr (std::is_same_v<Member, Scale>) return Scale(Scale::Options{});
    else return Member();
  }
};

template <class Member>
std::string first_error_of() {
  Holder<Member> holder;
  const Tensor x = ones({1});
  const auto message = [&] { return message_of<Error>([&] { holder(x); }); };
  {
    const NoGrad no_grad;  // a picture of a test: nothing would be trained
    holder(x);
  }
  const std::string first = message();
  EXPECT_EQ(message(), first) << "The error must not pass with the first step.";
  return first;
}

TEST(Module, ATrainedMemberThatWasNeverAddedIsAnError) {
  const std::string error = first_error_of<Scale>();
  EXPECT_EQ(error.substr(error.find(" runs ")),
            " runs Scale, which was never added to it, so its parameters would be neither trained "
            "nor saved; declare the member as `Scale& name = add<Scale>(\"name\", ...)`");
  EXPECT_NE(first_error_of<Outer>().find("add<Outer>"), std::string::npos);
  EXPECT_NE(first_error_of<std::unique_ptr<Scale>>().find("runs Scale, which"), std::string::npos);
  EXPECT_NE(first_error_of<Block>().find("runs Outer 'layer', which was never added"),
            std::string::npos);
  EXPECT_NE(first_error_of<Block>().find("Block& name = add<Block>"), std::string::npos);
  // Within another model, and where it is not the first layer that runs.
  struct Tail : Layer {
    Scale& first = add<Scale>("first", {.n = 1});
    Scale last{{.n = 1}};
    Tensor forward(const Tensor& x) override { return last(first(x)); }
  };
  Sequential net;
  net.append<Tail>();
  EXPECT_EQ(message_of<Error>([&] { net(ones({1})); }).substr(0, 19), "Tail '0' runs Scale");
}

TEST(Module, AnErrorOfAMemberComesInTheFirstForwardOnly) {
  Outer outer;
  outer(ones({1}));
  Scale later({.n = 1});
  outer.other = &later;
  EXPECT_EQ(outer(ones({1})).item<double>(), 4);
}

TEST(Module, LayersOfOthersMayRunInsideALayer) {
  const Tensor x = ones({1});
  Scale before({.n = 1});
  Outer given(&before), of_other_tree(&given.own);
  EXPECT_EQ(given(x).item<double>(), 4);
  EXPECT_EQ(of_other_tree(x).item<double>(), 4);

  Identity without_parameters;
  Outer plain(&without_parameters);
  EXPECT_EQ(plain(x).item<double>(), 2);

  Outer learner;  // A teacher that is made later is frozen, or runs without gradients.
  Scale teacher({.n = 1});
  for (const Tensor& p : teacher.parameters()) p.requires_grad_(false);
  learner.other = &teacher;
  EXPECT_EQ(learner(x).item<double>(), 4);

  Outer hooked;
  Scale head({.n = 1});
  hooked.own.add_forward_hook([&](Layer&, const Tensor&, const Tensor& y) { return head(y); });
  hooked.add_forward_hook([&](Layer&, const Tensor&, const Tensor& y) { return head(y); });
  EXPECT_EQ(hooked(x).item<double>(), 8);
}

TEST(Module, HooksRunInOrderAndMayReplaceTheOutput) {
  Scale layer({.n = 1});
  std::vector<double> seen;
  layer.add_forward_hook([&](Layer&, const Tensor& x, const Tensor& y) {
    seen = {x.item<double>(), y.item<double>()};
    return tensor({-1});
  });
  layer.add_forward_hook([&](Layer&, const Tensor&, const Tensor& y) {
    seen.push_back(y.item<double>());
    return Tensor();
  });
  EXPECT_EQ(layer(tensor({3})).item<double>(), -1);
  EXPECT_EQ(seen, (std::vector<double>{3, 6, -1}));
}

TEST(Sequential, RunsItsLayersInOrder) {
  Sequential net{std::make_shared<Scale>(Scale::Options{}),
                 std::make_shared<Scale>(Scale::Options{})};
  net.append<Scale>({.n = 1});
  EXPECT_EQ(net(tensor({1})).item<double>(), 8);
  EXPECT_EQ(net.children().back().first, "2");
  EXPECT_TRUE(Sequential()(net.state_dict()[0].second).defined());
  net.add<Module>("no_layer");
  EXPECT_THROW(net(tensor({1})), Error);
}

}  // namespace
}  // namespace tutti
