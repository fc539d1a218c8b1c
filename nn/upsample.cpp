#include "upsample.h"

#include <fmt/ranges.h>

namespace tutti::nn {

std::string Upsample::describe() const {
  const std::string target =
      options_.size.empty()
          ? fmt::format("scale_factor={}", fmt::join(options_.scale_factor, " x "))
          : "size=" + tutti::to_string(options_.size);
  return fmt::format("{}, {}{}", target, nn::to_string(options_.mode),
                     options_.align_corners ? ", align_corners=true" : "");
}

}  // namespace tutti::nn
