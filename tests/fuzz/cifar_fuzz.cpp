// Fuzzes load_cifar10() and load_cifar100(). Bit 0 of an input's first byte says whether the
// content is filled up to whole records, and bit 1 which dataset is read. The rest is the content
// of the file.
#include "input.h"

#include <tutti/data/cifar.h>

namespace tutti {
namespace {

using namespace data;

void read(const std::string& input) {
  static const test::InputFolder folder;
  const auto flags = input.empty() ? 0u : static_cast<std::uint8_t>(input[0]);
  const bool is_cifar100 = flags & 2;
  const std::size_t label_bytes = is_cifar100 ? 2 : 1, record = label_bytes + 3 * 32 * 32;
  std::string content = input.empty() ? "" : input.substr(1);
  if (flags & 1) content.resize((content.size() + record - 1) / record * record);
  folder.write(is_cifar100 ? "test.bin" : "test_batch.bin", content);
  test::is_read<DataError>(folder.path() + "/", [&] {
    const auto images = (is_cifar100 ? load_cifar100 : load_cifar10)(folder.path(), Split::test);
    test::require(static_cast<std::size_t>(images->size()) == content.size() / record,
                  "a record is missing");
    for (std::int64_t i = 0; i < images->size(); ++i) {
      const Sample sample = images->get(i);
      const std::size_t at = static_cast<std::size_t>(i) * record;
      const auto byte = [&](std::size_t b) { return static_cast<std::uint8_t>(content[at + b]); };
      test::require(sample.label == byte(is_cifar100 ? 1 : 0), "a label is wrong");
      for (std::size_t p = 0; p < 32 * 32; ++p)
        for (std::size_t c = 0; c < 3; ++c)
          test::require(
              sample.image.data<std::uint8_t>()[3 * p + c] == byte(label_bytes + c * 32 * 32 + p),
              "a pixel is wrong");
    }
  });
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
