#include "extent.h"

#include <algorithm>

namespace tutti::nn {

std::string to_short_string(const Dims& dims) {
  const bool same = !dims.empty() &&
                    std::all_of(dims.begin(), dims.end(), [&](auto v) { return v == dims[0]; });
  return same ? std::to_string(dims[0]) : tutti::to_string(dims);
}

}  // namespace tutti::nn
