#include "transform.h"

#include "../../core/philox.h"

namespace tutti::data {

Generator RandomKey::generator(std::uint64_t step) const {
  // Each part is encrypted with the key that the parts before it make.
  std::uint64_t key = seed;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample), step}) {
    const PhiloxBlock block = philox(key, part);
    key = std::uint64_t{block.words[0]} << 32 | block.words[1];
  }
  return Generator(key);
}

Tensor apply_transforms(const std::vector<Transform>& transforms, const Tensor& image,
                        const RandomKey& key) {
  Tensor result = image;
  for (std::size_t step = 0; step < transforms.size(); ++step) {
    Generator random = key.generator(step);
    result = transforms[step](result, random);
  }
  return result;
}

}  // namespace tutti::data
