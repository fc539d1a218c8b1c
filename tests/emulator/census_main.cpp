// The census of a training step of ResNet-50, without a GPU.
//   step_census                     prints the counts and fails where one is above its budget
//   step_census --calls [IMAGES [RANKS]]
//                                   prints every call of a step with the layer that makes it
//   step_census --tables            prints the tables of benchmarks/results/step_census.md
//   step_census --compare FILE      fails where the tables in the file are not those
//   step_census --write FILE        writes them into the file
#include "emulator.h"
#include "step_census.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>

using namespace emulator;
using namespace emulator::census;

namespace {

constexpr const char* begin_mark =
    "<!-- census: step_census --write benchmarks/results/step_census.md -->\n";
constexpr const char* end_mark = "<!-- end of the census -->\n";

void print_calls(std::int64_t images, int ranks) {
  const Question question{.images = images, .ranks = ranks};
  std::size_t peak = 0;
  for (const Call& call : record_step(question, peak)) {
    std::string where;
    for (const std::string& span : call.spans) where += (where.empty() ? "" : "/") + span;
    fmt::print("{}\t{}\tgrid {} x {} x {}\tblock {}\tshared {}\t{} bytes\n", where, call.name,
               call.grid.x, call.grid.y, call.grid.z, call.block.x, call.shared_bytes, call.bytes);
  }
}

std::int64_t convolutions(const StepCensus& census) {
  std::int64_t count = 0;
  for (const Row& row : census.rows) count += row.kind == Kind::convolution ? row.calls : 0;
  return count;
}

int check_budgets() {
  const StepCensus census = count_step({});
  for (const Row& row : census.rows)
    fmt::print("{:>5}  {:10.1f} MB  {}\n", row.calls, row.bytes / 1e6, row.name);
  // A census that has lost sight of the layers would be below every budget.
  int failures = census.norm_layers != 53 || convolutions(census) != 158;
  if (failures > 0)
    fmt::print(
        "expected 53 launches of moments_kernel and 158 convolutions, got {} and {}; has a "
        "kernel another name?\n",
        census.norm_layers, convolutions(census));
  for (const Budget& budget : budgets(census)) {
    const bool fits = budget.counted <= budget.most;
    failures += !fits;
    fmt::print("{}: {}, of at most {}{}\n", budget.what, budget.counted, budget.most,
               fits ? ""
                    : "  <-- above its budget: take the launch out, or say in the commit "
                      "why the budget rises");
  }
  return failures > 0;
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int compare_or_write(const std::string& path, bool writes) {
  const std::string text = contents_of(path);
  const std::size_t from = text.find(begin_mark), to = text.find(end_mark);
  if (from == text.npos || to == text.npos)
    fatal(fmt::format("{}: expected the lines\n{}{}", path, begin_mark, end_mark));
  const std::string made = text.substr(0, from) + begin_mark + tables() + text.substr(to);
  if (made == text) return 0;
  if (writes) {
    std::ofstream(path) << made;
    return 0;
  }
  fmt::print("the census in {} is not that of these sources; run: step_census --write {}\n", path,
             path);
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.empty()) return check_budgets();
  if (words[0] == "--tables") return std::fputs(tables().c_str(), stdout) < 0;
  if (words[0] == "--calls") {
    print_calls(words.size() > 1 ? std::stoll(words[1]) : 32,
                words.size() > 2 ? std::stoi(words[2]) : 2);
    return 0;
  }
  if (words.size() == 2 && words[0] == "--compare") return compare_or_write(words[1], false);
  if (words.size() == 2 && words[0] == "--write") return compare_or_write(words[1], true);
  fatal(
      "step_census: expected no argument, --calls [IMAGES [RANKS]], --tables, --compare FILE or "
      "--write "
      "FILE");
}
