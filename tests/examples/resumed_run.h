// The comparison of a run that is stopped and resumed with one that is not.
#pragma once

#include "distributed/equal_bits.h"
#include "small_run.h"

#include <tutti/distributed/diagnostics/fault_injection.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <vector>

namespace tutti::test {

namespace fs = std::filesystem;

// Compares what two rows say, apart from times.
inline void expect_equal_rows(const examples::Metrics& a, const examples::Metrics& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.train_loss, b.train_loss) << "step " << b.step;
  EXPECT_EQ(a.train_accuracy, b.train_accuracy) << "step " << b.step;
  EXPECT_EQ(a.learning_rate, b.learning_rate) << "step " << b.step;
  EXPECT_EQ(a.test_loss, b.test_loss) << "step " << b.step;
  EXPECT_EQ(a.test_accuracy, b.test_accuracy) << "step " << b.step;
}

// Compares two results: weights and rows, apart from times.
inline void expect_equal_results(const examples::TrainResult& a, const examples::TrainResult& b) {
  expect_equal_bits(a.state, b.state);
  ASSERT_EQ(a.rows.size(), b.rows.size());
  for (std::size_t i = 0; i < b.rows.size(); ++i) expect_equal_rows(a.rows[i], b.rows[i]);
}

// Compares a run that a fault stops, and that is resumed from its last checkpoint, with one that
// nothing stops. The fault comes `from_end` collectives before the end; a step has about three.
inline void expect_resumes_to_the_bit(examples::TrainOptions options,
                                      const examples::TrainingData& data, std::int64_t from_end) {
  const TemporaryFolder temporary("resume");
  const fs::path folder = temporary.path();
  options.epochs = 3;
  options.log_every = 2;
  options.out = (folder / "whole").string();
  std::int64_t collectives = 0;
  std::vector<examples::TrainResult> whole(2);
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    whole[static_cast<std::size_t>(group.rank())] = examples::train(options, data, group, nullptr);
    if (group.rank() == 0) collectives = group.traffic().calls;
  });
  options.out = (folder / "parts").string();
  {
    const distributed::InjectFault fault({.rank = 1, .collective = collectives - from_end});
    EXPECT_THROW(train_on(2, options, data), Error);
  }
  EXPECT_TRUE(fs::exists(folder / "parts" / "checkpoint.safetensors"));
  options.resume = true;
  const auto parts = train_on(2, options, data);

  for (std::size_t r = 0; r < 2; ++r) expect_equal_results(parts[r], whole[r]);
  EXPECT_EQ(content(folder / "parts" / "model.safetensors"),
            content(folder / "whole" / "model.safetensors"));
  EXPECT_EQ(report_json(content(folder / "parts" / "report.html")).at("test"),
            report_json(content(folder / "whole" / "report.html")).at("test"));
  std::ifstream metrics(folder / "parts" / "metrics.jsonl");
  std::size_t lines = 0;
  for (std::string line; std::getline(metrics, line); ++lines)
    EXPECT_EQ(nlohmann::json::parse(line).at("train_loss"), whole[0].rows.at(lines).train_loss);
  EXPECT_EQ(lines, whole[0].rows.size());

  // Resuming a finished run changes nothing.
  const auto again = train_on(2, options, data);
  expect_equal_bits(again[0].state, whole[0].state);
}

}  // namespace tutti::test
