#include "convert.h"

#include "../freeze.h"

namespace tutti::nn {
namespace {

template <class Change>
std::vector<std::string> change_layers(Module& module, const ConvertFilter& filter,
                                       const Change& change) {
  std::vector<std::string> paths;
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (layer && (!filter || filter(path, *layer)) && change(*layer)) paths.push_back(path);
  }
  return paths;
}

}  // namespace

std::vector<std::string> convert_sync_batchnorm(Module& module,
                                                const std::optional<ProcessGroup>& group,
                                                const ConvertFilter& filter) {
  return change_layers(module, filter, [&](BatchNorm& layer) { return layer.convert(group); });
}

std::vector<std::string> convert_batchnorm_to_groupnorm(Module& module, std::int64_t groups,
                                                        const ConvertFilter& filter) {
  std::vector<BatchNorm*> layers;
  std::vector<std::string> paths = change_layers(module, filter, [&](BatchNorm& layer) {
    if (layer.is_folded() || layer.channel_groups() > 0) return false;
    layer.check_channel_groups(groups);
    layers.push_back(&layer);
    return true;
  });
  for (BatchNorm* layer : layers) layer->normalize_by_groups(groups);
  return paths;
}

std::vector<std::string> set_recompute_output(Module& module, const std::string& pattern, bool on) {
  const auto is_meant = [&](const std::string& path, const BatchNorm&) {
    return matches(path, pattern);
  };
  const std::vector<std::string> paths = change_layers(module, is_meant, [on](BatchNorm& layer) {
    layer.set_recompute_output(on);
    return true;
  });
  if (paths.empty())
    fail<ValueError>(
        "set_recompute_output: expected a pattern such as 'layer1.*' for the paths of BatchNorm "
        "layers, and '{}' matches none of them",
        pattern);
  return paths;
}

void check_batch_statistics(Module& module) {
  for (const auto& [path, below] : module.named_modules())
    if (const auto* layer = dynamic_cast<const BatchNorm*>(below)) layer->check_statistics();
}

}  // namespace tutti::nn
