#include "convert.h"

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

std::vector<std::string> convert_sync_batchnorm(Module& module, const ProcessGroup& group,
                                                const ConvertFilter& filter) {
  return change_layers(module, filter, [&](BatchNorm& layer) { return layer.convert(group); });
}

std::vector<std::string> revert_sync_batchnorm(Module& module, const ConvertFilter& filter) {
  return change_layers(module, filter, [](BatchNorm& layer) { return layer.revert(); });
}

void check_batch_statistics(Module& module) {
  for (const auto& [path, below] : module.named_modules())
    if (const auto* layer = dynamic_cast<const BatchNorm*>(below)) layer->check_statistics();
}

}  // namespace tutti::nn
