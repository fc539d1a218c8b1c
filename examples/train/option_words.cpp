#include "option_words.h"

#include <tutti/core/error.h>

namespace tutti::examples {

using distributed::Uneven;

Uneven uneven_from_string(const std::string& text) {
  if (text == "shadow") return Uneven::shadow;
  if (text == "stop") return Uneven::stop;
  if (text == "error") return Uneven::error;
  fail<ValueError>("unknown way '{}': expected shadow, stop or error", text);
}

const char* to_string(Uneven uneven) {
  return uneven == Uneven::shadow ? "shadow" : uneven == Uneven::stop ? "stop" : "error";
}

DType precision_from_string(const std::string& text) {
  if (text == "bf16") return bfloat16;
  if (text == "fp16") return float16;
  if (text == "float32" || text == "float64") return dtype_from_string(text);
  fail<ValueError>("unknown precision '{}': expected float32, bf16, fp16 or float64", text);
}

MemoryFormat memory_format_from_string(const std::string& text) {
  if (text == "channels_last") return MemoryFormat::channels_last;
  if (text == "contiguous") return MemoryFormat::contiguous;
  fail<ValueError>("unknown memory format '{}': expected channels_last or contiguous", text);
}

}  // namespace tutti::examples
