#include "operations.h"

#include "devices.h"
#include "training.h"

#include <tutti/core/create.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace tutti::simulator {
namespace {

using distributed::ReduceOp;

enum Operation { sum, mean, least, largest, broadcast, gather, scatter };

// A rank of the world gives its number plus this at an element. Sums over 1,024 ranks are exact.
double of_element(std::int64_t i) { return static_cast<double>(i % 4099); }

// A collective that is under way, and what must come of it.
struct Call {
  distributed::Work work;
  Tensor result;
  std::function<double(std::int64_t)> expected;
  bool is_on_device = false;
};

// Starts an operation on `n` elements, or on seven times as many where each rank gives or takes a
// part: the limit of small data counts the part.
Call start(const ProcessGroup& group, const std::vector<int>& members, Operation operation,
           std::int64_t n, bool is_on_device = false) {
  const std::int64_t size = group.size(), me = group.rank(), part = 7 * n / size + 1;
  const int own = members.at(static_cast<std::size_t>(me));
  is_on_device = is_on_device && size > 1;  // nothing is sent, but copied on the device
  if (own != this_rank()) throw std::runtime_error("a group of other ranks");
  const auto given = [&](const Shape& shape, DType dtype) {
    std::vector<double> values(static_cast<std::size_t>(numel(shape)));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = own + of_element(static_cast<std::int64_t>(i));
    return tensor(values, shape, {.dtype = dtype});
  };
  const auto place = [&](const Tensor& x) { return is_on_device ? on_device(x) : x; };
  const auto reduce = [&](ReduceOp op, DType dtype, auto expected) {
    const Tensor x = given({n}, dtype);
    return Call{group.all_reduce(place(x), op), x, expected, is_on_device};
  };
  const double all = std::accumulate(members.begin(), members.end(), 0.0),
               ranks = static_cast<double>(size);
  const auto is_sum = [=](std::int64_t i) { return all + ranks * of_element(i); };
  const auto plus = [](int rank) { return [=](std::int64_t i) { return rank + of_element(i); }; };
  switch (operation) {
    case sum: return reduce(ReduceOp::sum, float32, is_sum);
    case mean:
      return reduce(ReduceOp::mean, float64, [=](std::int64_t i) { return is_sum(i) / ranks; });
    case least: return reduce(ReduceOp::min, int64, plus(std::ranges::min(members)));
    case largest: return reduce(ReduceOp::max, float32, plus(std::ranges::max(members)));
    case broadcast: {
      const Tensor x = given({n}, float32);
      return {group.broadcast(place(x), static_cast<int>(size) - 1), x, plus(members.back()),
              is_on_device};
    }
    case gather: {
      const Tensor all_parts = zeros({size, part});
      return {group.all_gather(place(given({part}, float32)), place(all_parts)), all_parts,
              [=](std::int64_t i) {
                return members[static_cast<std::size_t>(i / part)] + of_element(i % part);
              },
              is_on_device};
    }
    default: {
      const Tensor own_part = zeros({part});
      return {group.reduce_scatter(place(given({size, part}, float32)), place(own_part)), own_part,
              [=](std::int64_t i) { return is_sum(me * part + i); }, is_on_device};
    }
  }
}

void finish(Call& call) {
  if (call.is_on_device) wait_for_result(call.work);
  else call.work.wait();
  const std::vector<double> values = to_vector(call.result);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (const double expected = call.expected(static_cast<std::int64_t>(i)); values[i] != expected)
      throw std::runtime_error(fmt::format("element {} of {} is {} instead of {}", i, values.size(),
                                           values[i], expected));
}

// Every second rank waits for the calls in the other order.
void finish_all(std::vector<Call> calls) {
  if (this_rank() % 2) std::ranges::reverse(calls);
  for (Call& call : calls) finish(call);
}

}  // namespace

std::vector<int> members_of(const std::string& group, const Layout& layout) {
  const std::vector<int> hosts = layout.hosts();
  const bool is_host = group.starts_with("world/host"), is_split = group.starts_with("world/split");
  const int number = is_host || is_split ? std::stoi(group.substr(is_host ? 10 : 11)) : 0;
  std::vector<int> members;
  for (int r = 0; r < layout.ranks(); ++r)
    if ((!is_split || r % 2 == number) &&
        (!is_host || hosts[static_cast<std::size_t>(r)] == number))
      members.push_back(r);
  if (is_split) std::ranges::reverse(members);
  return members;
}

void sum_over_world(const ProcessGroup& world, std::int64_t elements) {
  Call call = start(world, distributed::all_ranks(world.size()), sum, elements);
  finish(call);
}

Job simulate_operations(const Layout& layout, std::uint64_t seed, int program) {
  return simulate(layout, seed, 120 * second, [&](int rank) -> std::uint64_t {
    const ProcessGroup world = join_world(rank, layout.ranks());
    if (layout.has_devices) use_device(world);
    std::vector groups = {world, world.split(rank % 2, -rank), world.split_by_host()};
    std::vector<Call> calls;
    for (int is_large = 0; is_large < 2; ++is_large)
      for (std::size_t g = 0; g < groups.size(); ++g)
        for (int is_on_device = 0; is_on_device <= layout.has_devices; ++is_on_device)
          calls.push_back(
              start(groups[g], members_of(groups[g].name(), layout),
                    static_cast<Operation>((program + is_large + static_cast<int>(g)) % 7),
                    is_large ? 20'000 : 50, is_on_device));
    finish_all(std::move(calls));
    groups.erase(groups.begin() + 1 + rank % 2);  // in another order than on other ranks
    mark();
    if (rank == layout.ranks() / 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    world.barrier();
    return 0;
  });
}

Job simulate_large_operations(const Layout& layout, std::uint64_t seed, std::int64_t elements) {
  return simulate(layout, seed, 120 * second, [&](int rank) -> std::uint64_t {
    const ProcessGroup world = join_world(rank, layout.ranks());
    std::vector<Call> calls;
    for (const Operation operation : {sum, broadcast, gather, scatter})
      calls.push_back(start(world, distributed::all_ranks(world.size()), operation,
                            operation < gather ? elements : elements / 7));
    finish_all(std::move(calls));
    return 0;
  });
}

}  // namespace tutti::simulator
