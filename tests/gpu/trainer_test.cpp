// Tests train_resnet on a device: a CUDA graph changes no bit, ranks that share a device train like
// one process, and the results are close to the CPU's.
#include "train/trainer.h"
#include "../distributed/equal_bits.h"
#include "../examples/small_run.h"
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/distributed/diagnostics/fault_injection.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::trainer_test {
namespace {

using namespace examples;

using test::test_device;

TrainOptions options_on(Device device) {
  TrainOptions options;
  options.epochs = 1;
  options.batch_size = 4;
  options.threads = 1;
  options.optimizer.lr = 0.05;
  options.log_every = 1;
  options.out = "";
  options.device = device;
  return options;
}

// Training has six whole batches and one of half the size.
const TrainingData& data() {
  static const TrainingData data =
      make_synthetic({.train = 26, .test = 5, .channels = 2, .size = 8});
  return data;
}

TEST(Trainer, AGraphChangesNoBit) {
  // Without this switch cuDNN may give other bits in each run.
  const test::Switch deterministic(cuda::settings().deterministic);
  for (const DType precision : {float32, bfloat16, float16}) {
    TrainOptions options = options_on(test_device());
    options.precision = precision;
    const TrainResult plain = train(options, data(), {}, nullptr);
    options.cuda_graph = true;
    const test::Screen screen;
    const TrainResult graphed = train(options, data(), {}, screen.file());
    const std::string said = screen.text();
    EXPECT_NE(said.find("nodes recorded at step 4"), std::string::npos) << said;
    EXPECT_NE(said.find("not for batches of 2 samples"), std::string::npos) << said;
    ASSERT_EQ(plain.rows.size(), 7u);
    ASSERT_EQ(graphed.rows.size(), 7u);
    for (std::size_t i = 0; i < plain.rows.size(); ++i)
      EXPECT_EQ(graphed.rows[i].train_loss, plain.rows[i].train_loss) << i;
    EXPECT_EQ(graphed.test_accuracy, plain.test_accuracy);
    test::expect_equal_bits(graphed.state, plain.state);
  }
}

TEST(Trainer, SetsAndStatesTf32AndAutotune) {
  const test::Switch allow_tf32(cuda::settings().allow_tf32), autotune(cuda::settings().autotune);
  TrainOptions options = options_on(test_device());
  for (const bool on : {true, false}) {
    options.allow_tf32 = options.autotune = on;
    const test::Screen screen;
    train(options, data(), {}, screen.file());
    const std::string said = screen.text();
    EXPECT_EQ(cuda::settings().allow_tf32, on);
    EXPECT_EQ(cuda::settings().autotune, on);
    EXPECT_NE(said.find(on ? "(TF32 allowed, autotune on)" : "(TF32 off, autotune off)"),
              std::string::npos)
        << said;
  }
}

TEST(Trainer, GoesOnInFloat16WithItsLossScale) {
  const test::Switch deterministic(cuda::settings().deterministic);  // compares bits
  const test::TemporaryFolder folder("scale");
  TrainOptions options = options_on(test_device());
  options.precision = float16;
  options.checkpoint_every = 1;
  std::int64_t collectives = 0;
  const auto run = [&](const char* name) {
    options.out = folder / name;
    StateDict state;
    distributed::run_ranks(
        2,
        [&](const ProcessGroup& group) {
          const TrainResult result = train(options, data(), group, nullptr);
          if (group.rank() != 0) return;
          state = result.state;
          collectives = group.traffic().calls;
        },
        std::chrono::seconds(200));
    return state;
  };
  const auto scale = [&](const char* name) {
    for (const auto& [key, tensor] :
         load_safetensors(folder / (std::string(name) + "/checkpoint.safetensors")))
      if (key == "scaler.scale") return tensor.item<double>();
    return 0.0;
  };
  options.max_steps = 4;
  const StateDict whole = run("whole");
  {
    const distributed::InjectFault fault({.rank = 1, .collective = collectives - 5});
    EXPECT_THROW(run("parts"), Error);
  }
  EXPECT_LT(scale("parts"), 65536);  // the scale in the checkpoint that was saved before the fault
  options.resume = true;
  const StateDict parts = run("parts");
  EXPECT_LT(scale("whole"), 65536);  // the first steps overflow
  EXPECT_EQ(scale("parts"), scale("whole"));
  test::expect_equal_bits(parts, whole);
}

TEST(Trainer, RanksThatShareADeviceTrainAsOneOnTheCpuDoes) {
  TrainOptions options = options_on(Device::cpu());
  options.max_steps = 3;
  const TrainResult one = train(options, data(), {}, nullptr);
  options.device = test_device();
  options.cuda_graph = true;
  distributed::run_ranks(
      2,
      [&](const ProcessGroup& group) {
        const test::Screen screen;
        const TrainResult shared = train(options, data(), group, screen.file());
        if (group.rank() == 0) {
          const std::string said = screen.text();
          EXPECT_NE(said.find("the ranks pass CUDA tensors through the host"), std::string::npos)
              << said;
        }
        ASSERT_EQ(shared.rows.size(), one.rows.size());
        for (std::size_t i = 0; i < one.rows.size(); ++i)
          EXPECT_NEAR(shared.rows[i].train_loss, one.rows[i].train_loss,
                      2e-3 * (1 + one.rows[i].train_loss))
              << i;
      },
      {.timeout = std::chrono::seconds(200), .nccl = false});
}

}  // namespace
}  // namespace tutti::trainer_test
