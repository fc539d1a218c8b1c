// Communication hooks: how a bucket of gradients is summed over the ranks. The default is one
// all-reduce; compress_gradients() makes one in a 16-bit dtype, and users may write their own.
#pragma once

#include "../process_group.h"
#include "buckets.h"

namespace tutti::distributed {

/// A hook gets a bucket whose values are already divided by the number of ranks, and starts to sum
/// `bucket.flat` over the ranks. It returns a Work after whose wait() the bucket holds the sum, the
/// same bits on every rank. DataParallel calls the hook in the same order on every rank, on the
/// thread that runs backward. `options` names the bucket for errors and traces. A hook that needs
/// the values alone takes a `const Tensor&` instead of the Bucket.
using CommunicationHook =
    std::function<Work(const ProcessGroup& group, const Bucket& bucket, CallOptions options)>;

/// Returns a hook that sends buckets as `dtype` (bfloat16 or float16): half the bytes of float32,
/// with the rounding of that dtype. Throws a DTypeError for another dtype.
CommunicationHook compress_gradients(DType dtype);

}  // namespace tutti::distributed
