#include "pack_weights.h"

#include "../kernels/kernels.h"

namespace tutti::nn {

void pack_weights(Module& module) {
  for (const auto& [name, parameter] : module.named_parameters())
    if (parameter.rank() > 2)  // the weight of a convolution
      kernels::on(parameter.device()).convolution.keep_packed(parameter);
}

}  // namespace tutti::nn
