// Checkpoints that lack an entry, or hold one that no run writes: --resume refuses them by name
// before anything of the run has changed. tests/fuzz/checkpoint_fuzz.cpp tries many more.
#include "train/checkpoint.h"
#include "distributed/messages.h"
#include "train/trainer.h"

#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace tutti {
namespace {

using namespace examples;

namespace fs = std::filesystem;

struct Contents {
  StateDict tensors;
  Metadata metadata;

  Tensor& tensor(const std::string& name) {
    for (auto& [key, value] : tensors)
      if (key == name) return value;
    return tensors.emplace_back(name, Tensor()).second;
  }
};

class CheckpointFile : public ::testing::Test {
 protected:
  CheckpointFile() {
    options_.epochs = 2;
    options_.batch_size = 10;
    options_.threads = 1;
    options_.optimizer.lr = 0.02;
    options_.log_every = 2;
    options_.out = (fs::temp_directory_path() / fmt::format("tutti_entries_{}", getpid())).string();
  }
  ~CheckpointFile() override { fs::remove_all(options_.out); }

  void train_to_the_end() { train(options_, data_, ProcessGroup(), nullptr); }
  // Runs two epochs of three steps each, and reads the last checkpoint.
  Contents finished_run() {
    train_to_the_end();
    options_.resume = true;
    Contents contents;
    contents.tensors = load_safetensors(checkpoint_path(options_), &contents.metadata);
    return contents;
  }
  // Expects that nobody resumes from these contents: the error is one line, which names the file
  // and says `what`, and no other file of the run has changed.
  void expect_refusal(const Contents& contents, const std::string& what) {
    save_safetensors(checkpoint_path(options_), contents.tensors, contents.metadata);
    const std::vector<std::string> files{"metrics.jsonl", "config.json", "report.html",
                                         "model.safetensors"};
    for (const std::string& file : files)
      std::ofstream(options_.out + "/" + file, std::ios::trunc) << "untouched\n";
    const std::string message = test::message_of<ErrorOnAllRanks>([&] { train_to_the_end(); });
    test::expect_contains(message, {checkpoint_path(options_), what});
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& file : files) {
      std::string line;
      std::getline(std::ifstream(options_.out + "/" + file), line);
      EXPECT_EQ(line, "untouched") << file << ": " << what;
    }
  }

  TrainOptions options_;
  TrainingData data_ = make_synthetic({.train = 30, .test = 13, .channels = 2, .size = 8});
};

TEST_F(CheckpointFile, EveryEntryIsNeeded) {
  const Contents whole = finished_run();
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    Contents part = whole;
    part.tensors.erase(part.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string& name = whole.tensors[i].first;
    const bool is_optimizer = name.starts_with("optimizer.");
    expect_refusal(part, "'" + (is_optimizer ? name.substr(10) : name) + "'");
  }
  for (const auto& [key, text] : whole.metadata) {
    Contents part = whole;
    part.metadata.erase(key);
    const bool is_optimizer = key.starts_with("optimizer.");
    expect_refusal(part, key == "format"                ? "of another version or program"
                         : key == "optimizer.optimizer" ? "got that of no optimizer"
                         : is_optimizer                 ? "'" + key.substr(10) + "'"
                                                        : "'" + key + "'");
  }
  EXPECT_GT(whole.tensors.size(), 100u);
  save_safetensors(checkpoint_path(options_), whole.tensors, whole.metadata);
  train_to_the_end();
}

TEST_F(CheckpointFile, NoOtherEntryIsAccepted) {
  const Contents whole = finished_run();
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"model.odd", "unknown to the network"},
           {"optimizer.odd", "'odd' belongs to no parameter"},
           {"scaler.scale", "which only a run in float16 has"}}) {
    Contents more = whole;
    more.tensor(name) = zeros({1});
    expect_refusal(more, reason);
  }
}

TEST_F(CheckpointFile, EveryTensorHasItsShapeAndDtype) {
  const Contents whole = finished_run();
  for (std::size_t i = 0; i < whole.tensors.size(); i += 7) {
    Contents odd = whole;
    Tensor& tensor = odd.tensors[i].second;
    tensor = tensor.to(tensor.dtype() == float64 ? float32 : float64);
    expect_refusal(odd, to_string(tensor.dtype()));
    Shape shape = whole.tensors[i].second.shape();
    shape.push_back(2);
    tensor = zeros(shape, {.dtype = whole.tensors[i].second.dtype()});
    expect_refusal(odd, to_string(shape));
  }
  for (const char* name : {"random", "sums", "rows", "optimizer.steps"}) {
    Contents odd = whole;
    Tensor& tensor = odd.tensor(name);
    tensor = zeros({}, {.dtype = tensor.dtype()});
    expect_refusal(odd, std::string(name).substr(std::string(name).rfind('.') + 1));
  }
}

TEST_F(CheckpointFile, MetadataAreWholeNumbersInTheirRange) {
  const Contents whole = finished_run();
  for (const char* key : {"step", "steps", "steps_per_epoch", "samples", "ranks"})
    for (const char* text : {"", "-1", "1.5", "six", "6 ", "6\n", "9223372036854775808"}) {
      Contents odd = whole;
      odd.metadata[key] = text;
      expect_refusal(odd, std::string(" as '") + key + "', expected a number");
    }
  const auto refuse = [&](const std::string& key, const std::string& text,
                          const std::string& what) {
    Contents odd = whole;
    odd.metadata[key] = text;
    expect_refusal(odd, what);
  };
  refuse("step", "7", "at step 7 of 6");
  refuse("steps_per_epoch", "4", "of a run of 4 steps in an epoch, this one has 3: other data?");
  refuse("steps_per_epoch", "0", "of a run of 0 steps in an epoch");
  refuse("ranks", "2", "tensor 'random' is int64 (1, 2), expected int64 (2, 2)");
  refuse("ranks", "0", "'ranks' as 0, expected at least 1");
  refuse("options", "[]", "its options cannot be read");
  refuse("options", "{", "its options cannot be read");
  refuse("options", "{}", "nothing, this one has");
  refuse("options", R"({"lr":)" + std::string(100000, '[') + std::string(100000, ']') + "}", "");
  std::string options = whole.metadata.at("options");
  options.insert(1, R"("odd\nname":1,)");
  refuse("options", options, "an option 'odd\\nname', which is unknown");
  refuse("optimizer.group.0.lr", "-1", "lr");
  refuse("optimizer.group.0.momentum", "nan", "momentum");
}

TEST_F(CheckpointFile, TheRowsOfMetricsAreThoseOfTheRun) {
  const Contents whole = finished_run();  // rows of the steps 2, 3, 4 and 6
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const auto refuse = [&](std::int64_t row, std::int64_t column, double value,
                          const std::string& what) {
    Contents odd = whole;
    Tensor& rows = odd.tensor("rows");
    rows = rows.clone();
    rows.data<double>()[row * rows.size(1) + column] = value;
    expect_refusal(odd, what);
  };
  for (const double value : {-1.0, 0.0, nan, infinity, 1e300}) {
    refuse(1, 0, value, "row 1 is of step 3 in epoch ");
    refuse(1, 1, value, "row 1 is of step ");
  }
  refuse(1, 1, 2, "row 1 is of step 2");  // as row 0
  refuse(3, 1, 7, "row 3 is of step 7");
  Contents odd = whole;
  odd.tensor("rows") = zeros({4, 8}, {.dtype = float64});
  expect_refusal(odd, "tensor 'rows' is float64 (4, 8), expected float64 (-1, 9)");
}

// A run of an earlier version may have saved such weights.
TEST_F(CheckpointFile, NumbersThatAreNotFiniteAreRefused) {
  const Contents whole = finished_run();
  for (const char* name : {"model.conv1.weight", "model.bn1.running_var", "optimizer.0.momentum"})
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      Contents odd = whole;
      const bool is_known = std::ranges::any_of(
          whole.tensors, [&](const auto& entry) { return entry.first == name; });
      ASSERT_TRUE(is_known) << name;
      odd.tensor(name) = odd.tensor(name).clone();
      odd.tensor(name).flatten().slice(0, 0, 1).fill_(value);
      expect_refusal(odd, std::string("tensor '") + name + "' has numbers that are not finite");
    }
}

TEST_F(CheckpointFile, AFolderInItsPlaceIsRefused) {
  options_.resume = true;
  fs::create_directories(checkpoint_path(options_));
  EXPECT_THROW(train_to_the_end(), ErrorOnAllRanks);
}

}  // namespace
}  // namespace tutti
