#include "pack_weights.h"

#include "../kernels/kernels.h"
#include "conv.h"

namespace tutti::nn {

void pack_weights(Module& module) {
  for (const auto& [path, each] : module.named_modules())
    if (const auto* convolution = dynamic_cast<const Conv*>(each)) {
      const Tensor& weight = convolution->weight;
      kernels::on(weight.device()).convolution.keep_packed(weight);
    }
}

}  // namespace tutti::nn
