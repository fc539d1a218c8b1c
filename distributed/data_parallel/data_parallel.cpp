#include "data_parallel.h"

#include "../../autograd/node.h"
#include "../../core/create.h"
#include "../backend.h"
#include "../broadcast_text.h"
#include "reducer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace tutti::distributed {
namespace {

// Returns why DataParallel cannot take a tensor; empty where it can.
std::string problem_of(const Tensor& tensor) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.has_overlapping_elements())
    return "has elements that share memory, as those of an expanded tensor do; clone() it";
  if (!tensor.is_leaf()) return "was computed by an operation; detach() it";
  for (const autograd::InstalledHook& hook : autograd::meta_of(tensor).hooks)
    if (!hook.owner.empty())
      return "is averaged by another DataParallel already, as " + hook.owner +
             "; destroy that one first";
  return {};
}

// A tensor with gaps lies row-major in its bucket.
std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return ", undefined";
  std::string layout = "contiguous";
  if (tensor.is_dense() && !tensor.is_contiguous())
    layout = tensor.memory_format() == MemoryFormat::channels_last
                 ? "channels_last"
                 : "strides " + to_string(tensor.strides());
  return fmt::format(" of shape {}, {}, {}{}", to_string(tensor.shape()), to_string(tensor.dtype()),
                     layout, tensor.requires_grad() ? ", requires grad" : "");
}

// Describes in one line for each tensor what must be the same on every rank. The last line is the
// `problem` for which this rank refuses the model, if there is one: then no rank must go on.
std::vector<std::string> describe_model(const StateDict& parameters, const StateDict& buffers,
                                        std::string& problem) {
  std::vector<std::string> lines;
  std::map<const void*, std::string> seen;
  const auto list = [&](const char* kind, const StateDict& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const std::string title = fmt::format("{} '{}'", kind, name);
      const auto [first, is_new] = seen.try_emplace(
          tensor.defined() && tensor.numel() > 0 ? tensor.raw() : tensor.id(), title);
      std::string why = problem_of(tensor);
      if (why.empty() && !is_new) why = "has the same memory as " + first->second;
      if (problem.empty() && !why.empty()) problem = title + " " + why;
      lines.push_back(title + describe(tensor));
    }
  };
  list("parameter", parameters);
  list("buffer", buffers);
  if (!problem.empty()) lines.push_back("a problem: " + problem);
  return lines;
}

// Throws an error that shows the first line in which rank 0 and rank `r` differ, if there is one.
void compare_lines(const std::vector<std::string>& of_rank_0, const std::vector<std::string>& of_r,
                   int r) {
  for (std::size_t i = 0; i < std::max(of_rank_0.size(), of_r.size()); ++i) {
    const std::string zero = i < of_rank_0.size() ? of_rank_0[i] : "nothing more";
    const std::string other = i < of_r.size() ? of_r[i] : "nothing more";
    if (zero != other)
      fail<DistributedError>(
          "DataParallel: the models differ at {}: rank 0 has {}, rank {} has {}. Every rank must "
          "build the same models in the same order, with the same options",
          i == 0 ? "the options" : fmt::format("tensor {}", i - 1), zero, r, other);
  }
}

// Copies the values of rank `root` to all ranks. Tensors of one dtype and device travel together,
// so that a model of hundreds of tensors starts with a few collectives. The copies need as much
// memory as the gradients' buckets, which are not there yet when a model starts. They are
// row-major, because the ranks may keep a tensor in different formats.
void broadcast_all(const ProcessGroup& group, const StateDict& tensors, int root,
                   const std::string& identity) {
  constexpr std::int64_t cap = std::int64_t{256} << 20;  // bytes of one broadcast
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  StateDict layouts = tensors;
  for (auto& [name, tensor] : layouts)
    tensor = tensor.alias(tensor.shape(), dense_strides(tensor.shape()), tensor.offset());
  for (const Bucket& bucket : make_buckets(layouts, order, cap, cap)) {
    const auto copy = [&](bool to_bucket) {
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const Tensor tensor = tensors[bucket.parameters[i]].second.detach();
        if (to_bucket) bucket.views[i].copy_(tensor);
        else tensor.copy_(bucket.views[i]);
      }
    };
    if (group.rank() == root) copy(true);
    const std::string name = fmt::format("DataParallel: values of {} {} tensors",
                                         bucket.parameters.size(), to_string(bucket.flat.dtype()));
    group.broadcast(bucket.flat, root, {.name = name, .step = identity}).wait();
    if (group.rank() != root) copy(false);
  }
}

// Returns how many of the models that this rank has wrapped in the group were made before this one.
// Ranks that wrap two models of equal names and shapes in opposite order differ in it.
std::int64_t count_older_models(Backend& backend, const StateDict& parameters) {
  auto& numbers = backend.first_parameter_numbers;
  const bool has_meta = !parameters.empty() && parameters.front().second.defined() &&
                        parameters.front().second.meta();
  const std::uint64_t own = has_meta ? parameters.front().second.meta()->parameter_number : 0;
  const auto older = std::ranges::count_if(numbers, [own](auto number) { return number < own; });
  numbers.push_back(own);
  return older;
}

}  // namespace

DataParallel::DataParallel(StateDict parameters, StateDict buffers, ProcessGroup group,
                           DataParallelOptions options)
    : buffers_(std::move(buffers)), group_(std::move(group)) {
  std::string problem;
  if (!(options.bucket_cap_mb > 0) || !(options.first_bucket_mb > 0))
    problem = fmt::format("bucket_cap_mb and first_bucket_mb must be positive, got {} and {}",
                          options.bucket_cap_mb, options.first_bucket_mb);
  std::vector<std::string> description = describe_model(parameters, buffers_, problem);
  if (group_.size() > 1) {
    const std::string name = options.name.empty() ? "" : fmt::format(" '{}'", options.name);
    identity_ = fmt::format(", DataParallel {}{} of group '{}'", ++group_.implementation()->models,
                            name, group_.name());
    description.insert(
        description.begin(),
        fmt::format(
            "the name '{}', a model made after {} of those wrapped before it, bucket_cap_mb={}, "
            "first_bucket_mb={}, find_unused_parameters={}, reorder_buckets={}",
            options.name, count_older_models(*group_.implementation(), parameters),
            options.bucket_cap_mb, options.first_bucket_mb, options.find_unused_parameters,
            options.reorder_buckets));
    compare_texts(group_, fmt::format("{}", fmt::join(description, "\n")),
                  "DataParallel: compare the models", compare_lines);
  }
  if (!problem.empty()) fail<ValueError>("DataParallel: {}", problem);
  if (group_.size() == 1) return;
  StateDict tensors = parameters;
  tensors.insert(tensors.end(), buffers_.begin(), buffers_.end());
  broadcast_all(group_, tensors, 0, identity_);
  reducer_ =
      std::make_shared<Reducer>(std::move(parameters), group_, std::move(options), identity_);
}

DataParallel::~DataParallel() {
  if (reducer_) reducer_->detach();
}

DataParallel::NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {
  if (reducer_) reducer_->pause(true);
}
DataParallel::NoSync::~NoSync() {
  if (reducer_) reducer_->pause(false);
}

DataParallel::NoSync DataParallel::no_sync() { return NoSync(reducer_); }

void DataParallel::synchronize_gradients() {
  if (reducer_) reducer_->synchronize();
}

void DataParallel::broadcast_buffers(int root) {
  if (group_.size() > 1) broadcast_all(group_, buffers_, root, identity_);
}

std::vector<std::vector<std::string>> DataParallel::buckets() const {
  return reducer_ ? reducer_->bucket_names() : std::vector<std::vector<std::string>>{};
}

}  // namespace tutti::distributed
