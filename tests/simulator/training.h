// The training that the simulator's jobs run: a step of SyncBatchNorm and a bucket on every rank.
#pragma once

#include "job.h"

#include <tutti/distributed/process_group.h>

namespace tutti::simulator {

constexpr std::chrono::seconds timeout{5};

/// Lets the calling rank join the world, and marks the time.
distributed::ProcessGroup join_world(int rank, int size);
/// Simulates a job that trains. Every rank marks the end of its start, its layer and its bucket.
Job simulate_training(const Layout& layout, std::uint64_t seed);
/// Expects that every rank has succeeded with the same result, and that no rank printed anything.
void expect_success(const Job& job);

}  // namespace tutti::simulator
