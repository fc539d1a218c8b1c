// What the fuzz targets share: files that hold an input, and the rule that an input is either read
// or refused with one class of error.
#pragma once

#include "../temporary_folder.h"

#include <tutti/core/error.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace tutti::test {

/// Ends the program unless `fact` holds. A fuzzer takes that for a crash and keeps the input.
inline void require(bool fact, const std::string& what) {
  if (fact) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

/// A folder for the files that hold an input.
class InputFolder : public TemporaryFolder {
 public:
  InputFolder() : TemporaryFolder("fuzz") {}
  /// Writes a file of the folder, and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::string file = *this / name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
};

/// Calls `read`. Returns whether it came to its end, or false if it threw an E that names `name` in
/// one line of plain text. Any other exception or text ends the program, and so does an error for
/// want of memory.
template <class E, class Read>
bool is_read(const std::string& name, const Read& read) {
  try {
    read();
    return true;
  } catch (const E& error) {
    const std::string text = error.what();
    require(text.find(name) != std::string::npos, "an error does not name its input: " + text);
    // No small input may ask for so much that the limits of a fuzzer refuse it. The words alone may
    // be a quotation of the input.
    require(text.find(name + "': out of memory") == std::string::npos,
            "an input takes all memory: " + text);
    require(text.size() < 2000, "an error is longer than 2000 bytes: " + text);
    require(std::none_of(text.begin(), text.end(),
                         [](char c) { return static_cast<unsigned char>(c) < 32; }),
            "an error holds control characters: " + text);
    return false;
  }
}

}  // namespace tutti::test
