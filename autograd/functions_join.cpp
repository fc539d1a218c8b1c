// cat and stack.
#include "../core/create.h"
#include "functions.h"
#include "operation.h"
#include "record.h"

namespace tutti {

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  if (tensors.empty()) fail<ShapeError>("cat: expected at least one tensor");
  const Tensor& first = tensors.front();
  const int d = normalize_dim(dim, first.rank(), "cat");
  Shape shape = first.shape();
  std::vector<std::int64_t> sizes;
  shape[d] = 0;
  for (const Tensor& x : tensors) {
    autograd::expect_same_dtype_and_device("cat", first, x);
    Shape other = x.shape();
    if (other.size() == shape.size()) other[d] = shape[d];
    if (!(other == shape))
      fail<ShapeError>("cat: expected shapes that differ in dimension {2} only, got {0} and {1}",
                       to_string(first.shape()), to_string(x.shape()), d);
    sizes.push_back(x.shape()[d]);
    if (__builtin_add_overflow(shape[d], x.shape()[d], &shape[d]))
      fail<ShapeError>("cat: the sizes in dimension {} add up to more than 64 bits hold", d);
  }
  const Tensor out = empty(shape, {first.dtype(), first.device()}, first.memory_format());
  std::vector<bool> needed;
  std::int64_t start = 0;
  for (const Tensor& x : tensors) {
    out.slice(d, start, start + x.shape()[d]).copy_(x.detach());
    start += x.shape()[d];
    needed.push_back(autograd::needs_grad(x));
  }
  return autograd::record("cat", out, tensors, [d, sizes, needed](const Tensor& g) {
    std::vector<Tensor> gradients(sizes.size());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); begin += sizes[i++])
      if (needed[i]) gradients[i] = g.slice(d, begin, begin + sizes[i]);
    return gradients;
  });
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim) {
  if (tensors.empty()) fail<ShapeError>("stack: expected at least one tensor");
  std::vector<Tensor> rows;
  for (const Tensor& x : tensors) {
    autograd::expect_same_dtype_and_device("stack", tensors.front(), x);
    if (!(x.shape() == tensors.front().shape()))
      fail<ShapeError>("stack: shapes {} and {} differ", to_string(tensors.front().shape()),
                       to_string(x.shape()));
    rows.push_back(x.unsqueeze(normalize_dim(dim, x.rank() + 1, "stack")));
  }
  return cat(rows, dim);
}

}  // namespace tutti
