// Compares every public operation with a float64 reference, on random inputs for a given time, and
// every one of them on an empty batch. A failure prints the command that repeats it:
//
//   TUTTI_RANDOM_CASE='SEED OPERATION'  compares this one trial only
//   TUTTI_RANDOM_SEED=SEED              starts from this seed instead of a fresh one
//   TUTTI_RANDOM_SECONDS=N              goes on for N seconds in each family; the default is 10
//
// A family also goes on until each operation has had 10 trials, however slow the machine is, and
// has had its gradients compared along every path.
#include "../kernels/compare.h"
#include "check.h"

#include <tutti/core/parallel.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <set>

namespace tutti {
namespace {

using test::Family;
using test::Operation;

// The trials that every operation has at least, so that a run cannot pass by doing nothing.
constexpr int least_trials = 10;
// The trials within which every operation must have had its gradients compared along every path. In
// some operations few trials compare them: inputs are integers, or a ReLU is too near 0.
constexpr int most_trials_for_paths = 1000;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::uint64_t first_seed() {
  const std::string given = environment("TUTTI_RANDOM_SEED");
  const std::uint64_t seed = given.empty() ? std::random_device()() : std::stoull(given);
  std::cout << "TUTTI_RANDOM_SEED=" << seed << std::endl;
  return seed;
}

// The trial that TUTTI_RANDOM_CASE asks for; without an operation if it asks for none.
struct Repeated {
  std::uint64_t seed = 0;
  std::string operation;

  Repeated() {
    const std::string text = environment("TUTTI_RANDOM_CASE");
    if (text.empty()) return;
    std::size_t end = 0;
    seed = std::stoull(text, &end);
    operation = text.substr(std::min(end + 1, text.size()));
  }
};

// An operation, and the paths along which its gradients were compared.
struct Compared {
  Operation operation;
  std::set<test::Path> paths = {};

  bool has_all_paths() const {
    return !operation.traits.is_differentiable || paths.size() == test::path_count;
  }
  // Compares one trial. Returns whether the operation differed from its reference.
  bool differs(std::uint64_t seed) {
    const ::testing::TestResult& result =
        *::testing::UnitTest::GetInstance()->current_test_info()->result();
    const int before = result.total_part_count();
    if (const auto path = check(operation, seed)) paths.insert(*path);
    return result.total_part_count() > before;
  }
};

// Compares one trial of each operation after the other until the time is over and each has had its
// least trials and paths. An operation that has differed is left out from then on.
void compare_for_some_time(const Family& family) {
  const std::string given = environment("TUTTI_RANDOM_SECONDS");
  const std::chrono::duration<double> budget(given.empty() ? 10 : std::stod(given));
  const auto start = std::chrono::steady_clock::now();
  const auto has_time = [&] { return std::chrono::steady_clock::now() - start < budget; };
  std::uint64_t seed = first_seed();
  std::vector<Compared> operations;
  for (const Operation& operation : family.operations) operations.push_back({operation});
  int trials = 0;
  const auto lacks_paths = [&] {
    return trials < most_trials_for_paths &&
           !std::ranges::all_of(operations, &Compared::has_all_paths);
  };
  for (; !operations.empty() && (has_time() || trials < least_trials || lacks_paths()); ++trials)
    std::erase_if(operations, [&](Compared& compared) { return compared.differs(++seed); });
  std::cout << trials << " trials of each of " << family.operations.size() << " operations"
            << std::endl;
  for (const Compared& compared : operations)
    EXPECT_TRUE(compared.has_all_paths())
        << compared.operation.name << ": in " << trials << " trials gradients were compared along "
        << compared.paths.size() << " of " << test::path_count << " paths";
}

class Random : public ::testing::TestWithParam<Family> {};

TEST_P(Random, OperationsEqualTheirReference) {
  const test::Threads threads(1);
  const Repeated repeated;
  if (repeated.operation.empty()) return compare_for_some_time(GetParam());
  bool is_known = false;
  for (const Family& family : test::families())
    for (const Operation& operation : family.operations) {
      if (operation.name != repeated.operation) continue;
      is_known = true;
      if (family.name == GetParam().name) check(operation, repeated.seed);
    }
  EXPECT_TRUE(is_known) << "TUTTI_RANDOM_CASE: no operation is called '" << repeated.operation
                        << "'";
}

TEST_P(Random, OperationsTakeAnEmptyBatch) {
  if (!Repeated().operation.empty()) GTEST_SKIP() << "TUTTI_RANDOM_CASE asks for one trial";
  std::uint64_t seed = first_seed();
  for (const Operation& operation : GetParam().operations) {
    Compared compared{operation};
    for (int i = 0; i < 20; ++i) {
      while (!test::SeedChoice(++seed).empty_batch) {}
      if (compared.differs(seed)) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, Random, ::testing::ValuesIn(test::families()),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace tutti
