// summary(): a table of a model's modules, which a forward of zeros fills with the shapes of
// outputs.
#include "../autograd/grad_mode.h"
#include "../core/create.h"
#include "module.h"

#include <map>
#include <set>

namespace tutti::nn {

std::string summary(Layer& model, const Shape& input) {
  const auto modules = model.named_modules();
  std::map<const Module*, Shape> outputs;
  std::vector<std::pair<Module*, bool>> modes;
  for (const auto& [path, module] : modules) {
    modes.emplace_back(module, module->training_);
    if (auto* const layer = dynamic_cast<Layer*>(module))
      layer->add_forward_hook([&outputs](Layer& self, const Tensor&, const Tensor& output) {
        outputs[&self] = output.shape();
        return Tensor();
      });
  }
  const auto restore = [&] {
    for (const auto& [module, was_training] : modes) {
      module->train(was_training);  // parents come before their children
      if (auto* const layer = dynamic_cast<Layer*>(module)) layer->hooks_.pop_back();
    }
  };
  try {
    const NoGrad no_grad;
    model.eval();
    const auto parameters = model.parameters();
    model(parameters.empty() ? zeros(input)
                             : zeros(input, {parameters[0].dtype(), parameters[0].device()}));
  } catch (...) {
    restore();
    throw;
  }
  restore();
  constexpr const char* line = "{:<36} {:<20} {:<24} {:>12} {:>12}\n";
  std::string text = fmt::format(line, "name", "class", "output", "parameters", "trained");
  std::set<const void*> seen;  // parameters that modules share count once
  std::int64_t all = 0, all_trained = 0;
  for (const auto& [path, module] : modules) {
    std::int64_t own = 0, trained = 0;
    for (const auto& entry : module->parameters_) {
      if (!entry->tensor.defined() || !seen.insert(entry->tensor.id()).second) continue;
      own += entry->tensor.numel();
      if (entry->tensor.requires_grad()) trained += entry->tensor.numel();
    }
    all += own;
    all_trained += trained;
    text += fmt::format(line, path, module->type_name(),
                        outputs.contains(module) ? tutti::to_string(outputs[module]) : "not run",
                        own, trained);
  }
  return text + fmt::format("{} parameters, {} of them trained\n", all, all_trained);
}

}  // namespace tutti::nn
