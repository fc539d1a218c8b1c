// What the trainer can be told, and how it is told on the command line.
#pragma once

#include <tutti/core/dtype.h>
#include <tutti/core/tensor.h>
#include <tutti/distributed/data_parallel/join.h>

#include <cstdint>
#include <string>

namespace tutti::examples {

struct TrainOptions {
  std::string dataset = "fashion-mnist";
  std::string data;  ///< folder; empty for the dataset's usual one
  std::string model = "resnet20";
  std::int64_t epochs = 2;
  std::int64_t max_steps = 0;     ///< stop after so many steps; 0 for no limit
  std::int64_t batch_size = 128;  ///< over all ranks
  int ranks = 1;                  ///< threads of this process that are ranks
  int threads = 0;                ///< that each rank computes with; 0 for its share of the cores
  double lr = 0.1;                ///< peak of the one-cycle schedule
  double momentum = 0.9;          ///< 0: cycled against the rate, from 0.95 down to 0.85 and back
  bool nesterov = true;
  double weight_decay = 5e-4;
  std::uint64_t seed = 0;
  bool sync_bn = true;
  bool sharded =
      false;  ///< every rank has training images of its own, more or fewer than the others
  distributed::Uneven uneven =
      distributed::Uneven::shadow;  ///< what becomes of the ranks that run out of those
  DType precision =
      float32;  ///< or float64; or bfloat16, float16: through Autocast, with float32 weights
  Device device = {};
  bool cuda_graph = false;  ///< record steps as a CUDA graph and replay them
  MemoryFormat memory_format = MemoryFormat::channels_last;
  std::int64_t log_every = 10;  ///< steps between two lines of metrics
  std::int64_t checkpoint_every =
      0;  ///< steps between two checkpoints, beside those at an epoch's end; 0 for none
  bool resume = false;  ///< go on from the run folder's checkpoint, where it has one
  std::string trace;    ///< file for a timeline; empty for none
  std::string out;      ///< run folder; empty for runs/DATASET-MODEL
};

/// A wrong flag or value; the message is one line.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Reads the command line. Returns false where help was asked for, after printing it (if
/// `print_help`). UsageError.
bool parse(int argc, const char* const* argv, TrainOptions& options, bool print_help = true);

/// The options as they stand after defaults were filled in, as JSON text: what config.json holds.
std::string to_json(const TrainOptions& options);

}  // namespace tutti::examples
