#include "event_file.h"

#include <tutti/core/error.h>

#include <fmt/format.h>

#include <unistd.h>
#include <array>
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

// ---- protobuf: a field is a key, which holds its number and how it is encoded, and a value

constexpr std::uint64_t encoded_as_varint = 0, encoded_as_64_bits = 1, encoded_with_length = 2,
                        encoded_as_32_bits = 5;

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}

std::string key(std::uint64_t field, std::uint64_t encoding) {
  return varint(field << 3 | encoding);
}
std::string integer_field(std::uint64_t field, std::int64_t value) {
  return key(field, encoded_as_varint) + varint(static_cast<std::uint64_t>(value));
}
std::string double_field(std::uint64_t field, double value) {
  return key(field, encoded_as_64_bits) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string float_field(std::uint64_t field, double value) {
  return key(field, encoded_as_32_bits) +
         little_endian(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}
std::string bytes_field(std::uint64_t field, const std::string& value) {
  return key(field, encoded_with_length) + varint(value.size()) + value;
}

// The numbers of the fields in TensorFlow's event.proto and summary.proto.
constexpr std::uint64_t event_wall_time = 1, event_step = 2, event_file_version = 3,
                        event_summary = 5, event_session_log = 7, summary_value = 1, value_tag = 1,
                        value_simple_value = 2, session_log_status = 1;
constexpr std::int64_t session_log_start = 1;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns a path that no file has yet.
std::string new_path(const std::string& folder) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  auto time = static_cast<std::int64_t>(seconds_since_1970());
  for (;; ++time) {
    const std::string path = fmt::format("{}/events.out.tfevents.{}.{}", folder, time, host.data());
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
  write_event(bytes_field(event_file_version, "brain.Event:2"));
  write_event(integer_field(event_step, first_step) +
              bytes_field(event_session_log, integer_field(session_log_status, session_log_start)));
}

void EventFile::add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string values;
  for (const auto& [tag, number] : scalars)
    values += bytes_field(summary_value,
                          bytes_field(value_tag, tag) + float_field(value_simple_value, number));
  write_event(integer_field(event_step, step) + bytes_field(event_summary, values));
}

void EventFile::write_event(const std::string& fields) {
  file_ << tfrecord(double_field(event_wall_time, seconds_since_1970()) + fields) << std::flush;
  if (!file_) fail<FileError>("cannot write '{}': {}", path_, std::strerror(errno));
}

}  // namespace tutti::examples
