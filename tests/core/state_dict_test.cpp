// Tests of safetensors files: round trips, a file of the reference implementation, and files that
// must be refused.
#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Gives every test a folder of its own, which it removes afterwards.
class SafeTensors : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder = fs::path(::testing::TempDir()) /
             (std::string("tutti_") + info->name() + std::to_string(::getpid()));
    fs::create_directories(folder);
    path = (folder / "file.safetensors").string();
  }
  void TearDown() override { fs::remove_all(folder); }

  // Writes a file with this header and this many bytes of data.
  void write(const std::string& header, std::size_t data_bytes) const {
    std::ofstream out(path, std::ios::binary);
    const std::uint64_t length = header.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << std::string(data_bytes, '\1');
  }
  std::string error_of_load() const {
    try {
      load_safetensors(path);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder;
  std::string path;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  return a.numel() == 0 ||
         std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype())) ==
             0;
}

TEST_F(SafeTensors, RoundTripKeepsOrderBitsAndMetadata) {
  Generator generator(5);
  StateDict state;
  for (const DType dtype : {uint8, float32, boolean, float64, bfloat16, int64, float16})
    state.emplace_back("t." + to_string(dtype), rand({3, 5}, {.dtype = dtype}, generator));
  state.emplace_back("count", scalar(0, {.dtype = int64}));
  state.back().second.data<std::int64_t>()[0] = std::numeric_limits<std::int64_t>::max();
  state.emplace_back("special", tensor({-0.0, std::numeric_limits<double>::infinity(), 5e-324},
                                       {.dtype = float64}));
  state.emplace_back("empty", zeros({2, 0, 3}));
  state.emplace_back("naïve \"name\"\n", ones({2}));
  const Metadata metadata{{"epoch", "3"}, {"note", "é"}};
  save_safetensors(path, state, metadata);

  Metadata read{{"stale", "value"}};
  const StateDict back = load_safetensors(path, &read);
  EXPECT_EQ(read, metadata);
  ASSERT_EQ(back.size(), state.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(back[i].first, state[i].first);
    EXPECT_TRUE(same_bits(back[i].second, state[i].second)) << state[i].first;
  }
}

TEST_F(SafeTensors, StridedTensorsAreWrittenRowMajor) {
  const Tensor x = arange(24).reshape({2, 3, 4});
  save_safetensors(path, {{"t", x.transpose(0, 2)}, {"s", x.slice(1, 1, 3)}});
  const StateDict back = load_safetensors(path);
  EXPECT_TRUE(back[0].second.is_contiguous());
  EXPECT_EQ(to_vector(back[0].second), to_vector(x.transpose(0, 2)));
  EXPECT_EQ(to_vector(back[1].second), to_vector(x.slice(1, 1, 3)));
}

TEST_F(SafeTensors, ReadsWhatTheReferenceImplementationWrote) {
  Metadata metadata;
  std::map<std::string, Tensor> read;
  for (auto& [name, tensor] :
       load_safetensors(TUTTI_TEST_DATA "/safetensors_package.safetensors", &metadata))
    read.emplace(name, tensor);
  EXPECT_EQ(metadata.at("writer").rfind("safetensors ", 0), 0u);
  ASSERT_EQ(read.size(), 8u);
  const std::vector<double> values{0.5, -1.25, 3, 1e10, -0.0, 65504};
  EXPECT_TRUE(same_bits(read["layer.weight"], tensor(values, {2, 3})));
  EXPECT_TRUE(same_bits(read["double"], tensor(values, {2, 3}, {.dtype = float64})));
  EXPECT_TRUE(same_bits(read["half"], tensor({0.5, -2, 65504}, {.dtype = float16})));
  EXPECT_TRUE(same_bits(read["brain"], tensor({0.5, -2, 3}, {.dtype = bfloat16})));
  EXPECT_TRUE(same_bits(read["bytes"], tensor({0, 127, 255}, {.dtype = uint8})));
  EXPECT_TRUE(same_bits(read["mask"], tensor({1, 0, 1}, {.dtype = boolean})));
  EXPECT_TRUE(same_bits(read["empty"], zeros({0, 4})));
  EXPECT_EQ(read["count"].rank(), 0);
  EXPECT_EQ(read["count"].data<std::int64_t>()[0], (std::int64_t{1} << 62) + 1);
}

TEST_F(SafeTensors, AFailedSaveLeavesTheOldFileAndNoOther) {
  save_safetensors(path, {{"a", ones({2})}});
  EXPECT_THROW(save_safetensors(path, {{"a", ones({1})}, {"a", ones({1})}}), CheckpointError);
  EXPECT_THROW(save_safetensors(path, {{"__metadata__", ones({1})}}), CheckpointError);
  EXPECT_THROW(save_safetensors(path, {{"a", Tensor()}}), CheckpointError);
  EXPECT_THROW(save_safetensors(path, {{"bad \xff utf-8", ones({1})}}), CheckpointError);
  EXPECT_THROW(save_safetensors((folder / "absent" / "file").string(), {{"a", ones({1})}}),
               CheckpointError);
  fs::create_directory(folder / "in_the_way");
  EXPECT_THROW(save_safetensors((folder / "in_the_way").string(), {{"a", ones({1})}}),
               CheckpointError);
  EXPECT_EQ(load_safetensors(path).at(0).second.numel(), 2);
  save_safetensors(path, {{"b", ones({3})}});
  EXPECT_EQ(load_safetensors(path).at(0).first, "b");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);  // no temporary file is left
}

TEST_F(SafeTensors, RefusesFilesThatAreNotWhatTheyClaim) {
  EXPECT_NE(error_of_load().find(path), std::string::npos);  // absent
  const std::string good = R"({"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  write(good, 24);
  EXPECT_EQ(error_of_load(), "");

  const auto expect = [&](const std::string& header, std::size_t bytes, const std::string& what) {
    write(header, bytes);
    const std::string message = error_of_load();
    EXPECT_NE(message.find(what), std::string::npos) << header << "\n -> " << message;
    EXPECT_NE(message.find(path), std::string::npos) << message;
  };
  expect(good, 23, "tensor 't' ends at byte 24");
  expect(good, 25, "1 bytes follow the last tensor");
  expect("[1]", 0, "not a JSON object");
  expect("{\"t\":", 0, "not JSON");
  expect("", 0, "not JSON");
  expect(R"({"t":3})", 0, "tensor 't'");
  expect(R"({"t":{"dtype":"F32","shape":[1]}})", 4, "tensor 't'");
  expect(R"({"t":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype is not a string");
  expect(R"({"t":{"dtype":"F8","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype \"F8\"");
  expect(R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape is not");
  expect(R"({"t":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "shape is not");
  expect(R"({"t":{"dtype":"F32","shape":2,"data_offsets":[0,4]}})", 4, "shape is not");
  expect(R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
         "tensor 't'");
  expect(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
         "tensor 't'");
  expect(R"({"t":{"dtype":"F64","shape":[2305843009213693951],"data_offsets":[0,4]}})", 4,
         "tensor 't'");
  expect(R"({"t":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
         "tensor 't'");
  expect(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "takes 8 bytes");
  expect(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets");
  expect(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "data_offsets");
  expect(R"({"t":{"dtype":"F32","shape":[1],)"
         R"("data_offsets":[18446744073709551612,18446744073709551616]}})",
         4, "'t'");
  expect(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
         R"("u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
         3, "tensor 'u' begins at byte 1 of the data, expected 2: it overlaps");
  expect(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("u":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
         3, "a hole");
  expect(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
         2, "'t' occurs twice");
  expect(R"({"__metadata__":{"k":3}})", 0, "__metadata__");
  expect(R"({"__metadata__":[]})", 0, "__metadata__");
  std::ofstream(path, std::ios::binary) << "short";
  EXPECT_NE(error_of_load().find("too few"), std::string::npos);
  std::ofstream(path, std::ios::binary) << std::string(16, '\x7f');
  EXPECT_NE(error_of_load().find("claims a header"), std::string::npos);
  path = folder.string();
  EXPECT_NE(error_of_load(), "");
}

TEST_F(SafeTensors, RefusesABoolThatIsNone) {
  const std::string header = R"({"t":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  write(header, 2);
  EXPECT_EQ(error_of_load(), "");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\2');
  file.close();
  EXPECT_NE(error_of_load().find("tensor 't': a BOOL is neither"), std::string::npos);
}

}  // namespace
}  // namespace tutti
