// Every public function names itself, not a kernel or a helper, at the start of an error about its
// arguments. The table lists the functions, each with calls that fail on every device's account.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/conv.h>
#include <tutti/nn/functional/dropout.h>
#include <tutti/nn/functional/group_norm.h>
#include <tutti/nn/functional/layer_norm.h>
#include <tutti/nn/functional/linear.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/functional/pooling.h>

#include <gtest/gtest.h>

#include <functional>

namespace tutti {
namespace {

using test::expect_error;
using test::message_of;

struct FailingCall {
  const char* name;
  std::function<void()> call;
};

void expect_names(const std::vector<FailingCall>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto& [name, call] = calls[i];
    const std::string text = message_of<Error>(call);
    EXPECT_TRUE(text.starts_with(std::string(name) + ": "))
        << name << " (call " << i << "): " << text;
  }
}

using Unary = Tensor (*)(const Tensor&);

TEST(ErrorNames, OfElementwiseFunctions) {
  const Tensor half = ones({2, 3}).to(float16), whole = arange(3);
  const std::pair<const char*, Unary> unary[] = {
      {"abs", abs},     {"exp", exp},         {"log", log},  {"sqrt", sqrt},
      {"rsqrt", rsqrt}, {"square", square},   {"sin", sin},  {"cos", cos},
      {"tanh", tanh},   {"sigmoid", sigmoid}, {"relu", relu}};
  std::vector<FailingCall> calls;
  for (const auto& [name, function] : unary)
    for (const Tensor& x : {half, whole})
      calls.push_back({name, [function = function, x] { function(x); }});
  const auto add = [&](const char* name, std::function<void()> call) {
    calls.push_back({name, std::move(call)});
  };
  add("leaky_relu", [=] { leaky_relu(half); });
  add("leaky_relu", [=] { leaky_relu(whole); });
  add("sign", [=] { sign(half); });
  add("negate", [=] { -half; });
  add("pow", [=] { pow(half, 2); });
  add("pow", [=] { pow(whole, 2); });
  for (const Tensor& other : {half, ones({2, 3})}) {  // no float16 on the CPU; two dtypes
    add("add", [=] { half + other; });
    add("subtract", [=] { half - other; });
    add("multiply", [=] { half* other; });
    add("divide", [=] { half / other; });
    add("maximum", [=] { maximum(half, other); });
    add("minimum", [=] { minimum(half, other); });
    add("eq", [=] { eq(half, other); });
    add("ne", [=] { ne(half, other); });
    add("lt", [=] { lt(half, other); });
    add("le", [=] { le(half, other); });
    add("gt", [=] { gt(half, other); });
    add("ge", [=] { ge(half, other); });
    add("add_", [=] { ones({2, 3}).to(int64).add_(other); });
  }
  add("add", [=] { whole + 0.5; });
  add("subtract", [=] { 0.5 - whole; });
  add("multiply", [=] { whole * 0.5; });
  add("divide", [=] { whole / 2; });
  add("divide", [=] { 2 / whole; });
  add("divide", [=] { whole / whole; });
  add("eq", [=] { eq(half, 1); });
  add("clamp", [=] { clamp(half, 0, 1); });
  add("clamp", [=] { clamp(whole, 0.5, 1); });
  add("where", [=] { where(whole, half, half); });
  add("where", [=] { where(gt(whole, 0), half, ones({2, 3})); });
  add("masked_fill", [=] { masked_fill(half, whole, 0); });
  add("add_", [=] { half.add_(half); });
  add("add_", [=] { ones({2, 3}).add_(half); });
  add("add_", [=] { ones({3}).add_(whole); });
  add("add_", [=] { whole.add_(whole, 0.5); });
  add("mul_", [=] { half.mul_(2); });
  add("mul_", [=] { whole.mul_(0.5); });
  add("copy_", [=] { whole.copy_(half); });
  expect_names(calls);
}

TEST(ErrorNames, OfReductionsIndexingAndViews) {
  const Tensor half = ones({2, 3}).to(float16), whole = arange(3), x = ones({2, 3});
  const Tensor none = ones({2, 0});
  expect_names({
      {"sum", [=] { sum(half); }},
      {"sum", [=] { sum(x, {2}); }},
      {"sum",
       [=] {
         sum(x, {0, 0});
       }},
      {"mean", [=] { mean(half); }},
      {"mean", [=] { mean(whole); }},
      {"mean", [=] { mean(x, {-3}); }},
      {"var", [=] { var(whole); }},
      {"var", [=] { var(x, {2}); }},
      {"std", [=] { std(whole); }},
      {"std", [=] { std(x, {2}); }},
      {"max", [=] { max(half); }},
      {"max", [=] { max(x, {2}); }},
      {"max", [=] { max(none); }},
      {"min", [=] { min(half); }},
      {"min", [=] { min(none, {1}); }},
      {"argmax", [=] { argmax(half); }},
      {"argmax", [=] { argmax(x, 2); }},
      {"argmax", [=] { argmax(none, 1); }},
      {"softmax", [=] { softmax(half, 0); }},
      {"softmax", [=] { softmax(whole, 0); }},
      {"log_softmax", [=] { log_softmax(half, 0); }},
      {"log_softmax", [=] { log_softmax(x, 2); }},
      {"topk", [=] { topk(half, 1); }},
      {"topk", [=] { topk(x, 4); }},
      {"topk", [=] { topk(x, 1, 2); }},
      {"gather", [=] { gather(x, 0, x); }},
      {"gather",
       [=] {
         gather(x, 2, whole.reshape({1, 3}));
       }},
      {"gather",
       [=] {
         gather(x, 0, whole.reshape({1, 3}));
       }},
      {"index_select", [=] { index_select(x, 2, whole); }},
      {"index_select", [=] { index_select(x, 0, x); }},
      {"index_select", [=] { index_select(x, 0, whole); }},
      {"one_hot", [=] { one_hot(x, 3); }},
      {"one_hot", [=] { one_hot(whole, 2); }},
      {"flip", [=] { flip(x, {2}); }},
      {"pad",
       [=] {
         pad(whole, {1, 1}, 0.5);
       }},
      {"pad", [=] { pad(x, {1}); }},
      {"cat",
       [=] {
         cat({x, half});
       }},
      {"cat",
       [=] {
         cat({x, x}, 2);
       }},
      {"cat",
       [=] {
         cat({x, ones({2, 4})});
       }},
      {"cat",
       [] {
         cat({scalar(1), scalar(2)});
       }},
      {"stack",
       [=] {
         stack({x, half});
       }},
      {"stack",
       [=] {
         stack({x, x}, 3);
       }},
      {"stack",
       [=] {
         stack({x, ones({2, 4})});
       }},
      {"matmul", [=] { matmul(half, half.transpose(0, 1)); }},
      {"matmul", [=] { matmul(x, x); }},
      {"reshape", [=] { x.reshape({4}); }},
      {"flatten", [=] { x.flatten(2); }},
      {"permute", [=] { x.permute({0}); }},
      {"transpose", [=] { x.transpose(0, 2); }},
      {"slice", [=] { x.slice(2, 0, 1); }},
      {"slice", [] { scalar(1).slice(0, 0, 1); }},
      {"select", [=] { x.select(2, 0); }},
      {"select", [=] { x.select(0, 2); }},
      {"select", [] { scalar(1).select(0, 0); }},
      {"size", [] { scalar(1).size(0); }},
      {"expand", [=] { x.expand({3}); }},
      {"squeeze", [=] { x.squeeze(3); }},
      {"unsqueeze", [=] { x.unsqueeze(3); }},
  });
}

TEST(ErrorNames, OfLayersFunctions) {
  const Tensor image = ones({1, 2, 4, 4}), half = image.to(float16), whole = image.to(int64),
               weight = ones({2, 2, 3, 3}), row = ones({2, 3}), line = ones({1, 2, 4});
  expect_names({
      {"max_pool", [=] { nn::max_pool(half, {.kernel = {2}}); }},
      {"max_pool", [=] { nn::max_pool(whole, {.kernel = {2}}); }},
      {"max_pool", [=] { nn::max_pool(image, {.kernel = {5}}); }},
      {"avg_pool", [=] { nn::avg_pool(half, {.kernel = {2}}); }},
      {"avg_pool", [=] { nn::avg_pool(whole, {.kernel = {2}}); }},
      {"avg_pool", [=] { nn::avg_pool(row, {.kernel = {2}}); }},
      {"adaptive_avg_pool", [=] { nn::adaptive_avg_pool(half, {1}); }},
      {"adaptive_avg_pool", [=] { nn::adaptive_avg_pool(whole, {2}); }},
      {"adaptive_avg_pool",
       [] {
         nn::adaptive_avg_pool(ones({1, 1, 300, 300}).to(int64), {1});
       }},
      {"adaptive_avg_pool",
       [] {
         nn::adaptive_avg_pool(ones({1, 1, 300, 300}).to(float16), {1});
       }},
      {"convolution", [=] { nn::convolution(whole, weight.to(int64)); }},
      {"convolution",
       [=] {
         nn::convolution(image, ones({2, 3, 3, 3}));
       }},
      {"convolution", [=] { nn::convolution(half, weight.to(float16)); }},
      {"linear", [=] { nn::linear(row.to(float16), row.to(float16)); }},
      {"linear", [=] { nn::linear(row.to(int64), row.to(int64)); }},
      {"linear",
       [=] {
         nn::linear(row, ones({2, 4}));
       }},
      {"dropout", [=] { nn::dropout(row.to(float16), 0.5, true); }},
      {"dropout", [=] { nn::dropout(row.to(int64), 0.5, true); }},
      {"layer_norm", [=] { nn::layer_norm(row.to(float16), {3}); }},
      {"group_norm", [=] { nn::group_norm(half, 1); }},
      {"cross_entropy", [=] { nn::cross_entropy(row.to(float16), arange(2)); }},
      {"cross_entropy", [=] { nn::cross_entropy(row.to(int64), arange(2)); }},
      {"cross_entropy", [=] { nn::cross_entropy(row, arange(3)); }},
      {"mse_loss", [=] { nn::mse_loss(row, image); }},
      {"mse_loss", [=] { nn::mse_loss(row.to(int64), row.to(int64)); }},
  });
}

TEST(ErrorNames, TextsFitTheFunction) {
  const Tensor line = ones({1, 2, 4});
  EXPECT_EQ(message_of<Error>([&] {
              nn::max_pool(line, {.kernel = {2, 2}});
            }),
            "max_pool: expected 1 value for the option kernel, got (2, 2)");
  EXPECT_EQ(message_of<Error>([&] { nn::max_pool(line, {.kernel = {5}}); }),
            "max_pool: the kernel (5,) reaches over 5 elements, but input (1, 2, 4) with padding "
            "(0,) has only 4 there; use a larger input or more padding");
  expect_error<Error>(
      [&] {
        nn::convolution(line, ones({2, 2, 3}), {}, {.dilation = {2}});
      },
      {"with dilation (2,)"});
  EXPECT_EQ(message_of<Error>([] { scalar(1).size(0); }),
            "size: a tensor of shape () has no dimension 0");
}

}  // namespace
}  // namespace tutti
