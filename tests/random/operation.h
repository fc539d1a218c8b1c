// The table of operations that are compared with a reference. An Operation says how its inputs are
// drawn, how the library computes it and how plain loops over Numbers do. Everything else (layouts,
// gradients, tolerances, repetition) is the same for all of them: check.h.
#pragma once

#include "array.h"
#include "draw.h"

#include <optional>
#include <ostream>
#include <string>

namespace tutti::test {

/// One random call of an operation.
struct Trial {
  std::vector<Tensor> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> call;
  /// Gets the inputs as arrays; the tensors that are undefined as empty arrays without a shape.
  std::function<Array(const Arrays&)> reference;
  /// The options of the call, for the text of a failure.
  std::string options = {};
  /// The dtype of the result; that of the first input if there is none.
  std::optional<DType> dtype = {};
  /// How many inputs, from the first on, may need a gradient. Those of integers never do.
  std::size_t differentiable_inputs = 100;
  /// How often this trial rounds to 16 bits more than the traits say, as in mixed precision.
  double more_roundings = 0;
};

/// Where results may be NaN and the reference not: a kernel may multiply elements that have no
/// influence, such as the neighbours of what a window reads, by 0.
enum class NanSpread {
  none,
  channels,  ///< gradients may, in the channels (dimension 1) in which an input has a NaN
  samples,   ///< so may results, in the samples (dimension 0) in which the first input has one
};

/// What an operation takes and promises.
struct Traits {
  std::vector<DType> dtypes = {float32, float64, bfloat16};
  /// Whether a gradient flows back to the inputs.
  bool is_differentiable = true;
  /// How often a 16-bit result is rounded before its last rounding, forward and backward.
  double roundings = 0, gradient_roundings = 1;
  /// How much larger than usual the rounding errors may be, as in a long sum in one order.
  double error_growth = 1;
  /// Whether inputs may be NaN or infinite.
  bool takes_nonfinite = true;
  /// Whether inputs may be infinite, too; not where the order of a computation decides what becomes
  /// of infinities.
  bool takes_infinite = true;
  NanSpread nan_spread = NanSpread::none;
  /// Whether a batch of no samples is an operation; otherwise it is a ShapeError.
  bool takes_empty_batch = true;
};

/// One operation of the library.
struct Operation {
  /// The declaration without names and defaults, such as "sum(const Tensor&, const Dims&, bool)",
  /// or the class of a layer, such as "nn::Linear". Several operations may have one declaration.
  std::string name;
  std::function<Trial(Draw&)> draw;
  Traits traits = {};
};

/// The operations of one file. Each family is a test that runs by itself.
struct Family {
  std::string name;
  std::vector<Operation> operations;
};
inline void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

// ---- The families, in the files of their names.

Family arithmetic();
Family elementwise();
Family comparisons();
Family reductions();
Family views();
Family products();
Family convolutions();
Family pooling();
Family normalisation();
Family losses();
Family layers();

/// Returns all families.
inline std::vector<Family> families() {
  return {arithmetic(),   elementwise(), comparisons(),   reductions(), views(), products(),
          convolutions(), pooling(),     normalisation(), losses(),     layers()};
}

}  // namespace tutti::test
