// Says what pictures show: classify WEIGHTS PICTURE... [--top 5] [--bf16]
// WEIGHTS is a safetensors file with a model card: of the trainer, also a checkpoint, of
// examples/finetune, or of examples/import_torchvision.py. Errors are one line on standard error
// and exit status 2.
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdio>
using namespace tutti;

namespace {

// [snippet]
// The usual way from a picture to the input of a network: scale, crop the centre, normalise.
Tensor preprocess(const Tensor& picture, const nn::ModelCard& card) {
  const Tensor scaled = card.resize_size > 0 ? data::resize_shorter_side(picture, card.resize_size)
                                             : picture;
  return data::normalize(data::center_crop(scaled, card.input_size, card.input_size),
                         {card.mean.begin(), card.mean.end()}, {card.std.begin(), card.std.end()});
}
// [/snippet]

constexpr const char* usage = "usage: classify WEIGHTS PICTURE... [--top 5] [--bf16]";

struct Arguments {
  std::string weights;
  std::vector<std::string> pictures;
  std::int64_t top = 5;
  bool bf16 = false;
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  std::vector<std::string> files;
  const auto set_top = [&](const std::string& text) {
    const auto number = parse_number<std::int64_t>(text, 1);
    if (!number)
      throw ValueError("--top: expected a number of at least 1, got '" + excerpt(text) + "'");
    arguments.top = *number;
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--bf16") arguments.bf16 = true;
    else if (words[i] == "--top" && i + 1 < words.size()) set_top(words[++i]);
    else if (words[i].starts_with("--top=")) set_top(words[i].substr(6));
    else if (words[i].starts_with("--"))
      throw ValueError("expected --top NUMBER or --bf16, got '" + excerpt(words[i]) + "'");
    else files.push_back(words[i]);
  }
  if (files.size() < 2) throw ValueError(usage);
  arguments.weights = files[0];
  arguments.pictures.assign(files.begin() + 1, files.end());
  return arguments;
}

void classify(const Arguments& arguments) {
  // [snippet]
  const nn::Predictor predictor(arguments.weights,
                                {.preprocess = preprocess, .bf16 = arguments.bf16});
  const auto channels = static_cast<int>(predictor.card().channels);
  for (const std::string& file : arguments.pictures) {
    const Tensor picture =
        data::read_image(file, {.channels = channels, .min_size = predictor.card().resize_size});
    std::printf("%s\n", file.c_str());
    for (const nn::Prediction& each : predictor.classify(picture, arguments.top))
      std::printf("  %.6f  %s\n", each.probability, each.name.c_str());
  }
  // [/snippet]
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::ranges::count(words, "--help") > 0) return std::puts(usage) < 0;
  classify(parse(words));
} catch (const std::exception& error) {
  std::fprintf(stderr, "classify: %s\n", escape_controls(error.what()).c_str());
  return 2;
}
