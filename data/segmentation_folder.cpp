#include "segmentation_folder.h"

#include "data_file.h"
#include "decode/formats.h"

#include <filesystem>
#include <map>

namespace tutti::data {
namespace {

bool have_one_size(const Tensor& a, const Tensor& b) {
  return a.size(0) == b.size(0) && a.size(1) == b.size(1);
}

// Returns the paths of a folder's pictures by their names without endings.
std::map<std::string, std::string> files_by_stem(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& [name, is_folder] : list_folder(folder)) {
    if (is_folder || !has_picture_name(name)) continue;
    const auto [other, is_new] =
        files.emplace(std::filesystem::path(name).stem().string(), folder + "/" + name);
    if (!is_new)
      fail<DataError>("{} and {}/{} have one name; remove one", other->second, folder, name);
  }
  return files;
}

}  // namespace

SegmentationFolder::SegmentationFolder(const std::string& root, Options options)
    : options_(options) {
  if (options.decode.min_size != 0)
    fail<ValueError>("SegmentationFolder: expected a decode.min_size of 0, got {}",
                     options.decode.min_size);
  check_data_folder(root, "expected images/, masks/ and classes.txt in it");
  class_names_ = read_class_names(root + "/classes.txt");
  if (class_names_.empty() || class_names_.size() > 255)
    fail<DataError>(
        "{}/classes.txt: expected the names of 1 to 255 classes, one on each line, got {}", root,
        class_names_.size());
  const auto images = files_by_stem(root + "/images");
  auto masks = files_by_stem(root + "/masks");
  for (const auto& [stem, image] : images) {
    const auto mask = masks.find(stem);
    if (mask == masks.end())
      fail<DataError>("{} has no mask; expected {}/masks/{}.png", image, root, stem);
    files_.push_back({image, mask->second});
    masks.erase(mask);
  }
  if (!masks.empty())
    fail<DataError>("{} has no image; expected {}/images/{}.*", masks.begin()->second, root,
                    masks.begin()->first);
  if (files_.empty()) fail<DataError>("the folder {}/images has no images", root);
}

std::string SegmentationFolder::describe(std::int64_t index) const {
  check_index(index);
  return files_[static_cast<std::size_t>(index)].image;
}

std::pair<std::int64_t, std::int64_t> SegmentationFolder::stored_size(std::int64_t index) const {
  check_index(index);
  return data::stored_size(files_[static_cast<std::size_t>(index)].image);
}

void SegmentationFolder::check_values(const Tensor& mask, const std::string& path) const {
  const std::uint8_t* values = mask.data<std::uint8_t>();
  const auto classes = static_cast<std::int64_t>(class_names_.size());
  for (std::int64_t i = 0; i < mask.numel(); ++i)
    if (values[i] >= classes && values[i] != options_.ignore_index)
      fail<DataError>("{}: expected classes from 0 to {} (or {}), got {} in row {}, column {}",
                      path, classes - 1, options_.ignore_index, values[i], i / mask.size(1),
                      i % mask.size(1));
}

// A mask with an orientation of its own needs no guess.
std::pair<Tensor, Tensor> SegmentationFolder::make_upright(const DecodedImage& image,
                                                           const DecodedImage& mask,
                                                           const Files& files) const {
  const Tensor shown = upright(image.pixels, image.orientation);
  if (!options_.decode.apply_orientation) return {image.pixels, mask.pixels};
  if (image.orientation == 1 || mask.orientation != 1)
    return {shown, upright(mask.pixels, mask.orientation)};
  const bool fits_stored = have_one_size(mask.pixels, image.pixels),
             fits_shown = have_one_size(mask.pixels, shown);
  if (fits_stored && fits_shown && options_.mask_orientation == MaskOrientation::by_size)
    fail<DataError>(
        "{}: its EXIF orientation ({}) turns or mirrors the picture, and the sizes do not tell "
        "whether {} shows it as it is stored or as it is shown: mask_orientation has to say which",
        files.image, image.orientation, files.mask);
  const bool is_as_stored =
      fits_stored && (!fits_shown || options_.mask_orientation == MaskOrientation::as_stored);
  return {shown, is_as_stored ? upright(mask.pixels, image.orientation) : mask.pixels};
}

Sample SegmentationFolder::get(std::int64_t index) const {
  check_index(index);
  const Files& files = files_[static_cast<std::size_t>(index)];
  DecodedImage stored = read_stored_image(files.image, options_.decode),
               stored_mask = read_stored_mask(files.mask, options_.decode);
  const auto [image, mask] = make_upright(stored, stored_mask, files);
  if (!have_one_size(mask, image))
    fail<DataError>("{}: expected a mask of {} x {} pixels, as {} has, got {} x {}", files.mask,
                    image.size(0), image.size(1), files.image, mask.size(0), mask.size(1));
  check_values(mask, files.mask);
  return {.image = image, .name = files.image, .mask = mask};
}

}  // namespace tutti::data
