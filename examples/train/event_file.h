// Event files, which TensorBoard reads: their records, checksums and encoding. Which scalars a run
// writes is decided in run_log.cpp.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::examples {

/// Returns the CRC-32C (Castagnoli) of the bytes.
std::uint32_t crc32c(std::string_view bytes);

/// Returns the bytes in a record: their number as 64 bits and its checksum, then the bytes and
/// theirs. All numbers are little-endian, and checksums are masked CRC-32Cs.
std::string tfrecord(std::string_view bytes);

/// Scalars over the steps of a run in the form that TensorBoard reads: records of TensorFlow's
/// TFRecord format, each of which holds an Event in the encoding of protobuf.
class EventFile {
 public:
  /// Creates a file in a folder, whose name has the present time and the host, as TensorBoard
  /// expects. `first_step` is the first step that this process makes: what older files of the
  /// folder hold of it and of later steps no longer counts. Throws a FileError if the file cannot
  /// be created.
  EventFile(const std::string& folder, std::int64_t first_step);

  /// Appends scalars of a step. Throws a FileError if they cannot be written.
  void add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::string& path() const { return path_; }

 private:
  void write_event(const std::string& fields);

  std::string path_;
  std::ofstream file_;
};

}  // namespace tutti::examples
