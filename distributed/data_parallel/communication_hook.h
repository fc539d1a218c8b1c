// What happens to a gradient bucket between ranks: by default an all-reduce, or one in a 16-bit
// dtype, or the user's.
#pragma once

#include "../process_group.h"

namespace tutti::distributed {

/// Gets a flat bucket whose values are already divided by the number of ranks, starts the exchange,
/// and returns a Work after whose wait() the bucket holds the sum over the ranks, the same bits on
/// each. Called in the same order on every rank, on the thread that runs backward. `options` names
/// the bucket for errors.
using CommunicationHook =
    std::function<Work(const ProcessGroup& group, const Tensor& bucket, CallOptions options)>;

/// Sends the buckets as `dtype` (bfloat16 or float16): half the traffic of float32, with the
/// rounding of that dtype.
CommunicationHook compress_gradients(DType dtype);

}  // namespace tutti::distributed
