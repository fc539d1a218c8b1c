// make_scenes: writes scenes for segmentation without a network: articles of Fashion-MNIST, scaled,
// turned, tinted and overlapping, on textured grounds of varied light. Class 0 is the ground.
//   make_scenes DIR [--train 2000] [--val 200] [--size 64] [--seed 1] [--data FOLDER]
// writes DIR/train and DIR/val as data::SegmentationFolder reads them. Sides of the scenes are
// size to 1.25 size pixels. The same flags give the same files.
#include "png_file.h"

#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/random.h>
#include <tutti/data/idx.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numbers>
using namespace tutti;

namespace {

constexpr std::array class_names{"ground",  "T-shirt/top", "trouser",   "pullover",
                                 "dress",   "coat",        "sandal",    "shirt",
                                 "sneaker", "bag",         "ankle boot"};

struct Scene {
  Tensor image, mask;  // uint8 (height, width, 3) and (height, width, 1)
};

using Colour = std::array<double, 3>;

Colour random_colour(Generator& random, double low, double high) {
  return {random.uniform(low, high), random.uniform(low, high), random.uniform(low, high)};
}

std::uint8_t to_byte(double value) {
  return static_cast<std::uint8_t>(std::lrint(std::clamp(value, 0.0, 255.0)));
}

// Fills the image with two waves of brightness over a colour, and noise.
void paint_ground(Scene& scene, Generator& random) {
  const Colour colour = random_colour(random, 40, 200);
  std::array<double, 8> wave{};
  for (std::size_t w = 0; w < 8; w += 4) {
    wave[w] = random.uniform(-0.6, 0.6);
    wave[w + 1] = random.uniform(-0.6, 0.6);
    wave[w + 2] = random.uniform(0, 2 * std::numbers::pi);
    wave[w + 3] = random.uniform(5, 25);
  }
  std::uint8_t* to = scene.image.data<std::uint8_t>();
  for (std::int64_t y = 0; y < scene.image.size(0); ++y)
    for (std::int64_t x = 0; x < scene.image.size(1); ++x) {
      double texture = random.uniform(-12, 12);
      for (std::size_t w = 0; w < 8; w += 4)
        texture += wave[w + 3] * std::sin(wave[w] * static_cast<double>(x) +
                                          wave[w + 1] * static_cast<double>(y) + wave[w + 2]);
      for (const double channel : colour) *to++ = to_byte(channel + texture);
    }
}

// Returns the grey value of an article, bilinearly; 0 outside.
double grey_at(const Tensor& article, double row, double column) {
  const std::int64_t height = article.size(0), width = article.size(1);
  const double top = std::floor(row), left = std::floor(column);
  double sum = 0;
  for (const int corner : {0, 1, 2, 3}) {
    const std::int64_t r = std::llrint(top) + corner / 2, c = std::llrint(left) + corner % 2;
    if (r < 0 || r >= height || c < 0 || c >= width) continue;
    sum += article.data<std::uint8_t>()[r * width + c] *
           (1 - std::abs(row - static_cast<double>(r))) *
           (1 - std::abs(column - static_cast<double>(c)));
  }
  return sum;
}

// Puts an article over what is there, and writes its class into the mask.
void place(Scene& scene, const data::Sample& article, Generator& random) {
  constexpr double visible = 40;  // darker pixels of an article are background
  const std::int64_t height = scene.image.size(0), width = scene.image.size(1);
  const double scale = random.uniform(0.7, 1.5), angle = random.uniform(-0.6, 0.6),
               cosine = std::cos(angle) / scale, sine = std::sin(angle) / scale,
               middle_y = random.uniform(0.2, 0.8) * static_cast<double>(height),
               middle_x = random.uniform(0.2, 0.8) * static_cast<double>(width);
  const double half_height = static_cast<double>(article.image.size(0) - 1) / 2,
               half_width = static_cast<double>(article.image.size(1) - 1) / 2;
  const Colour tint = random_colour(random, 0.4, 1.2);
  for (std::int64_t i = 0; i < height * width; ++i) {
    const double down = static_cast<double>(i / width) - middle_y,
                 right = static_cast<double>(i % width) - middle_x;
    const double grey = grey_at(article.image, half_height + cosine * down + sine * right,
                                half_width + cosine * right - sine * down);
    if (grey < visible) continue;
    scene.mask.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(article.label + 1);
    for (std::size_t c = 0; c < 3; ++c)
      scene.image.data<std::uint8_t>()[3 * i + static_cast<std::int64_t>(c)] =
          to_byte(grey * tint[c]);
  }
}

// Makes one side of the scene darker than the other.
void light(Scene& scene, Generator& random) {
  const double left = random.uniform(0.5, 1.2), right = random.uniform(0.5, 1.2);
  const std::int64_t width = scene.image.size(1);
  std::uint8_t* const bytes = scene.image.data<std::uint8_t>();
  for (std::int64_t i = 0; i < scene.image.numel(); ++i) {
    const double at = static_cast<double>(i / 3 % width) / static_cast<double>(width);
    bytes[i] = to_byte(bytes[i] * (left + (right - left) * at));
  }
}

Scene make_scene(const data::Dataset& articles, std::int64_t size, Generator& random) {
  const auto side = [&] {
    return size + static_cast<std::int64_t>(random.uniform(0, static_cast<double>(size) / 4));
  };
  const std::int64_t height = side(), width = side();
  Scene scene{empty({height, width, 3}, {.dtype = uint8}),
              zeros({height, width, 1}, {.dtype = uint8})};
  paint_ground(scene, random);
  const auto count = 2 + static_cast<int>(random.uniform(0, 3));
  for (int i = 0; i < count; ++i) {
    const auto index = random.uniform(0, static_cast<double>(articles.size()));
    place(scene, articles.get(static_cast<std::int64_t>(index)), random);
  }
  light(scene, random);
  return scene;
}

void write_folder(const std::string& folder, const data::Dataset& articles, std::int64_t count,
                  std::int64_t size, std::uint64_t seed) {
  for (const char* part : {"/images", "/masks"}) std::filesystem::create_directories(folder + part);
  std::ofstream names(folder + "/classes.txt");
  for (const char* name : class_names) names << name << '\n';
  if (!names.flush()) fail<FileError>("cannot write '{}/classes.txt'", folder);
  for (std::int64_t i = 0; i < count; ++i) {
    Generator random(seed + static_cast<std::uint64_t>(i) * 2);
    const Scene scene = make_scene(articles, size, random);
    examples::write_png(fmt::format("{}/images/{:05}.png", folder, i), scene.image);
    examples::write_png(fmt::format("{}/masks/{:05}.png", folder, i), scene.mask);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Writes scenes for segmentation into DIR/train and DIR/val.");
  std::string folder, articles = "/usr/share/datasets/fashion-mnist";
  std::int64_t train = 2000, val = 200, size = 64;
  std::uint64_t seed = 1;
  bool overwrites = false;
  const auto add_number = [&](const char* name, auto& value, int least, const char* help) {
    app.add_option(name, value, help)->capture_default_str()->check(CLI::Range(least, 1'000'000));
  };
  app.add_option("DIR", folder, "The folder that is written")->required();
  add_number("--train", train, 1, "The number of scenes for training");
  add_number("--val", val, 1, "The number of scenes for tests");
  add_number("--size", size, 8, "The smallest side of a scene in pixels");
  add_number("--seed", seed, 0, "Another number makes other scenes");
  app.add_option("--data", articles, "The folder of Fashion-MNIST")->capture_default_str();
  app.add_flag("--overwrite", overwrites, "Replace files that exist");
  CLI11_PARSE(app, argc, argv);
  for (const char* part : {"/train", "/val"})
    if (std::error_code ignored; !overwrites && std::filesystem::exists(folder + part, ignored))
      fail<ValueError>("{}{} exists: --overwrite replaces the files in it", folder, part);
  seed *= 4'000'000;
  write_folder(folder + "/train", *data::load_idx(articles, "train"), train, size, seed);
  write_folder(folder + "/val", *data::load_idx(articles, "t10k"), val, size, seed + 1);
} catch (const std::exception& error) {
  std::fprintf(stderr, "make_scenes: %s\n", escape_controls(error.what()).c_str());
  return 2;
}
