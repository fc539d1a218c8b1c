// The program around the trainer: it decides which ranks there are, locks the run folder, passes
// signals on as the wish to stop, and turns errors into one line and an exit code.
#include "options.h"

#include "../report/dry_run.h"
#include "checkpoint.h"
#include "data_check.h"
#include "network.h"
#include "run_folder.h"
#include "run_log.h"
#include "trainer.h"
#include "training_batches.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/parallel.h>
#include <tutti/core/trace.h>
#include <tutti/distributed/agreement.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/distributed/flight_recorder_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

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

// Returns the command that goes on with a run: its other flags are in the run folder. The
// launcher's other arguments, such as host files, are not known to its processes.
std::string resume_command(const char* program, const std::string& folder, int processes) {
  const bool is_open_mpi = std::getenv("OMPI_COMM_WORLD_SIZE");
  const std::string launcher =
      is_open_mpi     ? fmt::format("mpirun -n {} ", processes)
      : processes > 1 ? fmt::format("(with the same launcher, {} processes) ", processes)
                      : "";
  return fmt::format(
      "{}{} --out {} --resume{}", launcher, quote(program), quote(folder),
      launcher.empty() ? "" : "  (and the launcher's other flags, such as --hostfile)");
}

// Returns the file into which a process records its part of the trace (--trace).
std::string trace_file(const std::string& path, const ProcessGroup& world, int rank) {
  return world.size() == 1 ? path : path + ".rank" + std::to_string(rank);
}

// Joins what all processes have recorded. Collective; where a rank never calls it, each process
// leaves its own file.
void finish_trace(trace::Profile& profile, const std::string& path, const ProcessGroup& world) {
  profile.finish();
  if (world.size() == 1) return;
  world.barrier({.name = "timeline"});
  std::vector<std::string> parts;
  for (int r = 0; r < world.size(); ++r) parts.push_back(trace_file(path, world, r));
  if (world.rank() == 0) trace::merge(parts, path);
}

// Throws unless a file in the place of the trace is one itself, as an earlier run leaves it. A
// device such as /dev/null holds nothing to lose.
void check_trace(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || std::filesystem::is_empty(path, ignored))
    return;
  const std::string first = "[\n{\"name\":\"process_name\"";
  std::string begin(first.size(), ' ');
  std::ifstream(path).read(begin.data(), std::ssize(begin));
  if (begin != first)
    fail<UsageError>("--trace: {} is a file that is no timeline: name another one", path);
}

// Returns how long ranks wait for each other, and which device the first of a host has. The world
// exists before its ranks agree on what is wrong with the flags, which prepare() reports.
distributed::WorldOptions world_options(int argc, char** argv, Task task) {
  TrainOptions options = default_options(task);
  try {
    parse(argc, argv, options, false, flags_of_old_run(argc, argv, task, 1));
  } catch (const Error&) {}
  return {.first_device = options.device.is_cuda() ? options.device.index() : 0,
          .nccl = options.device.is_cuda(),
          .timeout = options.timeout};
}

// Calls `call` in every process. If it throws in any, all fail with the error of the first one.
void on_all_processes(const ProcessGroup& world, const std::function<void()>& call) {
  distributed::call_on_all_ranks(world, "start", call, exit_code_of);
}

// What every rank needs before training; `is_wanted` is false where only help was asked for.
struct Job {
  TrainOptions options;
  bool is_wanted = false;
  std::optional<RunFolderLock> lock = {};  // on rank 0
  TrainingData data = {};
};

// Reads the flags on every rank. Those of the run that --resume goes on with are in the run folder,
// which only rank 0 needs to see.
void read_flags(Job& job, int argc, char** argv, Task task, const ProcessGroup& world) {
  TrainOptions& options = job.options;
  std::string saved;
  on_all_processes(world, [&] {
    if (world.rank() == 0) saved = flags_of_old_run(argc, argv, task, world.size());
  });
  saved = distributed::broadcast_text(world, saved, "flags of the run");
  on_all_processes(world, [&] {
    job.is_wanted = parse(argc, argv, options, world.rank() == 0, saved);
    if (job.is_wanted && options.ranks > 1 && world.size() > 1)
      fail<UsageError>("--ranks {} and {} processes: use one of the two", options.ranks,
                       world.size());
  });
  if (world.size() == 1) return;
  on_all_processes(world, [&] {
    distributed::check_same_on_ranks(world, "settings",
                                     job.is_wanted ? settings_of_ranks(options) : "--help");
  });
}

// Finds out what could go wrong before any rank begins: flags, device, run folder, checkpoint, and
// last the data, which may take long to load.
Job prepare(int argc, char** argv, Task task, const ProcessGroup& world) {
  Job job{.options = default_options(task)};
  TrainOptions& options = job.options;
  read_flags(job, argc, argv, task, world);
  if (!job.is_wanted) return job;
  on_all_processes(world, [&] {
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
    const std::int64_t images = job.data.train->size();
    if (images == 0) fail<DataError>("there are no training images");
    if (steps_per_epoch(options, images) == 0)
      fail<UsageError>(
          "--drop-last leaves no batch of {} training images; give a --batch-size of "
          "at most that",
          images);
    const Metadata described = describe_data(options, job.data);  // throws what the end would throw
    if (const std::string other = from ? other_data(options, *from, described) : ""; !other.empty())
      refuse_checkpoint(options, other);
    if (world.rank() != 0) return;
    check_start(options, job.data, from.has_value());
    check_smallest_test_picture(options, job.data);
    if (writes) job.data.first_look = look_at_scenes(options, job.data, available_cores());
  });
  if (world.size() > 1) on_all_processes(world, [&] { expect_same_data(job.data, world); });
  return job;
}

// Calls `of_rank` with the group to train with: on the threads of this process, or as one rank of
// the processes of `world`.
void call_on_ranks(const TrainOptions& options, const ProcessGroup& world,
                   const std::function<void(const ProcessGroup&)>& of_rank) {
  const auto run = [&](const ProcessGroup& group) {
    if (options.device.is_cuda() && group.size() > 1 && group.rank() == 0 &&
        !group.why_staged().empty())
      fmt::print("CUDA tensors pass through the host between ranks: {}\n", group.why_staged());
    of_rank(group);
  };
  if (options.ranks == 1) return run(world);
  distributed::run_ranks(options.ranks, run,
                         {.timeout = options.timeout,
                          .nccl = options.device.is_cuda(),
                          .first_device = options.device.is_cuda() ? options.device.index() : 0});
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
    if (train(options, data, group, stdout, &stop).is_stopped) is_stopped = true;
  });
  return is_stopped;
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
  if (const std::string found = distributed::launch_variables();
      world.size() == 1 && job.options.ranks == 1 && !found.empty())
    fmt::print("one process, alone: found {}\n", found);
  if (job.options.dry_run) {
    on_all_processes(world, [&] {
      const int ranks = std::max(job.options.ranks, world.size());
      if (world.rank() != 0) return;
      if (job.options.check_files) {
        const auto [lines, broken] = check_files(job.data, available_cores());
        fmt::print("{}", lines);
        if (broken > 0) fail<DataError>("files that cannot be used: {}, listed above", broken);
      }
      fmt::print("{}", look_at_scenes(job.options, job.data, available_cores()));
      try {
        fmt::print("{}", describe_run(job.options, job.data, ranks));
      } catch (const DataError& unusable) {
        throw DataError(unusable.what() + advice_on_broken_files(unusable.what()));
      }
    });
    return exit_success;
  }
  std::optional<trace::Profile>
      timeline;  // its destructor writes the file, also where training fails
  world.barrier({.name = "start"});
  on_all_processes(world, [&] {
    const std::string& trace = job.options.trace;
    if (!trace.empty())
      for (const std::string& file : {trace, trace_file(trace, world, world.rank())})
        check_trace(file);
    if (job.lock && job.options.overwrite) job.lock->remove_old_run();
    // The barrier before lets the clocks of all recordings begin at one time.
    if (!trace.empty()) timeline.emplace(trace_file(trace, world, world.rank()), world.rank());
  });
  record_flight(job);
  bool is_stopped = false;
  try {
    if (job.options.test_only)
      call_on_ranks(job.options, world, [&](const ProcessGroup& group) {
        test_weights(job.options, job.data, group, stdout);
      });
    else is_stopped = train_on_ranks(job.options, job.data, world);
  } catch (const ErrorOnAllRanks&) {
    throw;  // no rank waits for another
  } catch (const std::exception& error) {
    world.abort(error.what());  // the other ranks may be waiting for this one
    throw;
  }
  if (timeline) finish_trace(*timeline, job.options.trace, world);
  if (!is_stopped) return exit_success;
  // A launcher that sees the first rank end may send a signal to the others.
  distributed::ignore_stop_signals();
  if (world.rank() == 0)
    fmt::print("go on with  {}\n", resume_command(argv[0], job.options.out, world.size()));
  return exit_stopped;
}

// Prints an error, and returns the exit code. fmt::print would throw where stderr cannot be
// written, and std::fprintf would let another rank write in the middle of the text.
int report(const ProcessGroup& world, Task task, const std::exception& error) {
  const std::string rank = world.size() > 1 ? fmt::format(" (rank {})", world.rank()) : "";
  // After prepare() a DataError is that of a picture.
  const std::string advice =
      dynamic_cast<const DataError*>(&error) ? advice_on_broken_files(error.what()) : "";
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
    world = ProcessGroup::from_environment(world_options(argc, argv, task));
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
