// A case of ../distributed/diverging_rank_case.h over processes: each rank prints whether its error
// names the layer, and else the error. Run by ctest under mpirun. Usage: mpi_diverging_rank FAULT.
#include "../distributed/diverging_rank_case.h"

#include <cstdio>

using namespace tutti;
using namespace std::chrono_literals;

int main(int, char** argv) {
  const std::string fault = argv[1];
  const bool at_deadline = fault == "eval" || fault == "forward" || fault == "busy";
  const ProcessGroup group = ProcessGroup::from_environment(
      at_deadline ? std::chrono::seconds(test::diverging_rank_timeout) : 30s);
  try {
    test::diverge(fault, group);
  } catch (const Error& error) {
    const std::string text = error.what();
    bool is_named = true;
    for (const std::string& word : test::expected_words(fault, group))
      if (text.find(word) == std::string::npos) {
        std::fprintf(stderr, "rank %d: '%s' is missing\n", group.rank(), word.c_str());
        is_named = false;
      }
    // std::fprintf of glibc 2.37 would let the other rank write in the middle of the text.
    const std::string line =
        fmt::format("rank {} {} the layer: {}\n", group.rank(), is_named ? "names" : "hides", text);
    std::fputs(line.c_str(), stderr);
    // The launcher ends the other process with this one; a busy rank 1 gets its error later.
    std::this_thread::sleep_for(fault == "busy" ? 8s : 2s);
    return 3;
  }
  return 0;
}
