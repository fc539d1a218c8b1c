#include "packed_weights.h"

namespace tutti::kernels::cpu {

void PackedWeights::keep(const Tensor& w) {
  w.storage()->set_kernel_data(std::make_unique<PackedWeights>(*w.storage()));
}

PackedWeights* PackedWeights::of(const Tensor& w) {
  Storage& storage = *w.storage();
  const bool is_whole = w.offset() == 0 &&
                        static_cast<std::size_t>(w.numel()) * size_of(w.dtype()) == storage.bytes();
  return is_whole ? dynamic_cast<PackedWeights*>(storage.kernel_data()) : nullptr;
}

void PackedWeights::drop_outdated() {
  if (version_ != storage_.version()) copies_.clear();
  version_ = storage_.version();
}

}  // namespace tutti::kernels::cpu
