// Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, "Decoupled weight decay
// regularization", ICLR 2019), both with Adam's bias corrections:
//
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//
// They differ in the weight decay: Adam adds weight_decay p to g; AdamW first multiplies p by
// 1 - lr weight_decay.
#pragma once

#include "optimizer.h"

namespace tutti::optim {

/// The options of Adam, and of AdamW if `decoupled`.
template <bool decoupled>
struct AdamMethodOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = decoupled ? 1e-2 : 0;
};

/// Adam and AdamW; the formulas stand at the top of this file.
template <bool decoupled>
class AdamMethod : public OptimizerWith<AdamMethodOptions<decoupled>> {
  using Base = OptimizerWith<AdamMethodOptions<decoupled>>;

 public:
  using typename Base::Group, typename Base::Options;

  AdamMethod(std::vector<Tensor> parameters, Options options)
      : AdamMethod({{std::move(parameters), options}}) {}
  explicit AdamMethod(const std::vector<Group>& groups);

 protected:
  void update_group(int group, std::span<const kernels::FusedUpdate> updates) override;
};

/// Adam, whose weight decay joins the gradient.
using Adam = AdamMethod<false>;
/// Adam with decoupled weight decay.
using AdamW = AdamMethod<true>;

}  // namespace tutti::optim
