// main() of a fuzz target where libFuzzer is not linked. It calls the target with every file of a
// corpus and with random mutations of these files, so that a machine without clang tests the
// readers too.
//
//   NAME_fuzz CORPUS [MUTATIONS [SEED]]    NAME_fuzz FILE
//
// The seed is printed. An input that ends the program is kept in TMPDIR.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

std::string current;  // the input that the target reads now
std::string kept;     // the path under which keep_input() saves it
std::string report;   // what keep_input() prints

// A signal handler, so it calls only functions that are safe in one.
void keep_input(int signal) {
  const int file = ::open(kept.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file >= 0 && ::write(file, current.data(), current.size()) >= 0)
    (void)!::write(STDERR_FILENO, report.data(), report.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const std::string& input) {
  constexpr unsigned seconds = 30;
  current = input;
  ::alarm(seconds);  // SIGALRM ends the program where the target does not end
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()), current.size());
  ::alarm(0);
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::size_t below(Random& random, std::size_t bound) {
  return static_cast<std::size_t>(random() % std::max<std::size_t>(bound, 1));
}

// Replaces a number in the text, if there is one, by one at which readers go wrong.
void change_number(std::string& input, Random& random) {
  static const std::vector<std::string> numbers{"-1",
                                                "0",
                                                "1.5",
                                                "1e400",
                                                "nan",
                                                "4294967295",
                                                "9223372036854775807",
                                                "9223372036854775808",
                                                "18446744073709551615",
                                                "18446744073709551616"};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto begin =
      std::find_if(input.begin() + static_cast<std::ptrdiff_t>(below(random, input.size())),
                   input.end(), is_digit);
  const auto end = std::find_if_not(begin, input.end(), is_digit);
  if (begin != end) input.replace(begin, end, numbers[below(random, numbers.size())]);
}

void mutate_once(std::string& input, const std::string& other, Random& random) {
  const std::size_t at = below(random, input.size()),
                    count = 1 + below(random, random() % 2 == 0 ? 4 : 400);
  switch (random() % 8) {
    case 0:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(random());
      break;
    case 2: input.insert(at, std::string(count, random() % 2 == 0 ? '\0' : '\xff')); break;
    case 3: input.erase(at, count); break;
    case 4: input.insert(at, input.substr(below(random, input.size()), count)); break;
    case 5: input.insert(at, other.substr(below(random, other.size()), count)); break;
    case 6: {  // erases the rest of a line
      const std::size_t end = input.find('\n', at);
      input.erase(at, end == std::string::npos ? end : end - at + 1);
      break;
    }
    default: change_number(input, random);
  }
}

std::string mutate(std::string input, const std::string& other, Random& random) {
  constexpr std::size_t longest = 1 << 16;
  for (std::size_t i = 0, changes = 1 + below(random, 4); i < changes; ++i)
    mutate_once(input, other, random);
  return input.substr(0, longest);
}

// Makes an allocation that no small input needs fail, as libFuzzer's -rss_limit_mb does. The
// sanitizers reserve more memory than that.
void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr rlim_t bytes = rlim_t{2} << 30;
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_DATA, &limit);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || !fs::exists(argv[1])) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS [SEED]], or %s FILE\n", argv[0], argv[0]);
    return 2;
  }
  const fs::path corpus = argv[1];
  const std::string name = fs::path(argv[0]).filename().string();
  kept = (fs::temp_directory_path() / (name + "-failed-" + std::to_string(::getpid()))).string();
  report = "replay: the input that failed is in " + kept + "\n";
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM})
    std::signal(signal, keep_input);
  limit_memory();
  std::vector<fs::path> files;
  if (fs::is_directory(corpus))
    for (const auto& entry : fs::directory_iterator(corpus)) files.push_back(entry.path());
  else files.push_back(corpus);
  std::sort(files.begin(), files.end());  // a seed has to give the same inputs everywhere
  std::vector<std::string> inputs{""};
  for (const fs::path& file : files) inputs.push_back(contents(file));
  for (const std::string& input : inputs) run(input);
  std::printf("%s: %zu inputs of the corpus\n", name.c_str(), inputs.size());
  if (!fs::is_directory(corpus)) return 0;

  const std::size_t mutations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 3000;
  const std::uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10)
                                      : std::random_device()();
  std::printf("%zu mutations of them; repeat with: %s %s %zu %llu\n", mutations, argv[0],
              corpus.c_str(), mutations, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Random random(seed);
  for (std::size_t i = 0; i < mutations; ++i)
    run(mutate(inputs[below(random, inputs.size())], inputs[below(random, inputs.size())], random));
}
