// Tests of excerpt() and escape_controls(), which make text of strangers fit for error messages.
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

TEST(EscapeControls, KeepsAllButControlCharacters) {
  const std::string plain = "cannot write '/tmp/b\xc3\xa4r \\ \"x\"': \xf0\x9f\x98\x80 " +
                            std::string(1000, 'n');
  EXPECT_EQ(escape_controls(plain), plain);
  EXPECT_EQ(escape_controls(""), "");
  EXPECT_EQ(escape_controls("a\nb\r\x1b[2J\x7f"), "a\\nb\\u000d\\u001b[2J\\u007f");
  EXPECT_EQ(escape_controls(std::string("\0", 1)), "\\u0000");
  // U+009B starts a command as ESC [ does; U+00A0 is no control character.
  EXPECT_EQ(escape_controls("\xc2\x9b"
                            "2J \xc2\xa0"),
            "\\u009b2J \xc2\xa0");
  EXPECT_EQ(escape_controls("end \xc2"), "end \xc2");
}

// A terminal of 8-bit characters takes the byte 0x9B for ESC [.
TEST(EscapeControls, EscapesControlBytesThatAreNotUtf8) {
  EXPECT_EQ(escape_controls("\x9b"
                            "2J"),
            "\\u009b2J");
  EXPECT_EQ(escape_controls("\xe2\x9b"), "\xe2\\u009b") << "cut off";
  EXPECT_EQ(escape_controls("\xc0\x9b"), "\xc0\\u009b") << "longer than need be";
  EXPECT_EQ(escape_controls("\xed\xa0\x9b"), "\xed\xa0\\u009b") << "a surrogate";
  EXPECT_EQ(escape_controls("\xf4\x90\x80\x80"), "\xf4\\u0090\\u0080\\u0080") << "too large";
  for (const char* whole : {"\xe2\x82\x9b", "\xed\x9f\x9b", "\xf0\x9f\x98\x80"})
    EXPECT_EQ(escape_controls(whole), whole);
}

}  // namespace
}  // namespace tutti
