#include "frozen_layers.h"

#include <tutti/core/did_you_mean.h>
#include <tutti/core/excerpt.h>
#include <tutti/nn/freeze.h>

#include <fmt/ranges.h>

namespace tutti::examples {
namespace {

// Returns patterns and paths that a user may have meant, those of whole layers first.
std::vector<std::string> known_patterns(const nn::Module& net) {
  std::vector<std::string> known;
  for (const auto& [path, module] : net.named_modules())
    if (!path.empty() && !module->named_parameters().empty()) known.push_back(path + ".*");
  for (const auto& [path, parameter] : net.named_parameters()) known.push_back(path);
  return known;
}

[[noreturn]] void refuse(const nn::Module& net, const std::string& pattern) {
  std::vector<std::string> parts;
  std::string meant;
  for (const auto& [name, child] : net.children())
    if (!child->named_parameters().empty()) parts.push_back(name + ".*");
  for (const auto& [path, module] : net.named_modules())
    if (path == pattern) meant = " (did you mean '" + path + ".*'?)";
  if (meant.empty()) meant = did_you_mean(pattern, known_patterns(net));
  fail<UsageError>(
      "--freeze '{}' matches no layer and no parameter{}; the parts of the network are {}",
      excerpt(pattern), meant, fmt::join(parts, ", "));
}

}  // namespace

void freeze_layers(const TrainOptions& options, nn::Module& net) {
  for (const std::string& pattern : options.freeze) try {
      nn::freeze(net, pattern);
    } catch (const ValueError&) {
      refuse(net, pattern);
    }
  if (trained_parameters(net).empty())
    fail<UsageError>(
        "--freeze '{}' leaves no parameter to train; leave a part out, such as the head",
        fmt::join(options.freeze, ","));
}

std::string describe_parameters(const nn::Module& net) {
  std::int64_t trained = 0;
  for (const Tensor& parameter : trained_parameters(net)) trained += parameter.numel();
  const std::int64_t all = net.parameter_count();
  return fmt::format("{} parameters", all) +
         (trained < all ? fmt::format(", {} of them trained", trained) : "");
}

std::vector<Tensor> trained_parameters(const nn::Module& net) {
  std::vector<Tensor> trained;
  for (const Tensor& parameter : net.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  return trained;
}

}  // namespace tutti::examples
