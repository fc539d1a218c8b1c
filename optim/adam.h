// Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, "Decoupled weight decay
// regularization", ICLR 2019), both with Adam's bias corrections:
//
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//
// With amsgrad (Reddi, Kale and Kumar, "On the convergence of Adam and beyond", ICLR 2018), the
// largest v so far takes the place of v in the last line.
//
// They differ in the weight decay: Adam adds weight_decay p to g; AdamW first multiplies p by
// 1 - lr weight_decay.
#pragma once

#include "optimizer.h"

namespace tutti::optim {

/// The options of Adam.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  /// Divides by the largest second moment so far, for which every parameter keeps a third state.
  bool amsgrad = false;
};

/// Adam; the formulas stand at the top of this file.
class Adam : public OptimizerWith<AdamOptions> {
 public:
  Adam(std::vector<Tensor> parameters, Options options)
      : Adam({{std::move(parameters), options}}) {}
  explicit Adam(const std::vector<Group>& groups) : Adam("Adam", groups, false) {}

 protected:
  /// `decoupled` selects the weight decay of AdamW.
  Adam(std::string name, const std::vector<Group>& groups, bool decoupled);
  bool is_capturable() const override { return true; }
  int state_count(int group) const override { return options(group).amsgrad ? 3 : 2; }
  void update_group(int group, std::span<const kernels::FusedUpdate> updates,
                    const double* scalars) override;

 private:
  bool decoupled_;
};

/// Adam with decoupled weight decay.
class AdamW : public Adam {
 public:
  struct Options {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 1e-2;
    bool amsgrad = false;
  };
  using Group = ParameterGroup<Options>;

  AdamW(std::vector<Tensor> parameters, Options options)
      : AdamW({{std::move(parameters), options}}) {}
  explicit AdamW(const std::vector<Group>& groups);
};

}  // namespace tutti::optim
