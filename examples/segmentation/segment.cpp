// Says what each pixel of pictures shows: segment WEIGHTS PICTURE... [--out FOLDER] [--overwrite]
// WEIGHTS is model.safetensors or a checkpoint of train_segmentation. For each PICTURE it writes
// NAME-mask.png, the classes, and NAME-overlay.png, the classes as colours over the picture, into
// FOLDER (default: the present one), and prints how much of the picture each class covers. Pictures
// of one name keep the folders that tell them apart. A file that exists is replaced with
// --overwrite only. Errors are one line on standard error and exit status 2.
#include "../train/evaluation.h"
#include "../train/network.h"
#include "png_file.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/data/decode/decode_image.h>
#include <tutti/data/transforms/normalize.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
using namespace tutti;
using namespace tutti::examples;

namespace {

namespace fs = std::filesystem;

constexpr const char* usage = "usage: segment WEIGHTS PICTURE... [--out FOLDER] [--overwrite]";

// ---- Where results go

// Returns the paths from the folder that all of them lie in.
std::vector<fs::path> from_common_folder(std::vector<fs::path> paths) {
  fs::path common = paths[0].parent_path();
  for (const fs::path& path : paths) {
    fs::path shared;
    const fs::path folder = path.parent_path();
    const auto end = std::ranges::mismatch(common, folder).in1;
    for (auto part = common.begin(); part != end; ++part) shared /= *part;
    common = shared;
  }
  for (fs::path& path : paths) path = path.lexically_relative(common);
  return paths;
}

// Returns what the results of each picture begin with: names, which keep their folders where two
// are equal, and then their endings, too.
std::vector<fs::path> names_of_results(const std::vector<std::string>& pictures) {
  const auto are_different = [](const std::vector<fs::path>& names) {
    return std::set(names.begin(), names.end()).size() == names.size();
  };
  std::vector<fs::path> names, paths;
  for (const std::string& picture : pictures) {
    names.push_back(fs::path(picture).stem());
    paths.push_back(fs::absolute(picture).lexically_normal());
  }
  if (are_different(names)) return names;
  if (!are_different(paths)) {
    std::ranges::sort(paths);
    fail<ValueError>("{} is given twice", excerpt(std::ranges::adjacent_find(paths)->string()));
  }
  names = paths = from_common_folder(paths);
  for (fs::path& name : names) name.replace_extension();
  return are_different(names) ? names : paths;
}

void refuse_to_replace(const fs::path& file) {
  std::error_code ignored;
  if (fs::symlink_status(file, ignored).type() != fs::file_type::not_found)
    fail<ValueError>("{} exists: --overwrite replaces it, --out names another folder",
                     file.string());
}

// ---- Classes

// Returns the network of a file's card, with its weights. The file itself tells what the card does
// not: the width of a U-Net, and whether there is an auxiliary head.
std::shared_ptr<nn::Layer> load_network(const std::string& path, nn::ModelCard& card) {
  Metadata metadata;
  const StateDict weights = nn::weights_of(load_safetensors(path, &metadata));
  card = nn::ModelCard::from_metadata(metadata);
  TrainOptions options = default_options(Task::segmentation);
  options.model = card.model;
  if (std::ranges::count(segmentation_names(), card.model) == 0)
    fail<CheckpointError>("{} is of '{}', which classifies no pixels; expected weights of {}", path,
                          excerpt(card.model), program_name(Task::segmentation));
  for (const auto& [name, tensor] : weights) {
    if (name == "head.weight" && tensor.rank() == 4) options.segmentation.width = tensor.size(1);
    if (name.starts_with("aux_classifier.")) options.segmentation.auxiliary = 1;
  }
  auto net = make_network(options, {.channels = card.channels, .classes = card.classes});
  net->load_state_dict(weights);
  net->to(MemoryFormat::channels_last);
  net->eval();
  return net;
}

// Returns the class of each pixel, uint8 (height, width, 1); 255 where the network says none.
Tensor classes_of(nn::Layer& net, const nn::ModelCard& card, const Tensor& picture) {
  const NoGrad no_grad;
  const Tensor input = data::normalize(picture, {card.mean.begin(), card.mean.end()},
                                       {card.std.begin(), card.std.end()},
                                       MemoryFormat::channels_last);
  const Tensor classes = predicted_classes(net(input.unsqueeze(0))).select(0, 0).unsqueeze(2);
  return masked_fill(classes, lt(classes, 0), no_class).to(uint8);
}

// Returns the picture with the colours of the classes over it; class 0 has none.
Tensor overlay(const Tensor& picture, const Tensor& classes) {
  const Tensor result = picture.clone();
  std::uint8_t* pixel = result.data<std::uint8_t>();
  for (std::int64_t i = 0; i < classes.numel(); ++i, pixel += 3)
    if (const int label = classes.data<std::uint8_t>()[i]; label > 0)
      for (std::size_t c = 0; c < 3; ++c)
        pixel[c] = static_cast<std::uint8_t>((pixel[c] + class_colour(label)[c]) / 2);
  return result;
}

void print_shares(const std::string& file, const nn::ModelCard& card, const Tensor& classes) {
  std::vector<std::int64_t> pixels(256);
  for (std::int64_t i = 0; i < classes.numel(); ++i) ++pixels[classes.data<std::uint8_t>()[i]];
  const auto name_of = [&](std::size_t c) {
    if (static_cast<std::int64_t>(c) >= card.classes)
      return std::string("no class: the network's numbers are not finite");
    return card.class_names.empty() ? std::to_string(c) : card.class_names[c];
  };
  const int orientation = data::read_orientation(file);
  std::printf("%s\n", escape_controls(file).c_str());
  if (orientation != 1)
    std::printf("  its EXIF orientation is %d: the results lie as the picture is shown\n",
                orientation);
  for (std::size_t c = 0; c < pixels.size(); ++c)
    if (pixels[c] > 0)
      std::printf("  %5.1f %%  %s\n",
                  100 * static_cast<double>(pixels[c]) / static_cast<double>(classes.numel()),
                  name_of(c).c_str());
}

void run(std::vector<std::string> words) {
  if (std::ranges::count(words, "--help") > 0) return static_cast<void>(std::puts(usage));
  fs::path folder = ".";
  if (const auto flag = std::ranges::find(words, "--out"); words.end() - flag >= 2) {
    folder = flag[1];
    words.erase(flag, flag + 2);
  }
  const bool overwrites = std::erase(words, "--overwrite") > 0;
  if (words.size() < 2 ||
      std::ranges::any_of(words, [](const auto& word) { return word.starts_with("--"); }))
    fail<ValueError>(usage);
  const std::vector<std::string> pictures(words.begin() + 1, words.end());
  std::vector<std::string> results;
  for (const fs::path& name : names_of_results(pictures)) {
    results.push_back(folder / name);
    for (const char* ending : {"-mask.png", "-overlay.png"})
      if (!overwrites) refuse_to_replace(results.back() + ending);
  }
  nn::ModelCard card;
  const auto net = load_network(words[0], card);
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const Tensor picture =
        data::read_image(pictures[i], {.channels = static_cast<int>(card.channels)});
    const Tensor classes = classes_of(*net, card, picture);
    fs::create_directories(fs::path(results[i]).parent_path());
    write_png(results[i] + "-mask.png", classes);
    write_png(results[i] + "-overlay.png", overlay(picture, classes));
    print_shares(pictures[i], card, classes);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::fprintf(stderr, "segment: %s\n", escape_controls(error.what()).c_str());
  return 2;
}
