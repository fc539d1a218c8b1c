// The thresholds and sentences of a BatchNormReport: what counts as trouble, and what to do then.
#include "report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tutti::nn {
namespace {

using Layer = BatchNormReport::Layer;
using Layers = std::vector<Layer>;

// An output that is wrong by this many standard deviations costs accuracy.
constexpr double error_limit = 0.25;
// So do small errors of many layers whose squares add up to that of this. In the quickstart a total
// of 0.21 cost 2.4% of accuracy after the first epoch, and one of 0.02 nothing after the last.
constexpr double total_error_limit = 0.15;
// Initial values with a larger share than this distort the running statistics.
constexpr double initial_limit = 0.05;
// Ranks whose own running statistics differ by more evaluate different models.
constexpr double spread_limit = 0.1;
// The mean of fewer values is off by more than a quarter of a standard deviation.
constexpr double fewest_values = 16;

// The layers in which something was found, and the one in which it is worst.
struct Found {
  std::size_t count = 0;
  const Layer* worst = nullptr;
  double most = 0;
};

// Collects the layers in which measure(layer) is above `limit`.
template <class Measure>
Found find(const Layers& layers, double limit, const Measure& measure) {
  Found found;
  for (const Layer& layer : layers) {
    const auto value = static_cast<double>(measure(layer));
    if (!(value > limit)) continue;
    if (found.count++ == 0 || value > found.most) found.worst = &layer, found.most = value;
  }
  return found;
}

std::string in_layers(const Found& found, const Layers& layers) {
  return fmt::format("in {} of {} layers, most in '{}'", found.count, layers.size(),
                     found.worst->path);
}

std::string first_numbers(const std::vector<std::int64_t>& numbers) {
  constexpr std::size_t most = 5;
  const std::vector<std::int64_t> first(
      numbers.begin(),
      numbers.begin() + static_cast<std::ptrdiff_t>(std::min(most, numbers.size())));
  return fmt::format("{}{}", fmt::join(first, ", "), numbers.size() > most ? ", ..." : "");
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

void advise_on_unused(const Layers& layers, std::vector<std::string>& warnings) {
  const Found found =
      find(layers, 0, [](const Layer& layer) { return sum(layer.values) > 0 ? 0 : 1; });
  if (!found.count) return;
  warnings.push_back(
      fmt::format("No value reached {} of {} layers, for example '{}': the forwards did not run "
                  "them, or all batches were empty. Run forwards of the whole model.",
                  found.count, layers.size(), found.worst->path));
}

// Says why the running statistics of the worst layer are not those of the batches.
std::string reason_of_error(const Layer& layer) {
  if (layer.updates == 0)
    return "It has seen no training batch, so its running statistics are the initial 0 and 1, or "
           "were set from outside.";
  if (layer.initial_share > initial_limit)
    return fmt::format(
        "After {} updates the initial values 0 and 1 still make up {:.0f}% of its running "
        "statistics. Train longer, or let the layers forget faster.",
        layer.updates, 100 * layer.initial_share);
  if (layer.memory >= static_cast<double>(layer.updates))
    return fmt::format(
        "Its running statistics weigh all {} batches alike, also those of early weights. Set a "
        "momentum, which forgets them.",
        layer.updates);
  return fmt::format(
      "Its running statistics average about the last {:.0f} of {} updates, in which the weights "
      "went on changing, or these batches are unlike those of training. A lower learning rate "
      "lets the average catch up.",
      layer.memory, layer.updates);
}

// Looks for small errors of many layers. A layer's error is measured with the layers before it
// normalising as in training, so it comes on top of theirs. The averages of different layers are
// off in different directions, so the errors add up as the root of the sum of their squares; the
// plain sum would warn of every deep network, since each layer has a little noise.
template <class Error>
void advise_on_total_error(const Layers& layers, const Error& error,
                           std::vector<std::string>& warnings) {
  double squares = 0;
  for (const Layer& layer : layers) squares += error(layer) * error(layer);
  const Found found = find(layers, 0, error);
  const double total = std::sqrt(squares),
               without_worst = std::sqrt(squares - found.most * found.most);
  if (!(without_worst > total_error_limit)) return;  // one layer alone has a limit of its own
  warnings.push_back(fmt::format(
      "Evaluation differs from training a little in each of {} layers, most in '{}' ({:.2f} "
      "standard deviations), which adds up to {:.2f} (the root of the sum of squares). {} "
      "Statistics that are recomputed before evaluating or saving are those of the present "
      "weights.",
      found.count, found.worst->path, found.most, total, reason_of_error(*found.worst)));
}

void advise_on_evaluation(const Layers& layers, std::vector<std::string>& warnings) {
  const auto error = [](const Layer& layer) { return layer.evaluation_error; };
  const Found found = find(layers, error_limit, error);
  if (!found.count) return advise_on_total_error(layers, error, warnings);
  warnings.push_back(fmt::format(
      "Evaluation differs from training {}: its outputs err by {:.2f} standard deviations. {} "
      "Statistics that are recomputed before evaluating or saving are those of the present "
      "weights.",
      in_layers(found, layers), found.most, reason_of_error(*found.worst)));
}

void advise_on_channels(const Layers& layers, std::vector<std::string>& warnings) {
  const auto add = [&](std::vector<std::int64_t> Layer::*kind, const char* what,
                       const char* advice) {
    const Found found = find(layers, 0, [&](const Layer& layer) { return (layer.*kind).size(); });
    if (!found.count) return;
    warnings.push_back(fmt::format("{} {} ({} of {} channels: {}). {}", what,
                                   in_layers(found, layers), (found.worst->*kind).size(),
                                   found.worst->channels, first_numbers(found.worst->*kind),
                                   advice));
  };
  add(&Layer::exploded, "Channels have exploded",
      "Their mean or standard deviation is above 10,000 or not finite. Lower the learning rate, "
      "warm it up, or clip gradients; look for NaN in the data.");
  add(&Layer::constant, "Channels are constant",
      "Their inputs hardly vary, so they carry no information: ReLUs before them may have died, or "
      "the weights before them are 0. A lower learning rate or weight decay prevents it; dead "
      "channels can be removed.");
  add(&Layer::silent, "Channels are silent",
      "Their weight is near 0, so nothing of them is passed on. Exempt the parameters of "
      "normalisation from weight decay, or remove these channels. A weight that starts at 0 "
      "(zero_init_residual) is silent until it was trained.");
}

void advise_on_ranks(const Layers& layers, std::vector<std::string>& warnings) {
  const Found strays = find(layers, 0, [](const Layer& layer) { return layer.stray_ranks.size(); });
  if (strays.count) {
    const Layer& layer = *strays.worst;
    const int rank = layer.stray_ranks.front();
    warnings.push_back(fmt::format(
        "Ranks see other data than the rest {}: the statistics of rank{} {} are {:.2f} standard "
        "deviations away from the median of the ranks. Shuffle the samples over the ranks{}.",
        in_layers(strays, layers), layer.stray_ranks.size() > 1 ? "s" : "",
        fmt::join(layer.stray_ranks, ", "), layer.rank_distance[static_cast<std::size_t>(rank)],
        layer.is_synchronized ? "" : ", or share statistics by SyncBatchNorm"));
  }
  const Found spread =
      find(layers, spread_limit, [](const Layer& layer) { return layer.running_spread; });
  if (spread.count)
    warnings.push_back(fmt::format(
        "Ranks keep different running means {}: up to {:.2f} standard deviations apart, so they "
        "evaluate different models. Broadcast the buffers (DataParallel does), or share statistics "
        "by SyncBatchNorm.",
        in_layers(spread, layers), spread.most));
  const Found idle = find(layers, 0, [](const Layer& layer) {
    return sum(layer.values) > 0 ? std::count(layer.values.begin(), layer.values.end(), 0.0) : 0;
  });
  if (idle.count)
    warnings.push_back(
        fmt::format("{:.0f} of {} ranks had no value {}. Give every rank a share of the data.",
                    idle.most, idle.worst->values.size(), in_layers(idle, layers)));
}

void advise_on_batches(const Layers& layers, std::vector<std::string>& warnings) {
  const Found found = find(layers, 1 / fewest_values, [](const Layer& layer) {
    return layer.values_per_batch > 0 ? 1 / layer.values_per_batch : 0;
  });
  if (!found.count) return;
  const Layer& layer = *found.worst;
  const bool can_share = !layer.is_synchronized && layer.values.size() > 1;
  warnings.push_back(fmt::format(
      "Statistics are noisy {}: a forward normalises by {:.1f} values per channel, and {:.0f} is "
      "little. Use larger batches, {}or GroupNorm, which needs none.",
      in_layers(found, layers), layer.values_per_batch, fewest_values,
      can_share ? "share statistics by SyncBatchNorm, " : ""));
}

}  // namespace

// Returns the warnings about these layers, one for each kind of trouble.
std::vector<std::string> batch_norm_advice(const Layers& layers) {
  std::vector<std::string> warnings;
  advise_on_unused(layers, warnings);
  advise_on_channels(layers, warnings);
  advise_on_evaluation(layers, warnings);
  advise_on_ranks(layers, warnings);
  advise_on_batches(layers, warnings);
  return warnings;
}

std::string BatchNormReport::to_string() const {
  std::size_t width = 5;
  for (const Layer& layer : layers) width = std::max(width, layer.path.size());
  std::string text = fmt::format(
      "{:<{}}  values/batch  eval error  mean dist  var ratio  constant  silent  exploded  rank "
      "dist\n",
      "layer", width);
  for (const Layer& layer : layers) {
    const auto farthest = std::max_element(layer.rank_distance.begin(), layer.rank_distance.end());
    text += fmt::format(
        "{:<{}}  {:>12.0f}  {:>10.3f}  {:>9.3f}  {:>9.3f}  {:>8}  {:>6}  {:>8}  {:>9.3f}\n",
        layer.path, width, layer.values_per_batch, layer.evaluation_error, layer.mean_distance,
        layer.variance_ratio, layer.constant.size(), layer.silent.size(), layer.exploded.size(),
        farthest == layer.rank_distance.end() ? 0 : *farthest);
  }
  if (layers.empty()) text = "no BatchNorm layer tracks statistics\n";
  if (warnings.empty()) return text + "no warnings\n";
  for (const std::string& warning : warnings) text += "warning: " + warning + '\n';
  return text;
}

}  // namespace tutti::nn
