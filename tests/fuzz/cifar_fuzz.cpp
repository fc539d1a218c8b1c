// Fuzzes load_cifar10(). Bit 0 of an input's first byte says whether the content is filled up to
// whole records, and the next byte after how many records the second file begins. The rest is the
// content of both files.
#include "data/dataset.h"
#include "input.h"

namespace tutti {
namespace {

using namespace examples;

void read(const std::string& input) {
  static const test::InputFolder folder;
  constexpr std::size_t record = 1 + 3 * 32 * 32;
  std::string content = input.size() > 2 ? input.substr(2) : "";
  if (!input.empty() && (input[0] & 1))
    content.resize((content.size() + record - 1) / record * record);
  const std::size_t first = input.size() > 1 ? static_cast<std::uint8_t>(input[1]) * record : 0;
  folder.write("a.bin", content.substr(0, first));
  folder.write("b.bin", content.size() > first ? content.substr(first) : "");
  test::is_read<DataError>(folder.path() + "/", [&] {
    const Dataset data = load_cifar10(folder.path(), {"a.bin", "b.bin"});
    const auto count = static_cast<std::size_t>(data.count);
    test::require(count == content.size() / record, "a record is missing");
    test::require(data.images.size() == count * (record - 1) && data.labels.size() == count,
                  "the data has other sizes than its count says");
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t label = static_cast<std::uint8_t>(content[i * record]);
      test::require(data.labels[i] == label && label < data.classes, "a label is wrong");
    }
  });
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
