#include "clip.h"

#include "../autograd/grad_mode.h"
#include "../core/create.h"
#include "../kernels/kernels.h"
#include "common.h"

namespace tutti::optim {

Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm) {
  if (!(max_norm > 0))
    fail<ValueError>("clip_grad_norm: max_norm must be above 0, got {}", max_norm);
  const NoGrad no_grad;
  const std::vector<Tensor> gradients = dense_gradients("clip_grad_norm", parameters);
  if (gradients.empty()) return scalar(0, {.dtype = float64});
  const TensorOptions options{.dtype = float64, .device = gradients.front().device()};
  const Tensor squares = empty({static_cast<std::int64_t>(gradients.size())}, options),
               norm = empty({}, options);
  const auto& table = kernels::on(options.device).optimizer;
  table.sums_of_squares(gradients, squares);
  table.clip(gradients, squares, max_norm, norm);
  for (const Tensor& g : gradients) g.storage()->bump_version();
  return norm;
}

}  // namespace tutti::optim
