#include "transform.h"

namespace tutti::data {

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
