// The engine runs backward: it visits the recorded operations in one deterministic order, on the
// calling thread. record.h records them.
#pragma once

#include "node.h"

#include <functional>

namespace tutti::autograd {

/// Implements Tensor::backward. Throws an Error inside of another backward. Operations are visited
/// by descending sequence number, so in the same order on every rank that ran the same forward. A
/// leaf's gradient is complete, and its hooks run, as soon as its last use has been visited.
void backward(const Tensor& root, const Tensor& gradient, bool retain_graph);

/// Runs `callback` at the end of the thread's backward, before that returns. If that backward
/// throws, the callback is dropped. Throws an Error outside of a backward. DataParallel
/// finishes its buckets in such a callback.
void at_end_of_backward(std::function<void()> callback);

/// Returns a number that identifies the backward that runs on this thread; 0 outside of one.
std::uint64_t current_backward();

/// Returns how many backwards this thread has begun. Inside of one, this is its number.
std::uint64_t backwards_begun();

/// Returns the leaves that the thread's backward will reach, as its graph shows before the first
/// operation runs. Returns none where an operation in the graph waits for ranks of `group` (null
/// stands for any group).
std::vector<Tensor> leaves_reached_alone(const void* group);

/// Returns the module's parameter with the highest parameter_number of those without a hook that
/// have received a gradient in the thread's backward; undefined for none.
Tensor newest_parameter_without_hook();

}  // namespace tutti::autograd
