#include "data_check.h"

#include "network.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace tutti::examples {

namespace {

using Scenes = data::SegmentationFolder;

// Calls `read` with the indices 0 to count - 1 on several threads. Returns the errors.
std::map<std::int64_t, std::string> read_on_threads(std::int64_t count, int threads,
                                                    const std::function<void(std::int64_t)>& read) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::map<std::int64_t, std::string> errors;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) try {
        read(i);
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        errors.emplace(i, error.what());
      }
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  others.clear();  // joins them
  return errors;
}

std::string list_errors(const std::map<std::int64_t, std::string>& errors, std::int64_t files,
                        const char* what) {
  std::string text =
      fmt::format("{} of {} {}{}\n", errors.size(), files, what, errors.empty() ? "" : ":");
  for (const auto& [index, reason] : errors) text += "  " + reason + "\n";
  return text;
}

// ---- Masks

// What some scenes of a folder hold.
struct Look {
  std::int64_t scenes = 0;
  std::array<std::int64_t, 256> pixels{};  // of each value in the masks
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {};
};

Look look_at(const Scenes& folder, std::int64_t most, int threads, bool ignores_errors) {
  const std::int64_t size = folder.size(), count = std::min(size, most);
  Look look;
  std::mutex mutex;
  const auto errors = read_on_threads(count, threads, [&](std::int64_t i) {
    const Tensor mask = folder.get(i * size / count).mask;
    std::array<std::int64_t, 256> pixels{};
    for (std::int64_t p = 0; p < mask.numel(); ++p) ++pixels[mask.data<std::uint8_t>()[p]];
    const std::lock_guard lock(mutex);
    ++look.scenes;
    for (std::size_t value = 0; value < pixels.size(); ++value) look.pixels[value] += pixels[value];
    look.sizes.emplace_back(mask.size(0), mask.size(1));
  });
  if (!errors.empty() && !ignores_errors) {
    const std::string& error = errors.begin()->second;
    throw DataError(error + advice_on_broken_files(error));
  }
  return look;
}

std::string share(std::int64_t pixels, std::int64_t all) {
  return fmt::format("{} ({:.1f} %)", pixels,
                     100 * static_cast<double>(pixels) / static_cast<double>(all));
}

std::vector<std::string> classes_without_pixels(const Look& look,
                                                const std::vector<std::string>& names) {
  std::vector<std::string> absent;
  for (std::size_t c = 0; c < names.size(); ++c)
    if (look.pixels[c] == 0) absent.push_back(fmt::format("'{}' ({})", names[c], c));
  return absent;
}

// Returns a warning where most pixels have no class, or some have where a class has none.
std::string describe_ignored(const char* part, const Look& look, bool lacks_class) {
  const std::int64_t all = std::reduce(look.pixels.begin(), look.pixels.end()),
                     ignored = look.pixels[no_class];
  if (2 * ignored <= all && (ignored == 0 || !lacks_class)) return {};
  return fmt::format(
      "warning: {:.1f} % of the pixels are 255, which stands for no class, in {} {} masks: nothing "
      "is learned or counted there; where 255 means a class, write its number into the masks\n",
      100 * static_cast<double>(ignored) / static_cast<double>(all), look.scenes, part);
}

std::string describe_classes(const Look& look, const TrainingData& data) {
  const std::int64_t all = std::reduce(look.pixels.begin(), look.pixels.end());
  std::vector<std::string> counts;
  for (std::size_t c = 0; c < data.class_names.size(); ++c)
    counts.push_back(data.class_names[c] + " " + share(look.pixels[c], all));
  std::string text = fmt::format("pixels in {} of {} training masks: {}; no class (255) {}\n",
                                 look.scenes, data.scenes[0]->size(), fmt::join(counts, ", "),
                                 share(look.pixels[no_class], all));
  const std::vector<std::string> absent = classes_without_pixels(look, data.class_names);
  if (!absent.empty())
    text += fmt::format(
        "warning: no pixel of these masks has class {}{}\n", fmt::join(absent, ", "),
        look.scenes < data.scenes[0]->size() ? "; --dry-run --check-files counts all masks" : "");
  return text + describe_ignored("training", look, !absent.empty());
}

// ---- Sizes

// Returns the mean part of a crop that pictures of these sizes fill, at the ends and in the middle
// of the scales.
double filled_part(const SegmentationOptions& o, const Look& look) {
  double sum = 0;
  for (const double scale : {o.min_scale, (o.min_scale + o.max_scale) / 2, o.max_scale})
    for (const auto& [height, width] : look.sizes) {
      const auto part = [&](std::int64_t side) {
        return std::min(scale * static_cast<double>(side) / static_cast<double>(o.crop), 1.0);
      };
      sum += part(height) * part(width);
    }
  return sum / (3 * static_cast<double>(look.sizes.size()));
}

// Returns a warning where crops are mostly padding.
std::string describe_crops(const SegmentationOptions& o, const Look& look) {
  std::vector<std::int64_t> sides;
  for (const auto& [height, width] : look.sizes) sides.push_back(std::min(height, width));
  if (sides.empty() || filled_part(o, look) >= 0.5) return {};
  std::ranges::sort(sides);
  const double shown = static_cast<double>(sides[sides.size() / 2]) * (o.min_scale + o.max_scale) /
                       2;
  constexpr std::int64_t step = 8;
  const std::int64_t crop = std::max<std::int64_t>(static_cast<std::int64_t>(shown) / step, 2) *
                            step;
  return fmt::format(
      "warning: --crop {} is larger than most pictures, whose shorter sides have {} to {} pixels: "
      "{:.0f} % of a crop would be padding, from which nothing is learned; give --crop {}\n",
      o.crop, sides.front(), sides.back(), 100 * (1 - filled_part(o, look)), crop);
}

}  // namespace

std::pair<std::string, std::size_t> check_files(const TrainingData& data, int threads) {
  std::pair<std::string, std::size_t> found;
  const auto check = [&](const auto& folder, const char* what, const auto& read) {
    const auto errors = read_on_threads(folder->size(), threads, read);
    found.first += list_errors(errors, folder->size(), what);
    found.second += errors.size();
  };
  for (const auto& folder : data.folders)
    check(folder, "pictures cannot be decoded",
          [&](std::int64_t i) { data::read_image(folder->describe(i)); });
  for (const auto& folder : data.scenes)
    check(folder, "pictures and masks cannot be used", [&](std::int64_t i) { folder->get(i); });
  return found;
}

std::string look_at_scenes(const TrainOptions& options, const TrainingData& data, int threads) {
  if (data.scenes.empty()) return {};
  constexpr std::int64_t some_of_training = 50, some_of_test = 10;
  const bool all = options.check_files;
  const auto look_at_part = [&](std::size_t part, std::int64_t some) {
    return look_at(*data.scenes[part], all ? data.scenes[part]->size() : some, threads, all);
  };
  const Look look = look_at_part(0, some_of_training), test = look_at_part(1, some_of_test);
  if (look.scenes == 0) return {};
  return describe_classes(look, data) + describe_ignored("test", test, false) +
         describe_crops(options.segmentation, look);
}

void check_smallest_test_picture(const TrainOptions& options, const TrainingData& data) {
  if (data.scenes.empty()) return;
  const Scenes& folder = *data.scenes[1];
  std::int64_t smallest = options.segmentation.crop, index = -1;  // larger ones work in training
  for (std::int64_t i = 0; i < folder.size(); ++i) {
    const auto [height, width] = folder.stored_size(i);
    if (const std::int64_t side = std::min(height, width); side > 0 && side < smallest)
      smallest = side, index = i;
  }
  if (index < 0) return;
  const auto [height, width] = folder.stored_size(index);
  const NoGrad no_grad;
  const auto net = make_network(options, data);
  net->eval();
  try {
    net->forward(zeros({1, data.channels, height, width}));
  } catch (const Error& error) {
    fail<DataError>("{} has {} x {} pixels, too few for {}: {}; scale it up, or remove it",
                    folder.describe(index), height, width, options.model, error.what());
  }
}

std::pair<std::int64_t, std::int64_t> largest_test_picture(const TrainingData& data) {
  std::pair<std::int64_t, std::int64_t> largest{0, 0};
  if (data.scenes.empty()) return largest;
  for (std::int64_t i = 0; i < data.scenes[1]->size(); ++i) {
    const auto size = data.scenes[1]->stored_size(i);
    if (size.first * size.second > largest.first * largest.second) largest = size;
  }
  return largest;
}

}  // namespace tutti::examples
