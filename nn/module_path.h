// join_path() makes the dotted paths by which modules and parameters are named.
#pragma once

#include <string>

namespace tutti::nn {

/// Returns "layer1.weight" for ("layer1", "weight"), and the name alone for the root's path "".
inline std::string join_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace tutti::nn
