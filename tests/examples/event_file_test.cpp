// EventFile: the framing, checksums and encoding of TensorBoard's event files. That TensorBoard
// itself reads them is what read_tensorboard.py checks, where Python has it.
#include "train/event_file.h"

#include "temporary_folder.h"

#include <tutti/core/error.h>

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>

namespace tutti::examples {
namespace {

namespace fs = std::filesystem;
using test::content;

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

template <class Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Splits a file into the data of its records, and compares each record with what tfrecord() makes
// of its data.
std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = number_at<std::uint64_t>(file, at);
    if (length > file.size() - at - 16) {
      ADD_FAILURE() << "record " << records.size() << " is cut";
      return records;
    }
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(file.substr(at, length + 16), tfrecord(records.back()));
    at += length + 16;
  }
  return records;
}

class EventFolder : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_{"events"};
};

TEST(EventFile, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c(descending), 0x113FDB5Cu);
}

// The event of step 300 at 1234.5 s with the scalar "loss/train" = 0.375, as the RecordWriter of
// TensorBoard 2 writes it.
const char* const recorded =
    "2100000000000000017becf60900000000004a934010ac022a130a110a0a6c6f73732f747261696e150000c03eef1d"
    "905a";

TEST(EventFile, ARecordIsThatOfTensorBoard) {
  const std::string record = from_hex(recorded);
  EXPECT_EQ(tfrecord(record.substr(12, record.size() - 16)), record);
}

TEST_F(EventFolder, ScalarsAreThoseOfTensorBoard) {
  EventFile file(folder_.path(), 1);
  file.add(300, {{"loss/train", 0.375}});
  const auto records = records_of(content(file.path()));
  ASSERT_EQ(records.size(), 3u);
  // The first 9 bytes are the time, the only thing that differs.
  EXPECT_EQ(records[2].substr(9), from_hex(recorded).substr(12 + 9, records[2].size() - 9));
  EXPECT_EQ(records[0].substr(9), from_hex("1a0d") + "brain.Event:2");
  EXPECT_EQ(records[1].substr(9), from_hex("10013a020801"));  // step 1, the session starts
  const double age = static_cast<double>(time(nullptr)) - number_at<double>(records[2], 1);
  EXPECT_LT(std::abs(age), 100);
}

TEST_F(EventFolder, NumbersOfEverySize) {
  EventFile file(folder_.path(), 1);
  for (const std::int64_t step : {127L, 128L, 1L << 40})
    file.add(step, {{"a", 1e300}, {std::string(200, 'b'), -0.0}});
  const auto records = records_of(content(file.path()));
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(records[2].substr(9, 2), from_hex("107f"));
  EXPECT_EQ(records[3].substr(9, 3), from_hex("108001"));
  EXPECT_EQ(records[4].substr(9, 7), from_hex("10808080808020"));
  // Of a value that no float has, an infinity is left.
  EXPECT_NE(records[2].find(from_hex("0a016115") + from_hex("0000807f")), std::string::npos);
}

TEST_F(EventFolder, EveryProcessWritesAFileOfItsOwn) {
  EventFile first(folder_.path(), 1), second(folder_.path(), 5);
  EXPECT_NE(first.path(), second.path());
  for (const EventFile* file : {&first, &second})
    EXPECT_TRUE(fs::path(file->path()).filename().string().starts_with("events.out.tfevents."));
  EXPECT_THROW(EventFile("/dev/null/folder", 1), FileError);
}

}  // namespace
}  // namespace tutti::examples
