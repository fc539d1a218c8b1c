#include "ghost.h"

#include "../../autograd/functions.h"
#include "../../autograd/record.h"
#include "../../core/create.h"

#include <algorithm>

namespace tutti::nn {
namespace {

// Returns views of the parts of `size` samples, all of which must be used. The backward writes the
// gradients of all parts into one tensor; that of Tensor::slice() makes a whole one for each part.
std::vector<Tensor> split(const Tensor& x, std::int64_t size) {
  struct Gradient {
    Tensor whole;
    std::size_t parts = 0;  // that it has yet to get
  };
  const auto gradient = std::make_shared<Gradient>();
  const Tensor whole =
      autograd::record("split", x.detach(), {x}, [](const Tensor& g) { return g; });
  std::vector<Tensor> parts;
  for (std::int64_t begin = 0; begin < x.size(0); begin += size) {
    const std::int64_t end = std::min(begin + size, x.size(0));
    const Tensor part = x.detach().slice(0, begin, end);
    parts.push_back(autograd::record(
        "split", part, {whole},
        [=, shape = x.shape(), count = (x.size(0) + size - 1) / size](const Tensor& g) {
          Tensor first;
          if (gradient->parts == 0) {
            gradient->parts = static_cast<std::size_t>(count);
            first = gradient->whole = empty(shape, {g.dtype(), g.device()}, g.memory_format());
          }
          gradient->whole.slice(0, begin, end).copy_(g);
          if (--gradient->parts == 0) gradient->whole = {};
          return first;
        }));
  }
  return parts;
}

}  // namespace

GhostBatchNorm::GhostBatchNorm(std::shared_ptr<BatchNorm> layer, std::int64_t size)
    : norm(add_child("norm", std::move(layer))), size_(size) {
  if (size < 1) fail<ValueError>("GhostBatchNorm: expected a size of at least 1, got {}", size);
}

Tensor GhostBatchNorm::forward(const Tensor& x) {
  if (norm.process_group())
    fail<ValueError>(
        "{}: ghost batches of {} samples are statistics of parts of one rank's batch, and a group "
        "shares those of whole batches; choose one of the two",
        norm.error_name(), size_);
  if (!is_training() || x.rank() < 2 || x.size(0) <= size_) return norm(x);
  const std::int64_t last = x.size(0) % size_, channels = std::max<std::int64_t>(1, x.size(1));
  if (last > 0 && last * x.numel() == channels * x.size(0))
    fail<ShapeError>(
        "{}: the last ghost batch of input {} would have 1 value per channel, of which there is no "
        "variance; drop the last samples, or take another size than {}",
        norm.error_name(), tutti::to_string(x.shape()), size_);
  std::vector<Tensor> outputs;
  for (const Tensor& part : split(x, size_)) outputs.push_back(norm(part));
  return cat(outputs);
}

std::string GhostBatchNorm::describe() const { return fmt::format("size={}", size_); }

}  // namespace tutti::nn
