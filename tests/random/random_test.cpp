// Compares every public operation with a float64 reference, on random inputs for a given time, and
// every one of them on an empty batch. A failure prints the command that repeats it:
//
//   TUTTI_RANDOM_CASE='SEED OPERATION'  compares this one trial only
//   TUTTI_RANDOM_SEED=SEED              starts from this seed instead of a fresh one
//   TUTTI_RANDOM_SECONDS=N              goes on for N seconds in each family; the default is 10
#include "../kernels/compare.h"
#include "check.h"

#include <tutti/core/parallel.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>

namespace tutti {
namespace {

using test::Family;
using test::Operation;

// The trials that every operation must have had when the time is over, so that a run cannot pass by
// doing nothing.
constexpr int least_trials = 10;

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

// Returns whether the operation differed from its reference.
bool differs(const Operation& operation, std::uint64_t seed) {
  const ::testing::TestResult& result =
      *::testing::UnitTest::GetInstance()->current_test_info()->result();
  const int before = result.total_part_count();
  check(operation, seed);
  return result.total_part_count() > before;
}

// Compares one trial of each operation after the other until the time is over. An operation that
// has differed is left out from then on.
void compare_for_some_time(const Family& family) {
  const std::string given = environment("TUTTI_RANDOM_SECONDS");
  const std::chrono::duration<double> budget(given.empty() ? 10 : std::stod(given));
  const auto start = std::chrono::steady_clock::now();
  const auto has_time = [&] { return std::chrono::steady_clock::now() - start < budget; };
  std::uint64_t seed = first_seed();
  std::vector<Operation> operations = family.operations;
  int trials = 0;
  for (; has_time() && !operations.empty(); ++trials)
    std::erase_if(operations,
                  [&](const Operation& operation) { return differs(operation, ++seed); });
  std::cout << trials << " trials of each of " << family.operations.size() << " operations"
            << std::endl;
  if (operations.empty()) return;
  EXPECT_GE(trials, least_trials) << "the time was over after " << budget.count()
                                  << " s; give it more by TUTTI_RANDOM_SECONDS";
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
  const std::uint64_t first = first_seed() % (std::uint64_t{1} << 32);
  for (const Operation& operation : GetParam().operations)
    for (std::uint64_t i = 0; i < 20; ++i)
      if (differs(operation, (first + i) * test::empty_batch_seeds)) break;
}

INSTANTIATE_TEST_SUITE_P(Reference, Random, ::testing::ValuesIn(test::families()),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace tutti
