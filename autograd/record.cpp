#include "record.h"

#include "../core/serial.h"

#include <algorithm>
#include <utility>

namespace tutti::autograd {

bool needs_grad(const Tensor& tensor) {
  return grad_enabled() && tensor.defined() && tensor.requires_grad();
}

Tensor record_node(std::string name, Tensor output, const std::vector<Tensor>& inputs,
                   Backward backward) {
  if (std::none_of(inputs.begin(), inputs.end(), needs_grad)) return output;
  if (output.meta())
    fail<Error>(
        "record('{}'): the output already has a history or is an input; compute it from detached "
        "tensors into a new one",
        name);
  const auto node = std::make_shared<Node>();
  node->name = std::move(name);
  node->sequence = next_serial();
  for (const Tensor& input : inputs) {
    const bool needed = needs_grad(input);
    if (needed && !is_floating(input.dtype()))
      fail<DTypeError>("record('{}'): an input of dtype {} cannot require grad", node->name,
                       to_string(input.dtype()));
    node->edges.push_back(!needed           ? Edge{}
                          : input.is_leaf() ? Edge{nullptr, input}
                                            : Edge{input.meta()->node, {}});
    if (needed && input.is_leaf())
      input.meta()->uses_without_backward.fetch_add(1, std::memory_order_relaxed);
    node->shapes.push_back(input.defined() ? input.shape() : Shape{});
    node->dtypes.push_back(input.defined() ? input.dtype() : DType::float32);
  }
  node->backward = std::move(backward);
  Meta& meta = meta_of(output);
  meta.requires_grad = true;
  meta.node = node;
  return output;
}

}  // namespace tutti::autograd

namespace tutti {
namespace {

thread_local bool recording = true;
thread_local std::optional<DType> casting;

}  // namespace

NoGrad::NoGrad(bool on) : recording_(recording, recording && !on) {}
EnableGrad::EnableGrad() : recording_(recording, true) {}
bool grad_enabled() { return recording; }

Autocast::Autocast(DType dtype) : casting_(casting, casting) {
  if (dtype != bfloat16 && dtype != float16 && dtype != float32)
    fail<DTypeError>("Autocast: expected bfloat16, float16 or float32 (off), got {}",
                     to_string(dtype));
  casting = dtype == float32 ? std::nullopt : std::optional(dtype);
}
std::optional<DType> autocast_dtype() { return casting; }

Tensor autocast(const char* op, const Tensor& x) {
  if (!casting || !is_floating(x.dtype())) return x;
  if (*casting == float16 && x.device().is_cpu())
    fail<DTypeError>(
        "{}: Autocast(float16) needs a CUDA device, got a tensor on the cpu; use "
        "Autocast(bfloat16) there",
        op);
  return x.to(*casting);
}

}  // namespace tutti
