// Tests of the U-Net of examples/unet.h.
#include "../../examples/unet.h"
#include "kernels/compare.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/fold.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/optim/adam.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using examples::UNet;

TEST(UNet, TakesSizesThatAreNoMultiplesOf16) {
  const NoGrad no_grad;
  UNet net({.classes = 3, .width = 2});
  net.eval();
  for (const Shape& size : {Shape{16, 16}, Shape{37, 50}, Shape{31, 64}})
    EXPECT_EQ(net(randn({2, 3, size[0], size[1]})).shape(), (Shape{2, 3, size[0], size[1]}));
  const Tensor x = randn({1, 3, 35, 33}), y = net(x);
  EXPECT_EQ(nn::fold_batch_norm(net).folded.size(), 18u);
  EXPECT_LT(test::relative_error(net(x), y), 1e-4);
}

// The classes of the pixels are those of the image's brightness, which a U-Net learns at once.
TEST(UNet, LearnsABrightness) {
  manual_seed(5);
  UNet net({.channels = 1, .classes = 2, .width = 4, .levels = 2});
  net.to(MemoryFormat::channels_last);
  optim::Adam adam(net.parameters(), {.lr = 0.02});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const Tensor x = randn({4, 1, 18, 21});
    const Tensor loss = nn::cross_entropy(net(x), gt(x, 0).to(int64).squeeze(1));
    adam.zero_grad();
    loss.backward();
    adam.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.4 * first);
}

}  // namespace
}  // namespace tutti
