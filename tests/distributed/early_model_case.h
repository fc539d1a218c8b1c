// Models that are made, and converted, before their world exists share statistics with it all the
// same. The tests run the case on threads and MPI.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <memory>

namespace tutti::test {

/// Three layers as they are before the world: made as SyncBatchNorm, converted, and plain.
struct EarlyModels {
  EarlyModels() { nn::convert_sync_batchnorm(converted); }
  nn::SyncBatchNorm made{{.channels = 1}};
  nn::BatchNorm converted{{.channels = 1}}, plain{{.channels = 1}};
};

/// Trains each layer for a step on `group`, which is world() now. Returns which of them does not
/// have the mean of all ranks' inputs as its running mean.
inline std::string train_early_models(EarlyModels& models, const ProcessGroup& group) {
  nn::SyncBatchNorm late({.channels = 1});
  nn::BatchNorm plain({.channels = 1});
  std::string wrong;
  const auto train = [&](const char* name, nn::BatchNorm& layer, bool convert_first) {
    layer.eval();
    layer(zeros({2, 1}));  // an evaluation before does not matter
    layer.train();
    if (convert_first) nn::convert_sync_batchnorm(layer);
    const DataParallel ddp(layer.named_parameters(), layer.named_buffers(), group);
    if (!convert_first) nn::convert_sync_batchnorm(layer);
    sum(layer(full({2, 1}, group.rank()))).backward();
    const double mean = (group.size() - 1) / 2.0;
    if (std::abs(layer.running_mean.item<double>() - 0.1 * mean) > 1e-6)
      wrong += std::string(name) + " does not share its statistics\n";
  };
  train("a layer that was made before the world", models.made, true);
  train("a layer that was converted before the world", models.converted, false);
  train("a layer that was converted after the world", models.plain, true);
  train("a layer that was converted after its DataParallel", plain, false);
  train("a layer that was made after the world", late, true);
  return wrong;
}

}  // namespace tutti::test
