// The state dict of a module: how it is collected, checked and loaded.
#include "../autograd/functions.h"
#include "../autograd/grad_mode.h"
#include "../core/excerpt.h"
#include "module.h"
#include "module_path.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tutti::nn {
namespace {

// Returns `line` of each of the first ten items and the number of the others, because a file may
// have a million names that do not fit.
template <class Line>
std::string first_lines(const std::vector<std::string>& items, const char* kind, Line line) {
  constexpr std::size_t most = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), most); ++i) text += "\n  " + line(items[i]);
  if (items.size() > most) text += fmt::format("\n  and {} more {}", items.size() - most, kind);
  return text;
}

// Returns the lines of load_state_dict's error; empty where everything fits.
std::string mismatches_to_string(const std::vector<std::string>& problems, const LoadReport& report,
                                 bool strict) {
  std::string text =
      first_lines(problems, "that do not fit", [](const auto& line) { return line; });
  if (!strict)
    return text.empty() ? text : text + "\nload_fitting() leaves out what has another shape";
  for (const auto& [kind, names] :
       {std::pair{"missing", &report.missing}, {"unexpected", &report.unexpected}})
    text += first_lines(*names, kind, [why = kind](const std::string& name) {
      return fmt::format("'{}' is {}", excerpt(name), why);
    });
  return text.empty() ? text
                      : text +
                            "\nstrict = false ignores missing and unexpected names, and "
                            "load_fitting() other shapes, too";
}

// Returns whether two values of `own` differ in a number that is not NaN.
bool differ(const Tensor& own, const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.numel() == 0) return false;
  const auto as_own = [&own](const Tensor& value) {
    return value.detach().to(Device::cpu()).to(own.dtype()).to(accumulate_dtype(own.dtype()));
  };
  const Tensor x = as_own(a), y = as_own(b);
  return tutti::any(ne(x, y) & eq(x, x)).item<bool>();
}

bool is_counter(const std::string& name) { return name.ends_with("num_batches_tracked"); }

}  // namespace

void Module::collect_state(const std::string& prefix, StateDict& state) const {
  for (const NamedTensors* kind : {&parameters_, &buffers_})
    for (const auto& entry : *kind)
      if (entry->tensor.defined())
        state.emplace_back(join_path(prefix, entry->name), entry->tensor.detach());
  for (const auto& [name, child] : children_) child->collect_state(join_path(prefix, name), state);
}

StateDict Module::state_dict() const {
  StateDict state;
  collect_state("", state);
  return state;
}

StateDict without_wrapper_prefix(StateDict state, const StateDict& own) {
  // torch.compile may be the inner or the outer one of two wrappers.
  for (const std::string prefix : {"_orig_mod.", "module.", "_orig_mod.", "model."}) {
    const auto has_prefix = [&](const auto& entry) { return entry.first.starts_with(prefix); };
    if (!std::ranges::all_of(state, has_prefix) || std::ranges::any_of(own, has_prefix)) continue;
    for (auto& [name, tensor] : state) name.erase(0, prefix.size());
  }
  return state;
}

LoadReport Module::load(const StateDict& loaded, Loading loading) {
  const StateDict mine = state_dict(), state = without_wrapper_prefix(loaded, mine);
  std::map<std::string, Tensor> given;
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : state)
    if (!given.emplace(name, tensor).second)
      problems.push_back(fmt::format("'{}' occurs twice", excerpt(name)));

  LoadReport report;
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::map<const void*, std::pair<std::string, Tensor>> first_of;  // name and value of each memory
  for (const auto& [name, own] : mine) {
    const auto found = given.find(name);
    if (found == given.end()) {
      if (!is_counter(name)) report.missing.push_back(name);
      continue;
    }
    if (!found->second.defined())
      problems.push_back(fmt::format("'{}' is an undefined tensor", name));
    else if (loading == Loading::fitting && found->second.shape() != own.shape())
      report.misfits.push_back(name);
    else if (found->second.shape() != own.shape())
      problems.push_back(fmt::format("'{}' has shape {}, expected {}", name,
                                     tutti::to_string(found->second.shape()),
                                     tutti::to_string(own.shape())));
    else if (own.has_overlapping_elements())
      problems.push_back(fmt::format(
          "'{}' of the module is an expanded tensor, whose elements share memory", name));
    else if (const auto [first, is_new] = first_of.try_emplace(own.raw(), name, found->second);
             !is_new && differ(own, first->second.second, found->second))
      problems.push_back(fmt::format("'{}' and '{}' are one tensor of the module, but two here",
                                     first->second.first, name));
    else copies.emplace_back(own, found->second);
    given.erase(found);
  }
  for (const auto& [name, tensor] : state)
    if (given.count(name)) report.unexpected.push_back(name);

  if (const std::string text = mismatches_to_string(problems, report, loading == Loading::strict);
      !text.empty())
    fail<CheckpointError>("load_state_dict: the state does not fit {}; nothing was changed:{}",
                          type_name(), text);
  const NoGrad no_grad;
  // A value may be another tensor of this module, which must not change before it was read.
  std::set<const Storage*> written;
  for (const auto& [own, value] : copies) written.insert(own.storage().get());
  for (auto& [own, value] : copies)
    if (written.contains(value.storage().get())) value = value.detach().clone();
  for (const auto& [own, value] : copies) own.copy_(value);
  apply([](Module& module) { module.changed(); });
  return report;
}

}  // namespace tutti::nn
