// Forward and backward of operations on tensors against PyTorch's results
// (tests/fixtures/make_operations.py), in float64 and in several memory layouts.
#include "../nn/fixture.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>

#include <set>

namespace tutti {
namespace {

// A case of the fixture. `index` is undefined where the operation has none.
struct Case {
  std::string name;
  Tensor (*call)(const Tensor& x, const Tensor& index);
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"clamp", [](const Tensor& x, const Tensor&) { return clamp(x, -1, 0.5); }},
      {"clamp_min", [](const Tensor& x, const Tensor&) { return clamp(x, -1, {}); }},
      {"clamp_max", [](const Tensor& x, const Tensor&) { return clamp(x, {}, 0.5); }},
      {"clamp_crossed", [](const Tensor& x, const Tensor&) { return clamp(x, 1, -0.5); }},
      {"sign", [](const Tensor& x, const Tensor&) { return sign(x); }},
      {"var", [](const Tensor& x, const Tensor&) { return var(x); }},
      {"var_dims",
       [](const Tensor& x, const Tensor&) {
         return var(x, {0, 2}, {.correction = 0, .keepdim = true});
       }},
      {"var_last", [](const Tensor& x, const Tensor&) { return var(x, {-1}, {.correction = 2}); }},
      {"std", [](const Tensor& x, const Tensor&) { return tutti::std(x); }},
      {"std_dims",
       [](const Tensor& x, const Tensor&) {
         return tutti::std(x, {1, 2});
       }},
      {"std_equal", [](const Tensor& x, const Tensor&) { return tutti::std(x, {0}); }},
      {"topk", [](const Tensor& x, const Tensor&) { return topk(x, 3, 1).first; }},
      {"topk_indices", [](const Tensor& x, const Tensor&) { return topk(x, 3).second; }},
      {"gather", [](const Tensor& x, const Tensor& i) { return gather(x, 1, i); }},
      {"index_select", [](const Tensor& x, const Tensor& i) { return index_select(x, 2, i); }},
      {"one_hot", [](const Tensor& x, const Tensor&) { return one_hot(x, 5); }},
      {"pad",
       [](const Tensor& x, const Tensor&) {
         return pad(x, {1, 2, 0, 3}, 0.5);
       }},
      {"pad_cut",
       [](const Tensor& x, const Tensor&) {
         return pad(x, {-1, 2, 1, -2, 0, -1});
       }},
      {"flip",
       [](const Tensor& x, const Tensor&) {
         return flip(x, {0, -1});
       }},
      {"masked_fill",
       [](const Tensor& x, const Tensor& i) { return masked_fill(x, i.to(boolean), -3); }},
      {"argmax", [](const Tensor& x, const Tensor&) { return argmax(x); }},
  };
  return all;
}

TEST(OperationFixtures, EqualPyTorch) {
  Tensors all = read_fixture("operations.safetensors");
  std::set<std::string> checked;
  for (const auto& [name, call] : cases()) {
    SCOPED_TRACE(name);
    checked.insert(name);
    const Tensor stored = all.at(name + ".x"), index = all[name + ".index"];
    Dims reversed;
    for (int d = stored.rank() - 1; d >= 0; --d) reversed.push_back(d);
    for (const Tensor& memory : {stored, stored.permute(reversed).contiguous().permute(reversed)}) {
      const Tensor x = memory.clone();
      if (is_floating(x.dtype())) x.requires_grad_();
      const Tensor y = call(x, index);
      EXPECT_LT(distance(y.detach(), all.at(name + ".y")), 1e-10);
      EXPECT_EQ(y.dtype(), all.at(name + ".y").dtype());
      if (!all.count(name + ".gy")) continue;
      y.backward(all.at(name + ".gy"));
      EXPECT_LT(distance(x.grad(), all.at(name + ".gx")), 1e-10);
    }
  }
  for (const auto& [key, tensor] : all)
    EXPECT_TRUE(checked.count(key.substr(0, key.find('.')))) << "nothing checked " << key;
}

}  // namespace
}  // namespace tutti
