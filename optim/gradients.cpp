#include "gradients.h"

#include "../core/create.h"

namespace tutti::optim {

std::vector<Tensor> dense_gradients(const char* op, const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& p : parameters) {
    Tensor g = p.grad();
    if (!g.defined()) continue;
    if (!g.is_dense()) {
      const Tensor dense = empty_like(p);
      dense.copy_(g);
      p.set_grad(g = dense);
    }
    if (!gradients.empty() && g.device() != gradients.front().device())
      fail<DeviceError>("{}: expected all gradients on one device, got {} and {}", op,
                        to_string(gradients.front().device()), to_string(g.device()));
    gradients.push_back(g);
  }
  return gradients;
}

}  // namespace tutti::optim
