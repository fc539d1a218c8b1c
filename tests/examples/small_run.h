// Runs of the trainer that take less than a second, for the tests of train() and of what it leaves.
#pragma once

#include "temporary_folder.h"
#include "train/trainer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <string>

namespace tutti::test {

/// Returns 30 images: three batches of 10, which three ranks share unevenly.
inline const examples::TrainingData& even_data() {
  static const examples::TrainingData data =
      examples::make_synthetic({.train = 30, .test = 13, .channels = 2, .size = 8});
  return data;
}

/// Returns one image more than two batches have: all ranks but one get nothing of the third batch.
inline const examples::TrainingData& odd_data() {
  static const examples::TrainingData data =
      examples::make_synthetic({.train = 21, .test = 13, .channels = 2, .size = 8});
  return data;
}

inline examples::TrainOptions small_options() {
  examples::TrainOptions options;
  options.epochs = 2;
  options.batch_size = 10;
  options.threads = 1;
  options.optimizer.lr = 0.05;
  options.log_every = 1;
  options.out = "";
  return options;
}

/// Returns the results of all ranks; rank 0 writes to `screen`.
inline std::vector<examples::TrainResult> train_on(int ranks, const examples::TrainOptions& options,
                                                   const examples::TrainingData& data = even_data(),
                                                   std::FILE* screen = nullptr) {
  std::vector<examples::TrainResult> results(static_cast<std::size_t>(ranks));
  distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
    results[static_cast<std::size_t>(group.rank())] = train(options, data, group, screen);
  });
  return results;
}

/// Returns what a page report.html holds of its run.
inline nlohmann::json report_json(const std::string& page) {
  const std::string before = "<script id=\"run\" type=\"application/json\">";
  const std::size_t begin = page.find(before) + before.size(), end = page.find("</script>", begin);
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
  return nlohmann::json::parse(page.substr(begin, end - begin));
}

/// A screen whose text a test can read.
class Screen {
 public:
  ~Screen() { std::fclose(file_); }
  std::FILE* file() const { return file_; }
  std::string text() const {
    std::rewind(file_);
    std::string all;
    std::array<char, 4096> part;
    while (const std::size_t size = std::fread(part.data(), 1, part.size(), file_))
      all.append(part.data(), size);
    return all;
  }

 private:
  std::FILE* file_ = std::tmpfile();
};

}  // namespace tutti::test
