// Says what each pixel of pictures shows: segment WEIGHTS PICTURE... [--out FOLDER]
// WEIGHTS is model.safetensors of train_segmentation. For each PICTURE it writes NAME-mask.png, the
// classes, and NAME-overlay.png, the classes as colours over the picture, into FOLDER (default: the
// present one), and prints how much of the picture each class covers. Errors are one line on
// standard error and exit status 2.
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
using namespace tutti;
using namespace tutti::examples;

namespace {

// Returns the network of a file's card, with its weights. The file itself tells what the card does
// not: the width of a U-Net, and whether there is an auxiliary head.
std::shared_ptr<nn::Layer> load_network(const std::string& path, nn::ModelCard& card) {
  Metadata metadata;
  const StateDict weights = load_safetensors(path, &metadata);
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

// Returns the class of each pixel, uint8 (height, width, 1).
Tensor classes_of(nn::Layer& net, const nn::ModelCard& card, const Tensor& picture) {
  const NoGrad no_grad;
  const Tensor input = data::normalize(picture, {card.mean.begin(), card.mean.end()},
                                       {card.std.begin(), card.std.end()},
                                       MemoryFormat::channels_last);
  return argmax(net(input.unsqueeze(0)), 1).select(0, 0).unsqueeze(2).to(uint8);
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
  std::vector<std::int64_t> pixels(static_cast<std::size_t>(card.classes));
  for (std::int64_t i = 0; i < classes.numel(); ++i) ++pixels[classes.data<std::uint8_t>()[i]];
  std::printf("%s\n", file.c_str());
  for (std::size_t c = 0; c < pixels.size(); ++c)
    if (pixels[c] > 0)
      std::printf(
          "  %5.1f %%  %s\n",
          100 * static_cast<double>(pixels[c]) / static_cast<double>(classes.numel()),
          card.class_names.empty() ? std::to_string(c).c_str() : card.class_names[c].c_str());
}

void run(std::vector<std::string> words) {
  std::filesystem::path folder = ".";
  if (const auto flag = std::ranges::find(words, "--out"); words.end() - flag >= 2) {
    folder = flag[1];
    words.erase(flag, flag + 2);
  }
  if (words.size() < 2 ||
      std::ranges::any_of(words, [](const auto& word) { return word.starts_with("--"); }))
    fail<ValueError>("usage: segment WEIGHTS PICTURE... [--out FOLDER]");
  nn::ModelCard card;
  const auto net = load_network(words[0], card);
  std::filesystem::create_directories(folder);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const Tensor picture =
        data::read_image(words[i], {.channels = static_cast<int>(card.channels)});
    const Tensor classes = classes_of(*net, card, picture);
    const std::string name = folder / std::filesystem::path(words[i]).stem();
    write_png(name + "-mask.png", classes);
    write_png(name + "-overlay.png", overlay(picture, classes));
    print_shares(words[i], card, classes);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::fprintf(stderr, "segment: %s\n", escape_controls(error.what()).c_str());
  return 2;
}
