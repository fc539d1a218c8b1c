#include "freeze.h"

#include "batch_norm/layer.h"
#include "module_path.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

namespace tutti::nn {
namespace {

[[noreturn]] void throw_no_match(const Module& module, const std::string& pattern) {
  std::string names;
  const StateDict parameters = module.named_parameters();
  constexpr std::size_t shown = 5;
  for (std::size_t i = 0; i < std::min(parameters.size(), shown); ++i)
    names += (i ? ", " : "") + parameters[i].first;
  if (parameters.size() > shown) names += fmt::format(", ... ({} in all)", parameters.size());
  fail<ValueError>(
      "freeze: expected a pattern such as 'layer1.*' for the parameters {}; '{}' matches none",
      names, pattern);
}

// Returns the BatchNorm layers whose own path or any of whose parameters matches.
std::vector<BatchNorm*> layers_matching(Module& module, const std::string& pattern) {
  std::vector<BatchNorm*> layers;
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (!layer) continue;
    const StateDict own = layer->named_parameters();
    if (matches(path, pattern) || std::ranges::any_of(own, [&, &path = path](const auto& each) {
          return matches(join_path(path, each.first), pattern);
        }))
      layers.push_back(layer);
  }
  return layers;
}

}  // namespace

bool matches(const std::string& path, const std::string& pattern) {
  return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

std::vector<std::string> freeze(Module& module, const std::string& pattern, bool on) {
  const std::vector<BatchNorm*> layers = layers_matching(module, pattern);
  std::set<const void*> of_layers;  // the identities of the parameters of these layers
  for (const BatchNorm* layer : layers)
    for (const Tensor& own : layer->parameters()) of_layers.insert(own.id());
  std::vector<std::string> paths;
  for (const auto& [path, parameter] : module.named_parameters()) {
    if (!matches(path, pattern) && !of_layers.contains(parameter.id())) continue;
    parameter.requires_grad_(!on);
    paths.push_back(path);
  }
  if (paths.empty() && layers.empty()) throw_no_match(module, pattern);
  for (BatchNorm* layer : layers) layer->freeze(on);
  return paths;
}

}  // namespace tutti::nn
