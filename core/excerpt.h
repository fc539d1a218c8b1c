// excerpt() makes text from a file or a network fit for an error message. Whoever reads such text
// and throws an Error that shows it should pass it through excerpt(). A program that prints whole
// messages passes them through escape_controls(), since they may name files with any characters.
#pragma once

#include <string>

namespace tutti {

/// Returns the text in at most 200 printable ASCII characters, "..." at its end if it was cut.
/// Control characters, quotes, backslashes and everything beyond ASCII are escaped as in JSON;
/// bytes that are not UTF-8 become the escape of U+FFFD. The text therefore cannot fill a terminal
/// or command it.
std::string excerpt(const std::string& text);

/// Returns the whole text with its control characters, line feeds included, escaped as in JSON, so
/// that it is one line and cannot command a terminal. Bytes from 0x80 to 0x9f that are not part of
/// a UTF-8 character are control characters, too: those of Latin-1. Everything else stays as it is,
/// also text beyond ASCII.
std::string escape_controls(const std::string& text);

/// Returns whether a program may print the text as it is: UTF-8 without control characters.
bool is_printable(const std::string& text);

/// Returns the text with each byte that is not UTF-8 as U+FFFD. Names of files may have such bytes,
/// which JSON cannot hold.
std::string to_utf8(const std::string& text);

}  // namespace tutti
