// The program train_resnet as a user runs it: help, wrong flags, bad data, a short run.
#include "temporary_folder.h"
#include "trainer_program.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

using tutti::test::Outcome;
using tutti::test::output_of;

Outcome run(const std::string& arguments, int stream) {
  return tutti::test::run_trainer(arguments, stream);
}

// Runs the trainer where no file can have more than so many bytes, as if its disk were full then.
Outcome run_on_full_disk(std::int64_t bytes, const std::string& arguments) {
  const std::string command = "trap '' XFSZ; exec prlimit --fsize=" + std::to_string(bytes) + " " +
                              TRAIN_RESNET + " " + arguments + " 2>&1 >/dev/null";
  return output_of(command);
}

void expect_refusal(const std::string& arguments, const std::string& says) {
  const Outcome outcome = run(arguments, 2);
  EXPECT_EQ(outcome.code, 2) << arguments;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  EXPECT_NE(outcome.output.find(says), std::string::npos) << outcome.output;
}

// A compressed file of 100 images whose second half got lost.
void write_truncated(const std::string& path) {
  std::string bytes{0, 0, 8, 3, 0, 0, 0, 100, 0, 0, 0, 28, 0, 0, 0, 28};
  for (unsigned i = 0; i < 100 * 28 * 28; ++i)
    bytes += static_cast<char>(i * i * 2654435761u >> 24);
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  fs::resize_file(path, fs::file_size(path) / 2);
}

// Each test runs in a folder of its own, because the trainer's default run folder lies in the
// present one, where a test that runs beside this one would lock it.
class Command : public ::testing::Test {
 protected:
  Command() { fs::current_path(folder_); }
  ~Command() override { fs::current_path(before_); }
  const fs::path before_ = fs::current_path();
  const tutti::test::TemporaryFolder temporary_{"command"};
  const std::string folder_ = temporary_.path();
};

// Returns what the help says about each flag, by its name. An explanation may begin on the line
// below its flag.
std::map<std::string, std::string> explanations(const std::string& help) {
  constexpr std::size_t column = 34;
  std::map<std::string, std::string> result;
  std::vector<std::string> current;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  -")) {
      const std::string names = line.substr(0, column);
      current.clear();
      const std::regex name("--[a-z-]+");
      for (std::sregex_iterator i(names.begin(), names.end(), name), end; i != end; ++i)
        current.push_back(i->str());
    }
    const bool explains = line.size() > column && line[column - 1] == ' ';
    for (const std::string& flag : current) result[flag] += explains ? line.substr(column) : "";
  }
  return result;
}

TEST_F(Command, HelpExplainsEveryFlag) {
  const Outcome outcome = run("--help", 1);
  EXPECT_EQ(outcome.code, 0);
  const auto explained = explanations(outcome.output);
  for (const char* flag : {"--dataset",
                           "--data",
                           "--model",
                           "--epochs",
                           "--max-steps",
                           "--batch-size",
                           "--ranks",
                           "--threads",
                           "--lr",
                           "--momentum",
                           "--nesterov",
                           "--no-nesterov",
                           "--weight-decay",
                           "--seed",
                           "--sync-bn",
                           "--no-sync-bn",
                           "--precision",
                           "--device",
                           "--log-every",
                           "--out",
                           "--trace",
                           "--resume",
                           "--overwrite",
                           "--version",
                           "--dry-run",
                           "--workers",
                           "--image-size",
                           "--bn-report",
                           "--recompute-statistics",
                           "--weights",
                           "--freeze",
                           "--test-only",
                           "--keep-best",
                           "--keep-last",
                           "--optimizer",
                           "--schedule",
                           "--warmup",
                           "--milestones",
                           "--gamma",
                           "--plateau-patience",
                           "--norm-decay",
                           "--zero-init",
                           "--no-norm-decay",
                           "--clip-norm",
                           "--ema",
                           "--label-smoothing",
                           "--mixup",
                           "--cutmix",
                           "--accumulate",
                           "--timeout",
                           "--check-files",
                           "--recompute-output"}) {
    EXPECT_TRUE(explained.contains(flag)) << flag << " is not in\n" << outcome.output;
  }
  EXPECT_TRUE(explained.contains("--sync-bn-scope")) << outcome.output;
  for (const auto& [flag, text] : explained) EXPECT_GE(text.size(), 10u) << flag << ": " << text;
}

TEST_F(Command, WrongFlagsAndValues) {
  expect_refusal("--frobnicate", "--frobnicate");
  expect_refusal("--epochs zero", "epochs");
  expect_refusal("--epochs 0", "epochs");
  expect_refusal("--batch-size -3", "batch-size");
  expect_refusal("--ranks 0", "ranks");
  expect_refusal("--epochs 9223372036854775807", "1000000");
  expect_refusal("--batch-size 0", "a number from 1 to 1048576, got 0");
  expect_refusal("--batch-size 9223372036854775807", "1048576");
  expect_refusal("--ranks 2000", "1024");
  expect_refusal("--threads 100000", "threads");
  expect_refusal("--lr nan", "expected a positive number, got nan");
  expect_refusal("--lr inf", "expected a positive number, got inf");
  expect_refusal("--momentum nan", "got nan");
  expect_refusal("--weight-decay inf", "got inf");
  expect_refusal("--seed -1", "got -1");
  expect_refusal("--dataset imagenet", "imagenet");
  expect_refusal("--precision float8", "float8");
  expect_refusal("--device tpu", "tpu");
  expect_refusal("--timeout 0", "a number from 0.1 to 1000000, got 0");
  expect_refusal("--timeout 5min", "got 5min");
  expect_refusal("--dataset folder --data . --image-size 5000", "4096");
  expect_refusal("--precision bf", "float32, bf16, fp16 or float64");
  expect_refusal("--workers -1", "workers");
  expect_refusal("--dry-run --check-files", "--check-files needs --dataset folder");
  expect_refusal("--out ''", "--out needs the name of a folder");
  expect_refusal("--data ''", "--data needs the name of a folder");
  expect_refusal("--weights ''", "--weights needs the name of a file");
  expect_refusal("--trace ''", "--trace needs the name of a file");
  expect_refusal("--out '~/x'", "write $HOME");
  expect_refusal("--sync-bn-scope 0", "expected world, host or a number of ranks, got '0'");
  expect_refusal("--sync-bn-scope host --no-sync-bn", "leave out one of the two");
  const std::string out = " --dataset synthetic --out " + folder_ + "/run";
  expect_refusal("--device cuda" + out, "CUDA");
  expect_refusal("--model resnet19" + out, "resnet19");
}

TEST_F(Command, NearMissesGetASuggestion) {
  expect_refusal("--momentun 0.9", "unknown argument --momentun (did you mean '--momentum'?)");
  expect_refusal("--ovewrite=1", "(did you mean '--overwrite'?)");
  expect_refusal("--no-sinc-bn", "(did you mean '--no-sync-bn'?)");
  expect_refusal("--dataset fashionmnist", "(did you mean 'fashion-mnist'?)");
  expect_refusal("--model resnet-50", "(did you mean 'resnet50'?)");
  expect_refusal("--precision bf61", "(did you mean 'bf16'?)");
  expect_refusal("--sync-bn-scope hosts", "a number of ranks, got 'hosts' (did you mean 'host'?)");
  EXPECT_EQ(run("--frobnicate", 2).output.find("did you mean"), std::string::npos);
}

TEST_F(Command, VersionSaysWhatItWasBuiltWith) {
  const Outcome outcome = run("--version", 1);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(outcome.output.starts_with("tutti ")) << outcome.output;
  for (const char* part : {"compiler", "oneDNN", "MPI", "CUDA", "NCCL", "vector instructions"})
    EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
}

TEST_F(Command, ADryRunDescribesTheRunAndWritesNothing) {
  const std::string out = folder_ + "/run";
  fs::create_directories(out);
  std::ofstream(out + "/metrics.jsonl") << "of an older run\n";
  const Outcome outcome =
      run("--dataset synthetic --batch-size 100 --ranks 2 --threads 1 --dry-run --out " + out, 1);
  EXPECT_EQ(outcome.code, 0);
  const auto figure = [&](const std::string& pattern) {
    std::smatch match;
    EXPECT_TRUE(std::regex_search(outcome.output, match, std::regex(pattern)))
        << pattern << " is not in\n"
        << outcome.output;
    return match.size() > 1 ? std::stod(match[1]) : -1;
  };
  EXPECT_NE(outcome.output.find("model resnet20: 269,722 parameters\n"), std::string::npos);
  EXPECT_EQ(figure("([0-9]+) steps in an epoch"), 21);
  EXPECT_EQ(figure("a rank with ([0-9]+) images"), 50);
  EXPECT_NEAR(figure("weights and running statistics +([0-9.]+) MB"), 1.085, 0.01);
  // The gradients and the momentum have the size of the weights.
  EXPECT_NEAR(figure("gradients, optimizer, metrics +([0-9.]+) MB"), 2.16, 0.3);
  // Backward needs at least the outputs of all convolutions, about 0.7 MB for an image.
  EXPECT_GT(figure("activations and temporaries +([0-9.]+) MB"), 35);
  EXPECT_LT(figure("together +([0-9.]+) MB"), 500);

  EXPECT_EQ(output_of("ls -A " + out).output, "metrics.jsonl\n");
  EXPECT_EQ(run("--dataset synthetic --threads 1 --dry-run --out " + folder_ + "/new", 1).code, 0);
  EXPECT_FALSE(fs::exists(folder_ + "/new"));
}

TEST_F(Command, ADryRunCountsTheMicroBatchesOfAStep) {
  const std::string output = run("--dataset synthetic --batch-size 100 --ranks 2 --threads 1 "
                                 "--accumulate 5 --ema 0.9 --dry-run --out " +
                                     folder_ + "/run",
                                 1)
                                 .output;
  EXPECT_NE(output.find("a rank with 10 images in a micro batch"), std::string::npos) << output;
  // Gradients, momentum and averages have the size of the weights.
  EXPECT_TRUE(std::regex_search(output, std::regex("optimizer, metrics +3.[2-4][0-9] MB")))
      << output;
}

TEST_F(Command, HelpListsTheExitCodes) {
  const std::string help = run("--help", 1).output;
  const std::size_t codes = help.find("Exit codes: 0 ");
  ASSERT_NE(codes, std::string::npos) << help;
  for (const char* code : {"; 1 ", "; 2 ", "; 3 "})
    EXPECT_NE(help.find(code, codes), std::string::npos) << code;
}

TEST_F(Command, OfAFlagGivenTwiceTheLastCounts) {
  EXPECT_EQ(run("--dataset synthetic --ranks 2 --batch-size 64 --threads 1 --max-steps 1 "
                "--precision bf16 --checkpoint-every 5 --out " +
                    folder_ + "/first --batch-size 16 --ranks 1 --precision float32 --out " +
                    folder_ + "/last",
                1)
                .code,
            0);
  EXPECT_FALSE(fs::exists(folder_ + "/first"));
  const auto config = nlohmann::json::parse(std::ifstream(folder_ + "/last/config.json"));
  EXPECT_EQ(config.at("ranks"), 1);
  EXPECT_EQ(config.at("batch_size"), 16);
  EXPECT_EQ(config.at("precision"), "float32");
  EXPECT_EQ(config.at("checkpoint_every"), 5);
}

// Returns the bytes of a file of a run.
std::string file_of(const std::string& run, const std::string& name) {
  return tutti::test::content(run + "/" + name);
}

TEST_F(Command, ResumeTakesTheFlagsThatAreNotGivenFromTheRunFolder) {
  const std::string flags =
      "--dataset synthetic --batch-size 128 --threads 1 --max-steps 18 --no-nesterov --lr 0.05 "
      "--freeze 'conv1.*,bn1.*' --schedule steps --milestones 1 --epochs 3 --precision bf16 ";
  const std::string whole = folder_ + "/whole", parts = folder_ + "/parts";
  ASSERT_EQ(run(flags + "--out " + whole, 1).code, 0);
  ASSERT_EQ(run(flags + "--max-steps 16 --ranks 1 --out " + parts, 1).code, 0);
  const Outcome resumed = run("--resume --max-steps 18 --out " + parts, 1);
  EXPECT_EQ(resumed.code, 0);
  for (const char* part : {"flags of ", "/parts/config.json: --dataset=synthetic ",
                           "--nesterov=false", "--freeze=conv1.*,bn1.*", "after step 16 of 18"})
    EXPECT_NE(resumed.output.find(part), std::string::npos) << resumed.output;
  EXPECT_EQ(file_of(parts, "model.safetensors"), file_of(whole, "model.safetensors"));
  const auto config = nlohmann::json::parse(file_of(parts, "config.json"));
  EXPECT_EQ(config.at("lr"), 0.05);
  EXPECT_EQ(config.at("max_steps"), 18);
  EXPECT_EQ(config.at("flags").at("--milestones"), "1");
  EXPECT_FALSE(config.at("flags").contains("--resume"));

  // What is given and differs is compared. A test of weights takes the data and the network alone.
  expect_refusal("--resume --batch-size 32 --out " + parts, "batch_size = 128, this one has 32");
  const Outcome tested = run("--test-only --out " + parts, 1);
  EXPECT_EQ(tested.code, 0) << tested.output;
  EXPECT_EQ(tested.output.find("--lr"), std::string::npos) << tested.output;
  std::ofstream(parts + "/config.json") << "{\"flags\": {\"--lr\": 3}}";
  expect_refusal("--resume --out " + parts, "cannot read the flags of the run from " + parts);
}

TEST_F(Command, BadDataAndRunFolder) {
  expect_refusal("--data " + folder_ + "/nowhere", folder_ + "/nowhere");
  expect_refusal("--data " + folder_, "train-images-idx3-ubyte");
  std::ofstream(folder_ + "/train-images-idx3-ubyte.gz") << "not what it seems";
  expect_refusal("--data " + folder_, "train-images-idx3-ubyte.gz");
  write_truncated(folder_ + "/train-images-idx3-ubyte.gz");
  expect_refusal("--data " + folder_, "train-images-idx3-ubyte.gz is truncated");
  expect_refusal("--dataset cifar10 --data " + folder_, "data_batch_1.bin");
  expect_refusal("--dataset folder --data " + folder_, folder_ + "/train is missing");
  expect_refusal("--dataset synthetic --out /dev/null/run", "/dev/null/run");
}

TEST_F(Command, AnErrorIsOneLineWithoutControlCharacters) {
  expect_refusal("--data '" + folder_ + "/no\nwhere\x1b[2J'", "/no\\nwhere\\u001b[2J is missing");
  expect_refusal("--dataset synthetic --out '/dev/null/\r\x07'", "/dev/null/\\u000d\\u0007:");
}

TEST_F(Command, AFullDiskIsExitCode1AndNamesTheFile) {
  const std::string out = folder_ + "/run",
                    arguments =
                        "--dataset synthetic --batch-size 16 --threads 1 --overwrite --out " + out;
  const auto expect_failure = [](const Outcome& outcome, const std::string& file) {
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
    EXPECT_NE(outcome.output.find(file), std::string::npos) << outcome.output;
  };
  const std::string many_rows = arguments + " --max-steps 30 --log-every 1";
  expect_failure(run_on_full_disk(100, arguments), out + "/config.json': File too large");
  expect_failure(run_on_full_disk(3000, many_rows), out + "/metrics.jsonl': File too large");
  expect_failure(run_on_full_disk(500'000, arguments + " --max-steps 1"),
                 out + "/checkpoint.safetensors");
  EXPECT_FALSE(fs::exists(out + "/checkpoint.safetensors"));
  expect_failure(output_of(std::string(TRAIN_RESNET) + " " + arguments + " 2>&1 >/dev/full"),
                 "standard output: No space left on device");
  expect_failure(output_of(std::string(TRAIN_RESNET) + " --help 2>&1 >/dev/full"),
                 "standard output: No space left on device");
  EXPECT_EQ(output_of(std::string(TRAIN_RESNET) + " --frobnicate 2>/dev/full").code, 2);
  expect_failure(run(arguments + " --trace /dev/full", 2), "/dev/full");
}

TEST_F(Command, RanksThatAreThreadsWaitForEachOtherAsLongAsTheTimeoutSays) {
  const Outcome outcome = output_of(
      "TUTTI_FAULT=rank=1,group=world/normalization,collective=9,action=delay,delay=3000 " +
      std::string(TRAIN_RESNET) +
      " --dataset synthetic --max-steps 2 --batch-size 16 --ranks 2 --threads 1 --timeout 0.5 "
      "--out " +
      folder_ + "/run 2>&1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.output.find("rank 1 did not arrive within 500 ms"), std::string::npos)
      << outcome.output;
  const auto config = nlohmann::json::parse(std::ifstream(folder_ + "/run/config.json"));
  EXPECT_EQ(config.at("timeout"), 0.5);
}

TEST_F(Command, ACheckpointThatDoesNotFitIsRefused) {
  const std::string arguments =
      "--dataset synthetic --max-steps 1 --batch-size 16 --threads 1 --resume --out " + folder_ +
      "/run ";
  const std::string file = folder_ + "/run/checkpoint.safetensors";
  ASSERT_EQ(run(arguments, 1).code, 0);  // there is no checkpoint yet
  ASSERT_TRUE(fs::exists(file));
  for (const char* more : {"--momentum 0.5", "--momentum 0.5 --dry-run"})
    expect_refusal(arguments + more, "momentum = 0.9, this one has 0.5");
  expect_refusal(arguments + "--precision bf16", "precision = 'float32', this one has 'bf16'");
  expect_refusal(arguments + "--model resnet32", "resnet20");
  fs::copy_file(folder_ + "/run/model.safetensors", file, fs::copy_options::overwrite_existing);
  expect_refusal(arguments, "of another version or program");
  fs::resize_file(file, fs::file_size(file) / 2);
  expect_refusal(arguments, "truncated");
  fs::resize_file(file, 0);
  expect_refusal(arguments, "the file is empty");
}

TEST_F(Command, RuinedWeightsAreExitCode1AndNoFile) {
  const Outcome outcome =
      run("--dataset synthetic --max-steps 1 --batch-size 16 --threads 1 "
          "--keep-best --schedule constant --lr 1e45 --out " +
              folder_ + "/run",
          2);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.output.find("' is not finite at step 1; try a smaller --lr"), std::string::npos)
      << outcome.output;
  for (const auto& entry : fs::directory_iterator(folder_ + "/run"))
    EXPECT_NE(entry.path().extension(), ".safetensors") << entry.path();
}

TEST_F(Command, AShortRunEndsWithTheTestAccuracy) {
  const Outcome outcome =
      run("--dataset synthetic --max-steps 2 --batch-size 16 --ranks 2 --threads 1 --out " +
              folder_ + "/run",
          1);
  EXPECT_EQ(outcome.code, 0);
  ASSERT_GT(outcome.output.size(), 24u);
  const std::size_t line = outcome.output.rfind('\n', outcome.output.size() - 2) + 1;
  float accuracy = -1;
  EXPECT_EQ(sscanf(outcome.output.c_str() + line, "test accuracy %f", &accuracy), 1)
      << outcome.output;
  EXPECT_GE(accuracy, 0);
  for (const char* file : {"metrics.jsonl", "model.safetensors", "report.html", "config.json"})
    EXPECT_TRUE(fs::exists(folder_ + "/run/" + file)) << file;
}

TEST_F(Command, ATimelineShowsWhatEveryRankDid) {
  const std::string path = folder_ + "/out.json",
                    common = "--dataset synthetic --batch-size 16 --ranks 2 --threads 1 --trace " +
                             path + " --overwrite --out " + folder_ + "/run ";
  std::ofstream(path) << "[\n1\n]\n";
  expect_refusal(common + "--max-steps 2", "out.json is a file that is no timeline");
  fs::remove(path);
  for (int again = 0; again < 2; ++again) EXPECT_EQ(run(common + "--max-steps 2", 1).code, 0);
  std::map<std::string, std::multiset<int>> ranks;  // by name
  for (const auto& event : nlohmann::json::parse(std::ifstream(path)))
    if (event.at("ph") != "e") ranks[event.at("name")].insert(event.at("pid").get<int>());
  const std::multiset<int> twice{0, 0, 1, 1}, once{0, 1};
  for (const char* name : {"load", "forward", "backward", "optimizer"})
    EXPECT_EQ(ranks[name], twice) << name;
  for (const char* name : {"step 1", "step 2", "evaluate"}) EXPECT_EQ(ranks[name], once) << name;
  // Statistics and gradients are there. Buckets have two names, because they are laid out anew
  // after the first step.
  const auto ranks_of = [&](const std::string& text) {
    std::multiset<int> all;
    for (const auto& [name, of] : ranks)
      if (!name.starts_with("wait: ") && name.find(text) != std::string::npos)
        all.insert(of.begin(), of.end());
    return all;
  };
  EXPECT_EQ(ranks_of("bucket 0: "), twice);
  EXPECT_EQ(ranks_of("layer2.0.bn1' forward #2"), once);
  EXPECT_EQ(ranks_of("layer2.0.bn1' backward #2"), once);

  fs::remove(path);
  EXPECT_EQ(run(common + "--log-every 1 --lr 1e20", 1).code, 1);  // diverges
  EXPECT_TRUE(nlohmann::json::parse(std::ifstream(path)).is_array());
  EXPECT_EQ(run("--dataset synthetic --out " + folder_ + "/other --trace " + folder_ +
                    "/nowhere/out.json",
                1)
                .code,
            1);
}

}  // namespace
