// Runs the shared cases of SyncBatchNorm (tests/distributed/sync_batch_norm_case.h) on a CUDA
// device, on ranks that are threads and share the device.
#include "distributed/sync_batch_norm_case.h"

#include <tutti/distributed/process_group.h>

namespace tutti::sync_batch_norm_test {
namespace {

using distributed::run_ranks;
using std::chrono::seconds;

TEST(SyncBatchNormOnADevice, RanksEqualOneProcessOnTheWholeBatch) {
  run_ranks(2, test::check_sync_batch_norm_against_one_process,
            {.timeout = seconds(200), .nccl = false});
}
TEST(SyncBatchNormOnADevice, RanksEqualOneProcessWithEveryOption) {
  run_ranks(3, test::check_sync_batch_norm_options_against_one_process,
            {.timeout = seconds(200), .nccl = false});
}

}  // namespace
}  // namespace tutti::sync_batch_norm_test
