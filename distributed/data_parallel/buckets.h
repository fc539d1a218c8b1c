// The layout of gradients in buckets: which parameter lies in which bucket, and where. Nothing here
// communicates.
#pragma once

#include "../../core/state_dict.h"

#include <any>

namespace tutti::distributed {

/// A flat tensor that holds the gradients of some parameters, each at a 64-byte boundary.
struct Bucket {
  Tensor flat = {};
  /// Indices of the parameters, in the order they lie here.
  std::vector<std::size_t> parameters = {};
  /// One view of `flat` for each parameter, with that parameter's shape and strides.
  std::vector<Tensor> views = {};
  std::vector<std::string> names = {};  ///< Of the parameters.
  std::string label = {};  ///< For errors and traces: "bucket 2: layer2.0.*, layer1.*".
  std::size_t index = 0;   ///< The number of the bucket in its backward, counted from 0.
  bool is_last = false;    ///< No bucket of the backward comes after it.
  /// What a communication hook keeps for the next backward, such as rounding errors. It is empty
  /// again where the buckets are laid out anew, after the first backward.
  mutable std::any state = {};

  operator const Tensor&() const { return flat; }  // NOLINT(google-explicit-constructor)
};

/// Puts the parameters into buckets in the given order. Parameters of one dtype and device share a
/// bucket of up to `cap_bytes`; a parameter that is larger has a bucket of its own. The first
/// bucket of each dtype and device has `first_bytes`, which may be fewer, so that communication
/// starts early. The buckets are ordered by the position of their last parameter in `order`.
std::vector<Bucket> make_buckets(const StateDict& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t first_bytes, std::int64_t cap_bytes);

}  // namespace tutti::distributed
