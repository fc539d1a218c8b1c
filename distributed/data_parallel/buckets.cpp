#include "buckets.h"

#include "../../core/create.h"

#include <algorithm>

namespace tutti::distributed {
namespace {

constexpr std::int64_t alignment = 64;  // bytes

std::int64_t element_size(const Tensor& tensor) {
  return static_cast<std::int64_t>(size_of(tensor.dtype()));
}

// Returns the number of elements that a gradient takes up in a bucket, with the gap after it.
std::int64_t padded_elements(const Tensor& tensor) {
  const std::int64_t step = alignment / element_size(tensor);
  return (tensor.numel() + step - 1) / step * step;
}

void allocate(Bucket& bucket, const StateDict& parameters) {
  std::int64_t total = 0;
  for (const std::size_t p : bucket.parameters) total += padded_elements(parameters[p].second);
  const Tensor& any = parameters[bucket.parameters[0]].second;
  bucket.flat = empty({total}, {any.dtype(), any.device()});
  bucket.flat.zero_();  // the gaps are sent, too, so they must hold finite numbers
  std::int64_t offset = 0;
  for (const std::size_t p : bucket.parameters) {
    const Tensor& parameter = parameters[p].second;
    const Strides strides = parameter.is_dense() ? parameter.strides()
                                                 : dense_strides(parameter.shape());
    bucket.views.push_back(bucket.flat.alias(parameter.shape(), strides, offset));
    offset += padded_elements(parameter);
  }
}

// Returns how many characters `a` and `b` share at their front, in whole components of the name:
// "layer3.0.conv1" and "layer3.0.bn1" share the nine of "layer3.0.".
std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto same = static_cast<std::size_t>(
      std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  return a.substr(0, same).rfind('.') + 1;  // npos + 1 is 0
}

// Returns a short list of the members for errors, such as "layer3.*" or "fc.*, layer4.1.*". Members
// are grouped by the first component in which the names of the model's parameters differ.
std::string summarize(const StateDict& parameters, const std::vector<std::size_t>& members) {
  struct Group {
    std::string_view head, prefix;
    bool several = false;
  };
  std::string_view root = parameters[0].first;
  for (const auto& [name, _] : parameters) root = root.substr(0, common_prefix(root, name));
  std::vector<Group> groups;
  for (const std::size_t member : members) {
    const std::string_view name = parameters[member].first,
                           head = name.substr(0, name.find('.', root.size()));
    const auto at = std::ranges::find(groups, head, &Group::head);
    if (at == groups.end()) groups.push_back({head, name});
    else *at = {head, at->prefix.substr(0, common_prefix(at->prefix, name)), true};
  }
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), most); ++i)
    text += fmt::format("{}{}{}", i ? ", " : "", groups[i].prefix, groups[i].several ? "*" : "");
  return groups.size() > most ? fmt::format("{} and {} more", text, groups.size() - most) : text;
}

// A bucket to which parameters are still added.
struct OpenBucket {
  DType dtype;
  Device device;
  std::int64_t cap = 0;    // bytes that it may hold
  std::int64_t bytes = 0;  // bytes that it holds
  std::vector<std::size_t> parameters = {};
  std::size_t last = 0;  // the position in the order of its last parameter
};

// Returns which parameters each bucket holds.
std::vector<OpenBucket> assign(const StateDict& parameters, const std::vector<std::size_t>& order,
                               std::int64_t first_bytes, std::int64_t cap_bytes) {
  std::vector<OpenBucket> open, closed;  // there is one open bucket for each dtype and device
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tensor& parameter = parameters[order[i]].second;
    const std::int64_t bytes = padded_elements(parameter) * element_size(parameter);
    auto at = std::find_if(open.begin(), open.end(), [&](const OpenBucket& bucket) {
      return bucket.dtype == parameter.dtype() && bucket.device == parameter.device();
    });
    if (at == open.end())
      at = open.insert(at, {parameter.dtype(), parameter.device(), first_bytes});
    if (at->bytes > 0 && at->bytes + bytes > at->cap) {
      closed.push_back(*at);
      *at = {at->dtype, at->device, cap_bytes};
    }
    at->parameters.push_back(order[i]);
    at->bytes += bytes;
    at->last = i;
  }
  closed.insert(closed.end(), open.begin(), open.end());
  std::ranges::sort(closed, {}, &OpenBucket::last);
  return closed;
}

}  // namespace

std::vector<Bucket> make_buckets(const StateDict& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t first_bytes, std::int64_t cap_bytes) {
  std::vector<Bucket> buckets;
  for (OpenBucket& each : assign(parameters, order, first_bytes, cap_bytes)) {
    Bucket& bucket = buckets.emplace_back();
    bucket.parameters = std::move(each.parameters);
    allocate(bucket, parameters);
    for (const std::size_t p : bucket.parameters) bucket.names.push_back(parameters[p].first);
    bucket.index = buckets.size() - 1;
    bucket.label =
        fmt::format("bucket {}: {}", bucket.index, summarize(parameters, bucket.parameters));
  }
  if (!buckets.empty()) buckets.back().is_last = true;
  return buckets;
}

}  // namespace tutti::distributed
