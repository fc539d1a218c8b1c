// Tests of did_you_mean(), the suggestion in errors about names that people type.
#include <tutti/core/did_you_mean.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

const std::vector<std::string> names = {"--momentum", "--model",  "fashion-mnist", "mnist",
                                        "resnet18",   "resnet50", "cosine",        "cpu"};

TEST(DidYouMean, FindsTheNameThatIsOneSlipAway) {
  for (const auto& [wrong, right] :
       {std::pair{"--momentun", "--momentum"}, std::pair{"--momentm", "--momentum"},
        std::pair{"--momnetum", "--momentum"}, std::pair{"--modell", "--model"},
        std::pair{"fashionmnist", "fashion-mnist"}, std::pair{"Fashion-MNIST", "fashion-mnist"},
        std::pair{"resnet-50", "resnet50"}, std::pair{"cosin", "cosine"}, std::pair{"cup", "cpu"}})
    EXPECT_EQ(did_you_mean(wrong, names), " (did you mean '" + std::string(right) + "'?)") << wrong;
}

TEST(DidYouMean, TakesTheNearestAndOfEqualsTheFirst) {
  EXPECT_EQ(did_you_mean("resnet58", names), " (did you mean 'resnet18'?)");
  EXPECT_EQ(did_you_mean("resnet51", names), " (did you mean 'resnet50'?)");
  EXPECT_EQ(did_you_mean("mnits", {"mist", "mnist"}), " (did you mean 'mnist'?)");
}

TEST(DidYouMean, SaysNothingWhereNoNameIsNear) {
  for (const std::string& far : {std::string(), std::string("imagenet"), std::string("--x"),
                                 std::string("cosecant"), std::string(1'000'000, 'm')})
    EXPECT_EQ(did_you_mean(far, names), "") << far.substr(0, 20);
  EXPECT_EQ(did_you_mean("cpu", {}), "");
}

}  // namespace
}  // namespace tutti
