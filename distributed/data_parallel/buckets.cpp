#include "buckets.h"

#include "../../core/create.h"

#include <algorithm>

namespace tutti::distributed {
namespace {

constexpr std::int64_t alignment = 64;  // bytes

std::int64_t element_size(const Tensor& tensor) {
  return static_cast<std::int64_t>(size_of(tensor.dtype()));
}

// Elements, rounded up to the alignment.
std::int64_t room_for(const Tensor& tensor) {
  const std::int64_t step = alignment / element_size(tensor);
  return (tensor.numel() + step - 1) / step * step;
}

void allocate(Bucket& bucket, const StateDict& parameters, const ProcessGroup& group) {
  std::int64_t total = 0;
  for (const std::size_t p : bucket.parameters) total += room_for(parameters[p].second);
  const Tensor& any = parameters[bucket.parameters[0]].second;
  bucket.flat = group.empty({total}, {any.dtype(), any.device()});
  bucket.flat.zero_();  // the gaps travel too: they must hold numbers
  std::int64_t at = 0;
  for (const std::size_t p : bucket.parameters) {
    const Tensor& parameter = parameters[p].second;
    const Strides strides = parameter.is_dense() ? parameter.strides()
                                                 : dense_strides(parameter.shape());
    bucket.views.push_back(bucket.flat.alias(parameter.shape(), strides, at));
    at += room_for(parameter);
  }
}

// How much `a` and `b` have in common at their front, in whole components: "layer3.0.conv1" and
// "layer3.0.bn1" "layer3.0.".
std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto same = static_cast<std::size_t>(
      std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  return a.substr(0, same).rfind('.') + 1;  // npos + 1 is 0
}

// "layer3.*" or "fc.*, layer4.1.*": the members by the first component in which the model's
// parameters differ, as few words as an error has room for.
std::string summary(const StateDict& parameters, const std::vector<std::size_t>& members) {
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
    const auto at = std::find_if(groups.begin(), groups.end(),
                                 [&](const Group& group) { return group.head == head; });
    if (at == groups.end()) groups.push_back({head, name});
    else *at = {head, at->prefix.substr(0, common_prefix(at->prefix, name)), true};
  }
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), most); ++i)
    text += fmt::format("{}{}{}", i ? ", " : "", groups[i].prefix, groups[i].several ? "*" : "");
  return groups.size() > most ? fmt::format("{} and {} more", text, groups.size() - most) : text;
}

}  // namespace

std::vector<Bucket> make_buckets(const StateDict& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t first_bytes, std::int64_t cap_bytes,
                                 const ProcessGroup& group) {
  struct Open {
    DType dtype;
    Device device;
    Bucket bucket;
    std::int64_t bytes = 0, cap = 0;
    std::size_t last = 0;  // position in `order` of its last parameter
  };
  std::vector<Open> open, closed;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tensor& parameter = parameters[order[i]].second;
    const std::int64_t bytes = room_for(parameter) * element_size(parameter);
    auto at = std::find_if(open.begin(), open.end(), [&](const Open& o) {
      return o.dtype == parameter.dtype() && o.device == parameter.device();
    });
    if (at == open.end())
      at = open.insert(at, {.dtype = parameter.dtype(),
                            .device = parameter.device(),
                            .bucket = {},
                            .cap = first_bytes});
    if (at->bytes > 0 && at->bytes + bytes > at->cap) {
      closed.push_back(*at);
      at->bucket = {};
      at->bytes = 0;
      at->cap = cap_bytes;
    }
    at->bucket.parameters.push_back(order[i]);
    at->bytes += bytes;
    at->last = i;
  }
  closed.insert(closed.end(), open.begin(), open.end());
  std::sort(closed.begin(), closed.end(),
            [](const Open& a, const Open& b) { return a.last < b.last; });
  std::vector<Bucket> buckets;
  for (Open& each : closed) {
    Bucket& bucket = buckets.emplace_back(std::move(each.bucket));
    allocate(bucket, parameters, group);
    bucket.label =
        fmt::format("bucket {}: {}", buckets.size() - 1, summary(parameters, bucket.parameters));
  }
  return buckets;
}

}  // namespace tutti::distributed
