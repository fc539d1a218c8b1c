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
class PackedWeights : public Storage::Companion {
 public:
  /// Lets kernels keep copies of `w` from now on (Convolution::keep_packed).
  static void keep(const Tensor& w) {
    w.storage()->packed_weights = std::make_unique<PackedWeights>(w);
  }
  /// Returns the copies of a weight that begins its storage; null where none are kept, and for
  /// other views of the storage.
  static PackedWeights* of(const Tensor& w) {
    auto* const packed = static_cast<PackedWeights*>(w.storage()->packed_weights.get());
    const bool is_same = packed && w.offset() == 0 && w.shape() == packed->shape_ &&
                         w.strides() == packed->strides_;
    return is_same ? packed : nullptr;
  }

  explicit PackedWeights(const Tensor& w)
      : storage_(*w.storage()), shape_(w.shape()), strides_(w.strides()) {}

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
    // Inputs of many sizes cut the weight in many ways, each with a copy. Layouts of few channels
    // take more than the weight.
    std::size_t bytes = 0;
    for (const auto& [_, copy] : copies_) bytes += copy->bytes();
    if (bytes > 3 * storage_.bytes() + (std::size_t{1} << 20)) copies_.erase(copies_.begin());
    copies_.emplace_back(layout, pack());
    return copies_.back().second;
  }

 private:
  const Storage& storage_;  // That of the weight, which owns this object.
  const Shape shape_;
  const Strides strides_;
  std::mutex mutex_;
  std::uint64_t version_ = 0;
  std::vector<std::pair<std::any, std::shared_ptr<Storage>>> copies_;
};

}  // namespace tutti::kernels::cpu
