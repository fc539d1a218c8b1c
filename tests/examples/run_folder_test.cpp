// Run folders as a user of train_resnet meets them: an older run is never replaced without being
// told to, one program at a time writes, and a signal ends a run with a checkpoint from which it
// goes on to the same bits.
#include "train/run_folder.h"
#include "trainer_program.h"

#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <algorithm>
#include <cstdlib>
#include <set>

namespace tutti {
namespace {

using namespace examples;
using test::content;
using test::Outcome;
using test::run_trainer;
using test::RunningTrainer;

namespace fs = std::filesystem;

class RunFolderOfProgram : public ::testing::Test {
 protected:
  RunFolderOfProgram() { fs::create_directories(run_); }
  ~RunFolderOfProgram() override { fs::remove_all(folder_); }

  void put(const std::string& name, const std::string& text) const {
    std::ofstream(run_ + "/" + name) << text;
  }
  std::set<std::string> names() const {
    std::set<std::string> result;
    for (const auto& entry : fs::directory_iterator(run_)) result.insert(entry.path().filename());
    return result;
  }
  void expect_refusal(const std::string& arguments, const std::vector<std::string>& says) const {
    const Outcome outcome = run_trainer(arguments, 2);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
    for (const std::string& text : says)
      EXPECT_NE(outcome.output.find(text), std::string::npos)
          << text << " not in " << outcome.output;
  }
  std::size_t rows() const {
    const std::string text = content(run_ + "/metrics.jsonl");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  // Returns the training loss of every row of metrics.
  static std::vector<double> losses(const std::string& run) {
    std::vector<double> result;
    std::ifstream file(run + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      result.push_back(nlohmann::json::parse(line).at("train_loss").get<double>());
    return result;
  }

  const std::string folder_ =
      (fs::temp_directory_path() / fmt::format("tutti_run_folder_{}", getpid())).string();
  const std::string run_ = folder_ + "/run";
  const std::string small_ = "--dataset synthetic --batch-size 16 --threads 1 --log-every 1 ";
  const std::string short_ = small_ + "--max-steps 1 --out " + run_;
};

TEST_F(RunFolderOfProgram, AnOlderRunIsRefusedBeforeAnythingIsLoaded) {
  for (const char* result : {"metrics.jsonl", "checkpoint.safetensors", "model.safetensors"}) {
    put(result, "of the older run\n");
    expect_refusal("--data " + folder_ + "/nowhere --out " + run_,
                   {run_, result, "--resume", "--overwrite"});
    EXPECT_EQ(content(run_ + "/" + result), "of the older run\n");
    fs::remove(run_ + "/" + result);
  }
  // A run that ended before its first row, which left its lock, and files of others are no older
  // run.
  for (const char* other : {".lock", "config.json", "notes.txt", "mycheckpoint.safetensors"})
    put(other, "{}");
  put("metrics.jsonl", "");
  EXPECT_EQ(run_trainer(short_, 1).code, 0);
  expect_refusal(short_, {"checkpoint.safetensors, metrics.jsonl, model.safetensors"});
}

TEST_F(RunFolderOfProgram, AFileOfOthersIsNotReplacedBecauseOfItsName) {
  put("config.json", "mine");
  for (int attempt = 0; attempt < 2; ++attempt)
    expect_refusal(short_, {run_, "config.json", "--overwrite replaces it"});
  EXPECT_EQ(content(run_ + "/config.json"), "mine");
  put("notes.txt", "mine");
  expect_refusal(short_ + " --overwrite --trace " + run_ + "/notes.txt", {"is no timeline"});
  EXPECT_EQ(content(run_ + "/notes.txt"), "mine");
}

TEST_F(RunFolderOfProgram, OverwriteRemovesWhatARunWritesAndNothingElse) {
  const std::set<std::string> own{"metrics.jsonl",
                                  "checkpoint.safetensors",
                                  "model.safetensors",
                                  "config.json",
                                  "report.html",
                                  "best.safetensors",
                                  "checkpoint-epoch-0120.safetensors"},
      others{"notes.txt",
             "model_ema.safetensors",
             "metrics.jsonl.old",
             "xmodel.safetensors",
             "checkpoint-epoch-mine.safetensors",
             "checkpoint-epoch-.safetensors",
             "events.txt"};
  for (const std::string& name : own) put(name, "older\nrun\n");
  for (const std::string& name : others) put(name, "mine");
  expect_refusal("--overwrite --data " + folder_ + "/nowhere --out " + run_, {"nowhere"});
  for (const std::string& name : own) EXPECT_EQ(content(run_ + "/" + name), "older\nrun\n") << name;

  ASSERT_EQ(run_trainer(short_ + " --overwrite", 1).code, 0);
  EXPECT_EQ(rows(), 1u);
  for (const std::string& name : others) EXPECT_EQ(content(run_ + "/" + name), "mine") << name;
  for (const std::string& name : names())
    EXPECT_TRUE(others.contains(name) || is_run_file(name)) << name << " would survive --overwrite";
}

TEST_F(RunFolderOfProgram, ResumeNeedsACheckpointWhereThereAreWeights) {
  for (const char* file :
       {"model.safetensors", "best.safetensors", "checkpoint-epoch-0002.safetensors"}) {
    put(file, "of the older run");
    expect_refusal(short_ + " --resume", {file, "no checkpoint.safetensors", "--overwrite"});
    fs::remove(run_ + "/" + file);
  }
  put("metrics.jsonl", "{}\n");  // the older run was killed before its first checkpoint
  EXPECT_EQ(run_trainer(short_ + " --resume", 1).code, 0);
}

TEST_F(RunFolderOfProgram, DraftsOfKilledRunsAreSwept) {
  for (const char* file : {"checkpoint.safetensors", "model.safetensors", "report.html"})
    put(file + std::string(".draft-0123456789abcdef"), "half");
  put("notes.draft-1", "mine");
  expect_refusal("--data " + folder_ + "/nowhere --out " + run_, {"nowhere"});
  EXPECT_EQ(names(), (std::set<std::string>{".lock", "notes.draft-1"}));
}

TEST_F(RunFolderOfProgram, OnlyOneProgramWrites) {
  RunningTrainer first(small_ + "--ranks 2 --out " + run_, folder_ + "/first");
  ASSERT_TRUE(first.wait_until([&] { return rows() > 0; })) << first.output();
  for (const char* flag : {"", " --resume", " --overwrite"})
    expect_refusal(short_ + flag, {"in use by process " + std::to_string(first.process()), run_});
  first.send(SIGKILL);
  first.status();
  EXPECT_EQ(run_trainer(short_ + " --overwrite", 1).code, 0);  // the lock died with its owner
}

// ---- signals

TEST_F(RunFolderOfProgram, ASignalStopsWithACheckpointThatGoesOnToTheSameBits) {
  const std::string arguments = small_ + "--max-steps 24 --ranks 2 --out ";
  ASSERT_EQ(run_trainer(arguments + folder_ + "/whole", 1).code, 0);
  RunningTrainer trainer(arguments + run_, folder_ + "/first");
  ASSERT_TRUE(trainer.wait_until([&] { return rows() >= 3; })) << trainer.output();
  trainer.send(SIGTERM);
  const int status = trainer.status();
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 3) << trainer.output();
  const std::string output = trainer.output(), lead = "go on with  ";
  EXPECT_NE(output.find("SIGTERM: stopped after step "), std::string::npos) << output;
  EXPECT_NE(output.find("a second signal ends it at once"), std::string::npos) << output;
  EXPECT_LT(rows(), 24u);
  EXPECT_FALSE(fs::exists(run_ + "/model.safetensors"));

  const std::size_t command = output.find(lead);
  ASSERT_NE(command, std::string::npos) << output;
  const std::string line = output.substr(command + lead.size());
  const Outcome resumed = test::output_of(line.substr(0, line.find('\n')));
  EXPECT_EQ(resumed.code, 0);
  EXPECT_NE(resumed.output.find("going on after step"), std::string::npos) << resumed.output;
  EXPECT_TRUE(content(run_ + "/model.safetensors") ==
              content(folder_ + "/whole/model.safetensors"));
  EXPECT_TRUE(fs::exists(run_ + "/report.html"));
  EXPECT_EQ(losses(run_), losses(folder_ + "/whole"));
  EXPECT_EQ(losses(run_).size(), 24u);
}

TEST_F(RunFolderOfProgram, ASecondSignalEndsTheProgramAtOnce) {
  // A step of so large a batch takes much longer than the time between the signals.
  RunningTrainer trainer("--dataset synthetic --batch-size 2048 --threads 1 --out " + run_,
                         folder_ + "/first");
  ASSERT_TRUE(trainer.wait_until([&] { return fs::exists(run_ + "/config.json"); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  trainer.send(SIGINT);
  ASSERT_TRUE(trainer.wait_until(
      [&] { return trainer.output().find("a second signal") != std::string::npos; }));
  trainer.send(SIGTERM);
  const int status = trainer.status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

// A terminal that closes sends the signal twice: the shell and the kernel do.
TEST_F(RunFolderOfProgram, AClosingTerminalStopsWithACheckpoint) {
  signal(SIGHUP, SIG_DFL);  // the tests may run under nohup
  RunningTrainer trainer(small_ + "--epochs 1000 --out " + run_, folder_ + "/first");
  ASSERT_TRUE(trainer.wait_until([&] { return rows() >= 2; })) << trainer.output();
  trainer.send(SIGHUP);
  ASSERT_TRUE(trainer.wait_until(
      [&] { return trainer.output().find("a second signal") != std::string::npos; }));
  trainer.send(SIGHUP);
  const int status = trainer.status();
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 3) << trainer.output();
  EXPECT_NE(trainer.output().find("SIGHUP: stopped after step "), std::string::npos);
  EXPECT_TRUE(fs::exists(run_ + "/checkpoint.safetensors"));
}

TEST_F(RunFolderOfProgram, UnderNohupAClosingTerminalChangesNothing) {
  signal(SIGHUP, SIG_IGN);  // as nohup does; the trainer inherits it
  RunningTrainer trainer(small_ + "--max-steps 30 --out " + run_, folder_ + "/first");
  signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(trainer.wait_until([&] { return rows() >= 2; })) << trainer.output();
  trainer.send(SIGHUP);
  const int status = trainer.status();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << trainer.output();
  EXPECT_EQ(rows(), 30u);
}

TEST_F(RunFolderOfProgram, OutputThatNobodyReadsDoesNotEndARun) {
  const std::string log = folder_ + "/pipe.log";
  test::output_of("bash -c '{ " + std::string(TRAIN_RESNET) + " " + short_ +
                  " --overwrite; echo code $? >&2; } 2>" + log + " | true'");
  EXPECT_NE(content(log).find("nobody reads what it prints"), std::string::npos) << content(log);
  EXPECT_NE(content(log).find("code 0"), std::string::npos) << content(log);
  EXPECT_TRUE(fs::exists(run_ + "/model.safetensors"));
}

TEST_F(RunFolderOfProgram, WhatIsPrintedGetsIntoNoFileWhereStandardStreamsAreClosed) {
  for (const char* closed : {">&-", "2>&-", "<&- >&- 2>&-"}) {
    const Outcome outcome =
        test::output_of(std::string(TRAIN_RESNET) + " " + short_ + " --overwrite " + closed);
    EXPECT_EQ(outcome.code, 0) << closed;
    EXPECT_EQ(content(run_ + "/.lock").find("epoch"), std::string::npos) << closed;
    EXPECT_TRUE(content(run_ + "/.lock").starts_with("process ")) << closed;
    EXPECT_EQ(losses(run_).size(), 1u) << closed;
  }
}

TEST_F(RunFolderOfProgram, AFileThatMustNotGrowIsAnErrorAndNoSignal) {
  for (const int blocks : {1, 100}) {  // of 1 kB: config.json, or the checkpoint
    const Outcome outcome = test::output_of("bash -c 'ulimit -f " + std::to_string(blocks) +
                                            "; exec " + TRAIN_RESNET + " " + short_ +
                                            " --overwrite' 2>&1 >/dev/null");
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_NE(outcome.output.find(run_), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("File too large"), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace tutti
