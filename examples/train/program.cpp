// The program around the trainer: it decides which ranks there are, locks the run folder, passes
// signals on as the wish to stop, and turns errors into one line and an exit code.
#include "options.h"

#include "../report/dry_run.h"
#include "checkpoint.h"
#include "network.h"
#include "progress.h"
#include "run_folder.h"
#include "trainer.h"
#include "training_batches.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/parallel.h>
#include <tutti/core/trace.h>
#include <tutti/distributed/agreement.h>
#include <tutti/distributed/backends.h>
#include <tutti/distributed/flight_recorder_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>

namespace tutti::examples {
namespace {

// Returns the argument as a shell has to see it to pass it on unchanged.
std::string quote(std::string_view argument) {
  constexpr std::string_view harmless =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-";
  if (!argument.empty() && argument.find_first_not_of(harmless) == std::string_view::npos)
    return std::string(argument);
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Returns the launcher's part of a command line, which is empty where no launcher was used.
std::string launcher_of(int processes) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE")) return fmt::format("mpirun -n {} ", processes);
  return processes == 1 ? "" : fmt::format("(with the same launcher, {} processes) ", processes);
}

// Returns the program's own command line with --resume and without --overwrite, quoted for a shell.
// Of processes of a launcher it says how to start them again, too. The launcher's other arguments,
// such as host files, are not known to its processes.
std::string resume_command(int argc, const char* const* argv, int processes) {
  const std::string launcher = launcher_of(processes);
  std::string command = launcher;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--resume" || argument == "--overwrite") continue;
    command += quote(argument) + " ";
  }
  command += "--resume";
  return launcher.empty() ? command
                          : command + "  (and the launcher's other flags, such as --hostfile)";
}

// The trace of a run (--trace). Every process records a Profile, and rank 0 joins them into one
// file at the end.
class Timeline {
 public:
  /// Starts to record. `world` is the group of the processes; ranks that are threads share the
  /// recording of their process. Call this right after a barrier, because the clock of each
  /// recording starts now.
  Timeline(std::string path, ProcessGroup world)
      : path_(std::move(path)),
        world_(std::move(world)),
        profile_(file_of(world_.rank()), world_.rank()) {}

  /// Writes `path`. This call is collective. Where a rank never makes it, each process leaves its
  /// own file, `path`.rankN.
  void finish() {
    profile_.finish();
    if (world_.size() == 1) return;
    world_.barrier({.name = "timeline"});
    std::vector<std::string> parts;
    for (int r = 0; r < world_.size(); ++r) parts.push_back(file_of(r));
    if (world_.rank() == 0) trace::merge(parts, path_);
  }

 private:
  std::string file_of(int rank) const {
    return world_.size() == 1 ? path_ : path_ + ".rank" + std::to_string(rank);
  }

  std::string path_;
  ProcessGroup world_;
  trace::Profile profile_;
};

// Returns how long ranks wait for each other. The world exists before its ranks agree on what is
// wrong with the flags, and then it has the default.
std::chrono::milliseconds timeout_of(int argc, char** argv, Task task) {
  TrainOptions options = default_options(task);
  try {
    parse(argc, argv, options, false);
  } catch (const Error&) {
    return ProcessGroup::default_timeout;  // prepare() reports it
  }
  return options.timeout;
}

// Calls `call` in every process. If it throws in any, all fail with the error of the first one.
void on_all_processes(const ProcessGroup& world, const std::function<void()>& call) {
  distributed::call_on_all_ranks(world, "start", call, exit_code_of);
}

// Returns whether each of this host's ranks can have a device of its own. NCCL needs that.
bool one_device_each(const TrainOptions& options, int ranks_here) {
  return options.device.is_cuda() && distributed::find_backend("nccl")->why_unavailable().empty() &&
         options.device.index() + ranks_here <= cuda::device_count();
}

// Returns the group to train with: an NCCL group where all processes can have a device of their
// own, else `world`.
ProcessGroup training_group(const TrainOptions& options, const ProcessGroup& world) {
  if (world.size() == 1 || !options.device.is_cuda() || world.capabilities().cuda_tensors)
    return world;
  const Tensor fit = full({}, one_device_each(options, world.local_rank() + 1), {.dtype = int64});
  world.all_reduce(fit, distributed::ReduceOp::min, {.name = "a device for each rank"}).wait();
  if (fit.item<int>() == 0) return world;
  return ProcessGroup::from_environment(
      {.backend = "nccl",
       .device = device_of_rank(options, world.local_rank()).index(),
       .timeout = options.timeout});
}

// What every rank needs before training; `is_wanted` is false where only help was asked for.
struct Job {
  TrainOptions options;
  bool is_wanted = false;
  std::optional<RunFolderLock> lock = {};  // on rank 0
  TrainingData data = {};
};

// Finds out what could go wrong before any rank begins: flags, device, run folder, checkpoint, and
// last the data, which may take long to load.
Job prepare(int argc, char** argv, Task task, const ProcessGroup& world) {
  Job job{.options = default_options(task)};
  TrainOptions& options = job.options;
  on_all_processes(world, [&] {
    job.is_wanted = parse(argc, argv, options, world.rank() == 0);
    if (!job.is_wanted) return;
    if (options.ranks > 1 && world.size() > 1)
      fail<UsageError>("--ranks {} and {} processes: use one of the two", options.ranks,
                       world.size());
    if (options.device.is_cuda()) try {
        empty({1}, {.device = options.device});  // throws, with the reason, where there is none
      } catch (const DeviceError& error) {
        const std::string why = error.what();
        fail<UsageError>("--device cuda: {}; --device cpu needs none",
                         why.substr(0, why.rfind(';')));
      }
    const bool writes = world.rank() == 0 && !options.dry_run && !options.test_only;
    if (writes) job.lock.emplace(options);
    std::optional<Checkpoint> from;
    if (world.rank() == 0 && options.resume) from = load_checkpoint(options);
    job.data = load_training_data(options);
    const Metadata described = describe_data(options, job.data);  // throws what the end would throw
    if (const std::string other = from ? other_data(options, *from, described) : ""; !other.empty())
      refuse_checkpoint(options, other);
    if (world.rank() == 0) check_start(options, job.data, from.has_value());
  });
  if (job.is_wanted && world.size() > 1)
    on_all_processes(world, [&] { expect_same_data(job.data, world); });
  return job;
}

// Calls `of_rank` with the group to train with: on the threads of this process, or as one rank of
// the processes of `world`.
void call_on_ranks(const TrainOptions& options, const ProcessGroup& world,
                   const std::function<void(const ProcessGroup&)>& of_rank) {
  if (options.ranks == 1) return of_rank(training_group(options, world));
  // With NCCL thread r uses device r, so this works from device 0 only.
  const bool use_nccl = one_device_each(options, options.ranks) && options.device.index() == 0;
  distributed::run_ranks(options.ranks, of_rank,
                         {.backend = use_nccl ? "nccl" : "local", .timeout = options.timeout});
}

// Returns whether the run was stopped before its end.
bool train_on_ranks(const TrainOptions& options, const TrainingData& data,
                    const ProcessGroup& world) {
  static const std::string text =
      fmt::format("{}: stops soon, with a checkpoint; a second signal ends it at once\n",
                  program_name(options.task));
  const StopRequest& stop =
      distributed::catch_stop_signals(world.rank() == 0 ? text.c_str() : nullptr);
  std::atomic<bool> is_stopped = false;
  call_on_ranks(options, world, [&](const ProcessGroup& group) {
    const TrainingData own = options.sharded ? shard(data, group.rank(), group.size()) : data;
    if (train(options, own, group, stdout, &stop).is_stopped) is_stopped = true;
  });
  return is_stopped;
}

void test_on_ranks(const TrainOptions& options, const TrainingData& data,
                   const ProcessGroup& world) {
  call_on_ranks(options, world,
                [&](const ProcessGroup& group) { test_weights(options, data, group, stdout); });
}

// Ranks that fail write their last collectives into the run folder, unless the user has named
// another folder.
void record_flight(const Job& job) {
  if (job.options.test_only || !distributed::flight_recorder_folder().empty()) return;
  if (job.lock) job.lock->remove_flight_recorders();
  distributed::set_flight_recorder_folder(job.options.out);
}

int run(int argc, char** argv, Task task, const ProcessGroup& world) {
  const Job job = prepare(argc, argv, task, world);
  if (!job.is_wanted) return exit_success;
  const auto check = [&](const ProcessGroup& group) {
    check_batches(job.options, job.data, group);
  };
  if (job.options.ranks > 1)
    distributed::run_ranks(job.options.ranks, check, {.timeout = job.options.timeout});
  else if (!job.options.test_only) check(world);
  if (job.options.dry_run) {
    on_all_processes(world, [&] {
      const int ranks = std::max(job.options.ranks, world.size());
      if (world.rank() != 0) return;
      if (job.options.check_files) fmt::print("{}", check_files(job.data, available_cores()));
      fmt::print("{}", describe_run(job.options, job.data, ranks));
    });
    return exit_success;
  }
  std::optional<Timeline> timeline;  // its destructor writes the file, also where training fails
  world.barrier({.name = "start"});
  on_all_processes(world, [&] {
    if (job.lock && job.options.overwrite) job.lock->remove_old_run();
    if (!job.options.trace.empty()) timeline.emplace(job.options.trace, world);
  });
  record_flight(job);
  bool is_stopped = false;
  try {
    if (job.options.test_only) test_on_ranks(job.options, job.data, world);
    else is_stopped = train_on_ranks(job.options, job.data, world);
  } catch (const ErrorOnAllRanks&) {
    throw;  // no rank waits for another
  } catch (const std::exception& error) {
    world.abort(error.what());  // the other ranks may be waiting for this one
    throw;
  }
  if (timeline) timeline->finish();
  if (!is_stopped) return exit_success;
  // A launcher that sees the first rank end may send a signal to the others.
  distributed::ignore_stop_signals();
  if (world.rank() == 0) fmt::print("go on with  {}\n", resume_command(argc, argv, world.size()));
  return exit_stopped;
}

// Prints an error, and returns the exit code. fmt::print would throw where stderr cannot be
// written, and std::fprintf would let another rank write in the middle of the text.
int report(const ProcessGroup& world, Task task, const std::exception& error) {
  const std::string rank = world.size() > 1 ? fmt::format(" (rank {})", world.rank()) : "";
  // After prepare() a DataError is that of a picture.
  const std::string advice = dynamic_cast<const DataError*>(&error) ? advice_on_broken_files(task)
                                                                    : "";
  const std::string text =
      fmt::format("{}{}: {}{}\n", program_name(task), rank, escape_controls(error.what()), advice);
  std::fputs(text.c_str(), stderr);
  const std::string folder = distributed::flight_recorder_folder();
  if (!folder.empty() && dynamic_cast<const DistributedError*>(&error) && world.rank() == 0)
    std::fputs(("where the ranks part:  examples/flight_recorder.py " + folder + "\n").c_str(),
               stderr);
  return exit_code_of(error);
}

// Opens the standard streams that the caller has closed, so that no file or socket gets their
// numbers and what is printed. A file that must not grow any more is an error, not a signal.
void prepare_process() {
  int stream = STDIN_FILENO;
  while (stream >= 0 && stream <= STDERR_FILENO) stream = ::open("/dev/null", O_RDWR);
  if (stream >= 0) ::close(stream);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace

int run_program(int argc, char** argv, Task task) {
  prepare_process();
  ProcessGroup world;
  try {
    world = ProcessGroup::from_environment(timeout_of(argc, argv, task));
    const int exit_code = run(argc, argv, task, world);
    flush(stdout);
    return exit_code;
  } catch (const ErrorOnAllRanks& error) {
    if (world.size() == 1 || world.rank() == error.rank()) report(world, task, error);
    return error.code();
  } catch (const std::exception& error) {
    return report(world, task, error);
  }
}

}  // namespace tutti::examples
