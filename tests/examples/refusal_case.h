// What ends or refuses a run of the trainer on every rank, with the same text, so that no rank
// waits for another. It runs on threads (batch_parts_test.cpp) and on processes (tests/mpi).
#pragma once

#include "distributed/messages.h"
#include "train/trainer.h"
#include "train/training_batches.h"

#include <tutti/distributed/broadcast_text.h>

#include <gtest/gtest.h>

namespace tutti::test {

/// Every rank calls it with a folder that rank 0 can write to.
inline void expect_refusals_on_every_rank(const ProcessGroup& group, const std::string& folder) {
  using namespace examples;
  const auto expect_text = [&](const std::string& text, const std::vector<std::string>& parts) {
    expect_contains(text, parts);
    EXPECT_EQ(text, distributed::broadcast_text(group, text, "what rank 0 says"));
  };
  // Images of 4 x 4 pixels, of which the last stage of a ResNet-20 sees one position.
  const auto tiny = [](std::int64_t count, std::uint64_t seed) {
    return make_synthetic({.train = count, .test = 5, .channels = 1, .size = 4, .seed = seed});
  };
  TrainOptions options;
  options.epochs = 1;
  options.batch_size = 10 * group.size();
  options.threads = 1;
  const std::int64_t full = 2 * options.batch_size;

  options.out = folder;
  train(options, tiny(full, 1), group, nullptr);
  options.resume = true;
  options.epochs = 2;
  expect_text(message_of<ErrorOnAllRanks>([&] { train(options, tiny(full, 2), group, nullptr); }),
              {"it is of a run with train_fingerprint = "});
  options.optimizer.lr = 1e45;
  options.schedule.name = "one_cycle";
  options.log_every = 1000;
  expect_text(message_of<Error>([&] { train(options, tiny(full, 1), group, nullptr); }),
              {"not finite at step 4"});
  group.barrier();  // before the folder is removed
}

}  // namespace tutti::test
