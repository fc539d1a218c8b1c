// Copies of a convolution's weight in the layouts that kernels compute with, for inference: a
// weight is then converted once and not in every call. The copies belong to the weight's storage.
// Which layouts there are, the kernels decide.
#pragma once

#include "../../core/tensor.h"

#include <any>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::kernels::cpu {

/// The copies of one weight. Any thread may use them.
class PackedWeights : public Storage::KernelData {
 public:
  /// Lets kernels keep copies of `w` from now on (Convolution::keep_packed).
  static void keep(const Tensor& w) {
    w.storage()->set_kernel_data(std::make_unique<PackedWeights>(*w.storage()));
  }
  /// Returns the copies of a weight that fills its storage; null where none are kept.
  static PackedWeights* of(const Tensor& w) {
    Storage& storage = *w.storage();
    const std::size_t bytes = static_cast<std::size_t>(w.numel()) * size_of(w.dtype());
    const bool is_whole = w.offset() == 0 && bytes == storage.bytes();
    return is_whole ? dynamic_cast<PackedWeights*>(storage.kernel_data()) : nullptr;
  }

  explicit PackedWeights(const Storage& storage) : storage_(storage) {}

  /// Returns the copy in `layout`, which `pack` makes in the first call. Makes all copies anew if
  /// the weight has changed in place. The copy lives as long as the caller keeps it. Layouts of
  /// different types are different.
  template <class Layout>
  std::shared_ptr<Storage> find(const Layout& layout,
                                const std::function<std::shared_ptr<Storage>()>& pack) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(version_, storage_.version()) != storage_.version()) copies_.clear();
    for (const auto& [packed, copy] : copies_)
      if (const auto* other = std::any_cast<Layout>(&packed); other && *other == layout)
        return copy;
    copies_.emplace_back(layout, pack());
    return copies_.back().second;
  }

 private:
  const Storage& storage_;  // That of the weight, which owns this object.
  std::mutex mutex_;
  std::uint64_t version_ = 0;
  std::vector<std::pair<std::any, std::shared_ptr<Storage>>> copies_;
};

}  // namespace tutti::kernels::cpu
