// Tests of excerpt(), which makes text of strangers fit for an error message.
#include <tutti/core/excerpt.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

TEST(Excerpt, KeepsShortPrintableTextAndEscapesTheRest) {
  EXPECT_EQ(excerpt("layer1.0.weight"), "layer1.0.weight");
  EXPECT_EQ(excerpt(""), "");
  EXPECT_EQ(excerpt("a\n\x1b[2J"), "a\\n\\u001b[2J");
  EXPECT_EQ(excerpt(std::string("a\0b", 3)), "a\\u0000b");
  EXPECT_EQ(excerpt("\xc3\xa9"), "\\u00e9");
  EXPECT_EQ(excerpt("x\xff\xfe"), "x\\ufffd\\ufffd");
}

TEST(Excerpt, CutsAt200Characters) {
  EXPECT_EQ(excerpt(std::string(200, 'n')), std::string(200, 'n'));
  EXPECT_EQ(excerpt(std::string(201, 'n')), std::string(197, 'n') + "...");
  for (const char* unit : {"\xc3\xa9", "\xff", "\n", "\xf0\x9f\x98\x80"}) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += unit;
    const std::string cut = excerpt(text);
    EXPECT_EQ(cut.size(), 200u);
    EXPECT_EQ(cut.substr(197), "...");
    EXPECT_TRUE(std::all_of(cut.begin(), cut.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  }
}

}  // namespace
}  // namespace tutti
