// Tests of nn::ModelCard, what a weights file says about its model.
#include "distributed/messages.h"

#include <tutti/core/create.h>
#include <tutti/core/error.h>
#include <tutti/nn/models/model_card.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>

namespace tutti {
namespace {

using test::expect_contains;
using test::expect_error;
using test::message_of;

nn::ModelCard example() {
  return {.model = "resnet18",
          .classes = 3,
          .channels = 3,
          .class_names = {"cat", "Gürteltier", "quote \" and, comma"},
          .mean = {0.485, 0.456, 0.406},
          .std = {0.229, 0.224, 0.225},
          .resize_size = 256,
          .input_size = 224};
}

TEST(ModelCard, ComesBackFromTheMetadataOfAFile) {
  const std::string path = "model_card_" + std::to_string(getpid()) + ".safetensors";
  Metadata metadata = example().to_metadata();
  metadata["epoch"] = "3";  // a key of somebody else
  save_safetensors(path, {}, metadata);
  Metadata read;
  load_safetensors(path, &read);
  std::remove(path.c_str());
  EXPECT_EQ(nn::ModelCard::from_metadata(read), example());
}

// tests/examples/import_torchvision_test.py compares the same file with what the script writes.
TEST(ModelCard, IsReadFromAFileOfTheImporter) {
  Metadata metadata;
  const StateDict state =
      load_safetensors(std::string(TUTTI_TEST_DATA) + "/imported.safetensors", &metadata);
  const auto card = nn::ModelCard::from_metadata(metadata);
  EXPECT_EQ(card.model, "resnet20");
  EXPECT_EQ(card.class_names, (std::vector<std::string>{"cat", "Gürteltier, \"quoted\""}));
  EXPECT_EQ(card.channels, 1);
  EXPECT_EQ(card.mean, std::vector<double>{0.5});
  EXPECT_EQ(card.std, std::vector<double>{0.25});
  EXPECT_EQ(card.resize_size, 32);
  EXPECT_EQ(card.input_size, 28);
  ASSERT_EQ(state.size(), 4u);
  std::map<std::string, Tensor> tensors(state.begin(), state.end());
  EXPECT_EQ(to_vector(tensors["weight"]), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(to_vector(tensors["half"]), (std::vector<double>{1, -2, 0.5}));
  EXPECT_EQ(tensors["count"].item<std::int64_t>(), 7);
  EXPECT_EQ(tensors["empty"].shape(), (Shape{0, 4}));
}

TEST(ModelCard, MayHaveNoNamesAndNoScaling) {
  nn::ModelCard card = example();
  card.class_names.clear();
  card.resize_size = 0;
  EXPECT_EQ(nn::ModelCard::from_metadata(card.to_metadata()), card);
}

TEST(ModelCard, EveryKeyIsTheNameOfAFieldAndIsNeeded) {
  const Metadata metadata = example().to_metadata();
  EXPECT_EQ(metadata.at("model"), "resnet18");
  EXPECT_EQ(metadata.at("mean"), "[0.485,0.456,0.406]");
  EXPECT_EQ(metadata.size(), 8u);
  for (const auto& [key, value] : metadata) {
    Metadata fewer = metadata;
    fewer.erase(key);
    expect_error<CheckpointError>([&] { nn::ModelCard::from_metadata(fewer); }, {"'" + key + "'"});
  }
}

TEST(ModelCard, AWrongValueIsNamedWithWhatWasExpected) {
  struct Case {
    std::string key, value;
    std::vector<std::string> parts;
  };
  const std::string nested(100000, '[');
  for (const auto& [key, value, parts] :
       std::vector<Case>{{"model", "", {"resnet50"}},
                         {"model", "res\x1b[2Jnet", {"\\u001b"}},
                         {"classes", "three", {"whole number", "'three'"}},
                         {"classes", "3 ", {"whole number"}},
                         {"classes", "99999999999999999999", {"whole number"}},
                         {"classes", "0", {"at least 1", "got 0"}},
                         {"classes", "4", {"4 names", "got 3"}},
                         {"channels", "-1", {"1 to 1024", "-1"}},
                         {"channels", "1", {"at most 1"}},
                         {"channels", "4", {"4 numbers", "got 3"}},
                         {"class_names", "cat, dog", {"JSON array", "cat, dog"}},
                         {"class_names", "\"cat\"", {"JSON array"}},
                         {"class_names", "[\"a\",2,\"c\"]", {"strings", "number"}},
                         {"class_names", "[\"a\",\"b\",\"c\",\"d\"]", {"at most 3"}},
                         {"class_names", "[\"a\",\"b\"]", {"3 names", "got 2"}},
                         {"class_names", "[\"a\",\"b\",\"\\u001b[2J\"]", {"control", "\\u001b"}},
                         {"class_names", "[\"a\",\"b\",\"\\u009b2J\"]", {"control"}},
                         {"class_names", "[\"a\",\"b\",\"\xff\"]", {"JSON array"}},
                         {"mean", nested, {"JSON array", "..."}},
                         {"mean", "[[0.1],[0.1],[0.1]]", {"JSON array"}},
                         {"mean", "[0.1,0.1,null]", {"numbers", "null"}},
                         {"mean", "[0.1,0.1,1e999]", {"JSON array"}},
                         {"mean", "[0.1,0.1]", {"3 numbers", "got 2"}},
                         {"mean", "{\"a\":1}", {"JSON array"}},
                         {"std", "[0.1,0,0.1]", {"positive", "got 0"}},
                         {"input_size", "0", {"1 to 16384"}},
                         {"input_size", "1000000000", {"1 to 16384", "1000000000"}},
                         {"resize_size", "200", {"at least the input_size, 224", "got 200"}},
                         {"resize_size", "-5", {"0 to 16384"}}}) {
    Metadata metadata = example().to_metadata();
    metadata[key] = value;
    const std::string message =
        message_of<CheckpointError>([&] { nn::ModelCard::from_metadata(metadata); });
    expect_contains(message, parts);
    EXPECT_LT(message.size(), 600u);
    if (key != "classes" && key != "channels") expect_contains(message, {"'" + key + "'"});
  }
}

TEST(ModelCard, ThatDoesNotFitTogetherIsNotWritten) {
  nn::ModelCard card = example();
  card.std.pop_back();
  expect_error<ValueError>([&] { card.to_metadata(); }, {"'std'", "3", "got 2"});
  card = example();
  card.class_names[1] = "\xff";
  expect_error<ValueError>([&] { card.to_metadata(); }, {"'class_names'", "UTF-8"});
  card = example();
  card.mean[0] = NAN;
  expect_error<ValueError>([&] { card.to_metadata(); }, {"'mean'", "finite"});
  expect_error<ValueError>([] { nn::ModelCard().to_metadata(); }, {"'model'"});
}

}  // namespace
}  // namespace tutti
