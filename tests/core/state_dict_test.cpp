// Tests of safetensors files: round trips, a file of the reference implementation, and files that
// must be refused.
#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <ctime>
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

// So that readers that map the file need no copy.
TEST_F(SafeTensors, EveryTensorIsAlignedInTheFile) {
  // The name makes a header that is a multiple of 8 bytes long only with the blanks at its end.
  save_safetensors(path, {{"U8 of 3", zeros({3}, {.dtype = uint8})},
                          {"F16", zeros({3}, {.dtype = float16})},
                          {"F64", zeros({1}, {.dtype = float64})},
                          {"F32", zeros({1})}});
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  const std::string header = bytes.substr(8, length);
  for (const auto& [name, size] : {std::pair{"F16", 2u}, {"F64", 8u}, {"F32", 4u}}) {
    const std::string key = "\"data_offsets\":[";
    const std::size_t at = header.find(key, header.find(fmt::format("\"{}\":{{", name)));
    ASSERT_NE(at, std::string::npos) << header;
    EXPECT_EQ(std::stoul(header.substr(at + key.size())) % size, 0u) << name << " in " << header;
  }
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
               FileError);
  fs::create_directory(folder / "in_the_way");
  EXPECT_THROW(save_safetensors((folder / "in_the_way").string(), {{"a", ones({1})}}), FileError);
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
  std::ofstream(path, std::ios::binary) << "PK\3\4 what torch.save() writes";
  EXPECT_NE(error_of_load().find("import_torchvision.py"), std::string::npos);
  std::ofstream(path, std::ios::binary) << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_NE(error_of_load().find("run git lfs pull"), std::string::npos);
  std::ofstream(path, std::ios::binary) << "<!DOCTYPE html>";
  EXPECT_NE(error_of_load().find("is HTML"), std::string::npos);
  std::ofstream(path, std::ios::binary) << "";
  EXPECT_NE(error_of_load().find("is empty"), std::string::npos);
  std::ofstream(path, std::ios::binary) << "\x80\2\x8a\nl\xfc\x9c"
                                           "F what older ones write";
  EXPECT_NE(error_of_load().find("is a pickle"), std::string::npos);
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

TEST_F(SafeTensors, KeysMayOccurOnceOnlyWhereverTheyStand) {
  const auto expect = [&](const std::string& header, std::size_t bytes, const std::string& what) {
    write(header, bytes);
    const std::string message = error_of_load();
    EXPECT_NE(message.find(what), std::string::npos) << header << "\n -> " << message;
  };
  expect(R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
         "tensor 't': the key 'dtype' occurs twice");
  expect(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"shape":[1]}})", 1,
         "tensor 't': the key 'shape' occurs twice");
  expect(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{"y":[{"z":1,"z":1}]}}})", 1,
         "tensor 't': the key 'z' occurs twice");
  expect(R"({"__metadata__":{"a":"1","b":"2","a":"1"}})", 0,
         "__metadata__: the key 'a' occurs twice");
  expect(R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ occurs twice");
  expect(R"({"t\u0041":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("tA":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
         2, "tensor 'tA' occurs twice");
  // The same key in different objects is no duplicate, and keys of others' own are ignored.
  write(R"({"shape":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{"shape":null}},)"
        R"("dtype":{"dtype":"U8","shape":[1],"data_offsets":[1,2],"x":[[1.5,"a"],true]}})",
        2);
  EXPECT_EQ(error_of_load(), "");
}

TEST_F(SafeTensors, TheHeaderBeginsWithABraceAndIsNotNestedDeeply) {
  const auto expect = [&](const std::string& header, const std::string& what) {
    write(header, 0);
    const std::string message = error_of_load();
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  expect("\xef\xbb\xbf{}", "byte-order mark");
  expect(" {}", "begins with ' ', expected '{'");
  expect("{} x", "not JSON");
  expect(std::string("{}\0", 3), "not JSON");
  expect("{\"\xff\":1}", "not JSON");
  expect(R"({"t":{"x":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}}",
         "nested deeper");
  std::string many = "0";
  for (int i = 0; i < 2000; ++i) many += ",0";
  expect(R"({"t":{"dtype":"U8","shape":[)" + many + R"(],"data_offsets":[0,0]}})",
         "tensor 't': more than");
  write(R"({"__metadata__":null})", 0);
  EXPECT_EQ(error_of_load(), "");
  write("{}   ", 0);
  EXPECT_EQ(error_of_load(), "");
}

// Returns the names of many tensors, in an order that no sorting makes.
StateDict many_tensors(std::size_t count) {
  StateDict state;
  const Tensor one = ones({1});
  for (std::size_t i = 0; i < count; ++i)
    state.emplace_back("layer." + std::to_string(i * 7919 % count) + ".weight", one);
  return state;
}

TEST_F(SafeTensors, AHundredThousandTensorsComeBack) {
  constexpr std::size_t count = 100'000;
  const StateDict state = many_tensors(count);
  Metadata metadata;
  for (std::size_t i = 0; i < count; ++i) metadata.emplace("key." + std::to_string(i), "value");
  save_safetensors(path, state, metadata);
  Metadata read;
  const StateDict back = load_safetensors(path, &read);
  ASSERT_EQ(back.size(), count);
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(back[i].first, state[i].first);
  EXPECT_EQ(read, metadata);
}

// Four times the tensors take about four times the processor time; a quadratic header would take 16
// times as much. The ratio of two times of one process does not depend on the machine.
TEST_F(SafeTensors, TheTimeGrowsWithTheNumberOfTensorsAndNotWithItsSquare) {
  const auto time_of = [](const auto& run) {
    std::clock_t best = std::numeric_limits<std::clock_t>::max();
    for (int repetition = 0; repetition < 3; ++repetition) {
      const std::clock_t begin = std::clock();
      run();
      best = std::min(best, std::clock() - begin);
    }
    return static_cast<double>(best);
  };
  double saving[2], loading[2];
  for (const int i : {0, 1}) {
    const StateDict state = many_tensors(i ? 80'000 : 20'000);
    saving[i] = time_of([&] { save_safetensors(path, state); });
    loading[i] = time_of([&] { load_safetensors(path); });
  }
  EXPECT_LT(saving[1], 9 * saving[0]);
  EXPECT_LT(loading[1], 9 * loading[0]);
}

TEST_F(SafeTensors, AHeaderThatNoReaderWouldTakeIsNotWritten) {
  const Metadata metadata{{"k", std::string(100'000'000, 'x')}};
  EXPECT_THROW(save_safetensors(path, {}, metadata), CheckpointError);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SafeTensors, WhatNoTensorCanHoldIsNamed) {
  const auto error_of = [&](const std::string& entry) {
    write("{" + entry + "}", 1);
    return error_of_load();
  };
  EXPECT_NE(error_of(R"("four_bits":{"dtype":"F4","shape":[2],"data_offsets":[0,1]})")
                .find("tensor 'four_bits': unknown dtype \"F4\"; expected one of F32"),
            std::string::npos);
  for (const char* entry :
       {R"("it":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]})",
        R"("it":{"dtype":"I8","shape":[1],"data_offsets":[0,1]})",
        R"("it":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]})"})
    EXPECT_NE(error_of(entry).find("tensor 'it'"), std::string::npos) << entry;
}

TEST_F(SafeTensors, NamesInErrorsAreShortAndPrintable) {
  const std::string ugly = R"(\u001b]0;owned\u0007\n\u009b\u202e)";  // commands to a terminal
  const std::string endless(1'000'000, 'n');
  for (const std::string& name : {ugly, endless, ugly + endless}) {
    const std::string quoted = "\"" + name + "\"";
    for (const std::string& header :
         {"{" + quoted + ":3}",
          "{" + quoted + R"(:{"dtype":)" + quoted + R"(,"shape":[1],)" +
              R"("data_offsets":[0,1]}})",
          R"({"__metadata__":{)" + quoted + ":3}}", "{" + quoted + ":" + quoted + "," + quoted,
          "{\"" + name, R"({"t":{)" + quoted + ":1," + quoted + ":1}}"}) {
      write(header, 1);
      const std::string message = error_of_load();
      EXPECT_NE(message, "");
      EXPECT_LT(message.size(), 1000 + path.size()) << message.substr(0, 1000);
      EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) {
        return c >= ' ' && c <= '~';
      })) << message;
    }
  }
}

// Makes a file of a few blocks that claims `bytes` bytes of data in one tensor.
void write_sparse(const std::string& path, std::uint64_t bytes) {
  const std::string header = R"({"t":{"dtype":"U8","shape":[)" + std::to_string(bytes) +
                             R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  const std::uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length) << header;
  file.close();
  fs::resize_file(path, sizeof length + length + bytes);
}

TEST_F(SafeTensors, AHugeSparseFileIsRefusedBeforeItIsAllocated) {
  const std::uint64_t huge = std::uint64_t{1} << 42;  // 4 TiB
  try {
    write_sparse(path, huge);
  } catch (const fs::filesystem_error& error) {
    GTEST_SKIP() << "no sparse files of 4 TiB here: " << error.what();
  }
  const std::size_t peak = allocator(Device::cpu()).stats().peak;
  const std::string message = error_of_load();
  EXPECT_NE(message.find("4398046511104 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find(path), std::string::npos);
  EXPECT_EQ(allocator(Device::cpu()).stats().peak, peak);

  // A header of that size is refused, too.
  const std::uint64_t length = huge - 1000;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.close();
  EXPECT_NE(error_of_load().find("claims a header"), std::string::npos);
}

TEST_F(SafeTensors, OnlyRegularFilesAreRead) {
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(error_of_load().find("not a regular file"), std::string::npos);  // and does not wait
  path = "/dev/zero";
  EXPECT_NE(error_of_load().find("not a regular file"), std::string::npos);
}

TEST_F(SafeTensors, TensorsThatAreNotAlignedInTheFileAreAlignedInMemory) {
  std::string header = R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("t":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  write(header, 17);
  const StateDict read = load_safetensors(path);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read.at(1).second.raw()) % alignof(double), 0u);
}

}  // namespace
}  // namespace tutti
