// The program of a job that calls every collective operation, small and large, in the world and in
// groups of it: some calls are under way together, and every element differs from its neighbours
// and from those of other ranks.
#pragma once

#include "job.h"

#include <tutti/distributed/process_group.h>

namespace tutti::simulator {

/// The number of programs. Together they make every call; each makes two in every group.
constexpr int operation_programs = 7;

/// Simulates a job that runs one of these programs. A rank whose result is wrong throws.
Job simulate_operations(const Layout& layout, std::uint64_t seed, int program);
/// Simulates a job in which every call is of the world and has so many elements.
Job simulate_large_operations(const Layout& layout, std::uint64_t seed, std::int64_t elements);
/// Sums so many elements over the world, and throws where a sum is wrong.
void sum_over_world(const ProcessGroup& world, std::int64_t elements);
/// Returns the members of a group that these programs make, by its name, as ranks in the world. In
/// "world/split0" and "world/split1" they are every second rank, the last one first.
std::vector<int> members_of(const std::string& group, const Layout& layout);

}  // namespace tutti::simulator
