// Text that is safe inside of a page, and pictures that stand in it. What a page says is the
// business of the sections.
#pragma once

#include <tutti/core/tensor.h>

#include <string>

namespace tutti::examples {

/// Returns text for the content of an element or for a quoted attribute, in HTML and in XML. The
/// characters that are markup become references. Bytes that are not UTF-8, and characters that XML
/// forbids, become U+FFFD.
std::string escape(const std::string& text);

/// Returns the text with at most so many characters, the last one of which is an ellipsis if it was
/// cut. Bytes that are not UTF-8 become U+FFFD.
std::string shorten(const std::string& text, std::size_t characters);

/// Returns an image as the address of a PNG that the page itself holds ("data:image/png;base64,").
/// `image` is uint8 (height, width, 1 or 3); it is made smaller where a side is longer than `most`
/// pixels.
std::string png_address(const Tensor& image, std::int64_t most);

}  // namespace tutti::examples
