#include "sync_batch_norm.h"

namespace tutti::nn {
namespace {

BatchNorm::Options with_group(BatchNorm::Options options) {
  if (!options.group) options.group = distributed::world();
  return options;
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(Options options) : BatchNorm(with_group(std::move(options))) {}

}  // namespace tutti::nn
