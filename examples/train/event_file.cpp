#include "event_file.h"

#include "run_folder.h"

#include <tutti/core/error.h>

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

namespace tutti::examples {

namespace {

// ---- TFRecord

template <class Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

// A checksum of data that contain checksums is weak, so TFRecord stores them rotated and shifted.
std::string masked_checksum(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u);
}

// ---- protobuf: a field is a key, which holds its number and how it is encoded, and a value. The
// numbers are those of TensorFlow's event.proto and summary.proto.

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}

std::string field(int number, std::int64_t value) {
  return varint(number << 3) + varint(static_cast<std::uint64_t>(value));
}
std::string field(int number, double value) {
  return varint(number << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string field(int number, float value) {
  return varint(number << 3 | 5) + little_endian(std::bit_cast<std::uint32_t>(value));
}
std::string field(int number, const std::string& value) {
  return varint(number << 3 | 2) + varint(value.size()) + value;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns a path that no file has yet.
std::string new_path(const std::string& folder) {
  auto time = static_cast<std::int64_t>(seconds_since_1970());
  for (;; ++time) {
    const std::string path = fmt::format("{}/events.out.tfevents.{}.{}", folder, time, host_name());
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

std::string tfrecord(std::string_view bytes) {
  const std::string length = little_endian(static_cast<std::uint64_t>(bytes.size()));
  return length + masked_checksum(length) + std::string(bytes) + masked_checksum(bytes);
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step)
    : path_(new_path(folder)), file_(path_, std::ios::binary) {
  write_event(field(3, "brain.Event:2"));               // file_version
  const std::string start = field(1, std::int64_t{1});  // status: START
  write_event(field(2, first_step) + field(7, start));  // step, session_log
}

void EventFile::add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string values;
  for (const auto& [tag, number] : scalars)
    values += field(1, field(1, tag) + field(2, static_cast<float>(number)));  // tag, simple_value
  write_event(field(2, step) + field(5, values));                              // step, summary
}

void EventFile::write_event(const std::string& fields) {
  const std::string wall_time = field(1, seconds_since_1970());
  file_ << tfrecord(wall_time + fields) << std::flush;
  if (!file_) fail<FileError>("cannot write '{}': {}", path_, std::strerror(errno));
}

}  // namespace tutti::examples
