#include "freeze.h"

#include "batch_norm/layer.h"
#include "module_path.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

namespace tutti::nn {
namespace {

[[noreturn]] void throw_no_match(const char* function, const Module& module,
                                 const std::string& pattern) {
  std::string names;
  const StateDict parameters = module.named_parameters();
  constexpr std::size_t shown = 5;
  for (std::size_t i = 0; i < std::min(parameters.size(), shown); ++i)
    names += (i ? ", " : "") + parameters[i].first;
  if (parameters.size() > shown) names += fmt::format(", ... ({} in all)", parameters.size());
  fail<ValueError>(
      "{}: expected a pattern such as 'layer1.*' for the parameters {}; '{}' matches "
      "none",
      function, names, pattern);
}

bool matches_layer(const std::string& path, const BatchNorm& layer, const std::string& pattern) {
  if (matches(path, pattern)) return true;
  const StateDict own = layer.named_parameters();
  return std::ranges::any_of(
      own, [&](const auto& each) { return matches(join_path(path, each.first), pattern); });
}

}  // namespace

bool matches(const std::string& path, const std::string& pattern) {
  return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

StateDict parameters_matching(const Module& module, const std::string& pattern) {
  StateDict found;
  for (const auto& each : module.named_parameters())
    if (matches(each.first, pattern)) found.push_back(each);
  if (found.empty()) throw_no_match("parameters_matching", module, pattern);
  return found;
}

std::vector<std::string> freeze(Module& module, const std::string& pattern, bool on) {
  std::vector<BatchNorm*> layers;
  std::set<const void*> of_layers;  // the identities of the parameters of these layers
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (!layer || !matches_layer(path, *layer, pattern)) continue;
    layers.push_back(layer);
    for (const Tensor& own : layer->parameters()) of_layers.insert(own.id());
  }
  std::vector<std::string> paths;
  for (const auto& [path, parameter] : module.named_parameters()) {
    if (!matches(path, pattern) && !of_layers.contains(parameter.id())) continue;
    parameter.requires_grad_(!on);
    paths.push_back(path);
  }
  if (paths.empty() && layers.empty()) throw_no_match("freeze", module, pattern);
  for (BatchNorm* layer : layers) layer->freeze(on);
  return paths;
}

}  // namespace tutti::nn
