// The engine: walks the graph backwards in one deterministic order, on the calling thread.
#pragma once

#include "node.h"

#include <functional>

namespace tutti::autograd {

/// See Tensor::backward. Operations run by descending sequence number, so in the same order on
/// every rank that ran the same forward; a leaf's gradient is complete, and its hooks run, as soon
/// as its last use was visited.
void backward(const Tensor& root, Tensor gradient, bool retain_graph);

/// Runs `callback` when the outermost backward of this thread has visited everything, before it
/// returns; dropped if that backward throws. Error outside of a backward. DataParallel finishes its
/// buckets in one.
void at_end_of_backward(std::function<void()> callback);

/// A number that differs for every outermost backward of this thread; 0 outside.
std::uint64_t current_backward();

}  // namespace tutti::autograd
