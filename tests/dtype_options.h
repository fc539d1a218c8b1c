// The options of tensors in the dtypes that most tests need.
#pragma once

#include <tutti/core/create.h>

namespace tutti {

inline const TensorOptions f64{.dtype = float64}, i64{.dtype = int64};

}  // namespace tutti
