// How one computation of oneDNN is shared among threads: into shares of images, channels, matrices,
// rows or columns, of which each is a call of onednn.h on one thread. onednn.cpp describes what a
// share computes.
#pragma once

#include "../../core/create.h"
#include "../../core/parallel.h"
#include "../../core/scoped_value.h"
#include "../../core/thread_pool.h"
#include "../kernels.h"
#include "onednn.h"

#include <atomic>
#include <optional>
#include <vector>

namespace tutti::kernels::cpu::onednn {

inline void* pointer(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

/// Returns the layout that two activations share; none if their layouts differ.
inline std::optional<MemoryFormat> common_format(const Tensor& x, const Tensor& y) {
  for (MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
    if (x.is_contiguous(format) && y.is_contiguous(format)) return format;
  return {};
}

/// Returns whether `size` images, matrices or rows are computed in shares, each by one thread.
/// Where they cannot be of about the same size, or there are more threads than was measured, the
/// threads of OpenMP compute them together.
inline bool is_divided(std::int64_t size) {
  const int threads = num_threads();
  return threads > 1 && threads <= 8 && (size % threads == 0 || size >= 4 * threads);
}

/// Entries [begin, end) of dimension `dim`; the undefined tensor of one.
inline Tensor part(const Tensor& t, int dim, std::int64_t begin, std::int64_t end) {
  if (!t.defined()) return t;
  Shape shape = t.shape();
  shape[dim] = end - begin;
  return t.alias(shape, t.strides(), t.offset() + begin * t.strides()[dim]);
}

/// Calls compute(begin, end) for shares that cover [0, size). Returns whether all returned true.
/// `tensors` are what the shares use: the observer of this thread does not see other threads.
template <class Compute>
bool in_shares(std::int64_t size, std::initializer_list<Tensor> tensors, const Compute& compute) {
  for (const Tensor& tensor : tensors) (void)pointer(tensor);
  tutti::detail::loops_use_openmp = false;
  std::atomic<bool> all{true};
  parallel_for(size, 1, [&](std::int64_t begin, std::int64_t end) {
    if (!compute(begin, end)) all = false;
  });
  return all;
}

/// Returns whether the shares of a convolution are of output channels (input channels, for the
/// gradient of the input) instead of images: where the weight is larger than the activation that
/// has these channels, because each share of images would convert the whole weight to oneDNN's
/// layout.
inline bool is_divided_by_channels(const Tensor& w, const Tensor& activation,
                                   const ConvOptions& options) {
  const int threads = num_threads();
  return threads > 1 && threads <= 8 && options.groups == 1 && w.numel() > 2 * activation.numel() &&
         activation.size(1) % (16 * threads) == 0;
}

/// Memory for an activation of which each share has some channels, dense as oneDNN needs them.
class ChannelShares {
 public:
  explicit ChannelShares(const Tensor& like)
      : like_(like), memory_(empty({like.numel()}, {like.dtype()})) {}
  /// Channels [begin, end), in the layout that `like` and `other` share.
  Tensor part(std::int64_t begin, std::int64_t end, const Tensor& other) const {
    Shape shape = like_.shape();
    shape[1] = end - begin;
    const auto format = common_format(like_, other);
    return memory_.alias(shape, dense_strides(shape, format ? *format : MemoryFormat::contiguous),
                         begin * (like_.numel() / like_.size(1)));
  }

 private:
  Tensor like_, memory_;
};

/// Computes the gradients of shares of the batch, in float32, and adds them in order.
inline bool backward_weight_in_shares(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                      const Tensor& dw, const Tensor& db) {
  const std::int64_t images = x.size(0), shares = num_threads();
  std::vector<Tensor> dws, dbs(static_cast<std::size_t>(shares));
  for (std::int64_t share = 0; share < shares; ++share) {
    const bool is_first = share == 0;
    dws.push_back(is_first && dw.dtype() == float32 ? dw : empty_like(dw, float32));
    if (db.defined())
      dbs[static_cast<std::size_t>(share)] =
          is_first && db.dtype() == float32 ? db : empty_like(db, float32);
  }
  if (!in_shares(shares, {x, dy, dw, db}, [&](std::int64_t share, std::int64_t) {
        const std::int64_t begin = images * share / shares, end = images * (share + 1) / shares;
        const auto i = static_cast<std::size_t>(share);
        return convolution_backward_weight(part(x, 0, begin, end), part(dy, 0, begin, end), options,
                                           dws[i], dbs[i]);
      }))
    return false;
  const auto add = [&](const std::vector<Tensor>& parts, const Tensor& to) {
    for (std::size_t i = 1; i < parts.size(); ++i) table().elementwise.axpy(1, parts[i], parts[0]);
    if (to.dtype() != float32) table().elementwise.copy(parts[0], to);
  };
  add(dws, dw);
  if (db.defined()) add(dbs, db);
  return true;
}

/// Computes shares of the batch, of the rows or of the columns, or all on this thread where that is
/// little work. Returns nothing where the product is not divided.
inline std::optional<bool> matmul_in_shares(const Tensor& a, const Tensor& b, const Tensor& bias,
                                            const Tensor& out) {
  const int threads = num_threads(), row = out.rank() - 2, column = row + 1;
  if (threads == 1) return {};
  constexpr std::int64_t few = std::int64_t{1} << 17;  // multiplications
  if (out.numel() * a.size(-1) < few) {
    const ScopedValue alone(tutti::detail::in_share, true);
    return matmul(a, b, bias, out);
  }
  int dim = out.size(row) >= out.size(column) ? row : column;
  if (row > 0 && is_divided(out.size(0))) dim = 0;
  else if (!is_divided(out.size(dim)) || out.size(dim) < 16 * threads) return {};
  return in_shares(out.size(dim), {a, b, bias, out}, [&](std::int64_t begin, std::int64_t end) {
    const auto of = [&](const Tensor& t, int d, bool is_cut) {
      return is_cut ? part(t, d, begin, end) : t;
    };
    return matmul(of(a, dim, dim != column && a.size(dim) > 1),
                  of(b, dim, dim != row && b.size(dim) > 1), of(bias, 0, dim == column),
                  part(out, dim, begin, end));
  });
}

}  // namespace tutti::kernels::cpu::onednn
