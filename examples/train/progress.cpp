#include "progress.h"

#include <tutti/core/error.h>

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace tutti::examples {

namespace {

int columns_of(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Returns whether an MPI launcher started this process. Open MPI gives its processes a
// pseudo-terminal and passes on what they write, so that a bar would become one endless line.
bool is_launched() {
  constexpr std::array variables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  return std::ranges::any_of(variables, [](const char* name) { return std::getenv(name); });
}

// Returns whether the line on the screen can be rewritten.
bool is_terminal(std::FILE* out) {
  const char* const kind = std::getenv("TERM");
  return out && isatty(fileno(out)) && !is_launched() &&
         std::string_view(kind ? kind : "") != "dumb";
}

}  // namespace

void flush(std::FILE* out) {
  if (std::fflush(out) == 0 && !std::ferror(out)) return;
  const int error = errno;
  if ((error == EPIPE || error == EIO) && std::freopen("/dev/null", "w", out)) {
    std::fputs("the trainer: nobody reads what it prints any more, so it goes on in silence\n",
               stderr);
    return;
  }
  fail<FileError>("cannot write to {}: {}", out == stdout ? "standard output" : "the screen",
                  std::strerror(error));
}

Progress::Progress(std::FILE* out, const RunLength& length, std::int64_t first_step,
                   std::string score)
    : out_(out),
      terminal_(is_terminal(out)),
      length_(length),
      first_step_(first_step),
      score_(std::move(score)) {}

void Progress::say(const std::string& line) {
  if (!out_) return;
  std::fputs(((terminal_ ? "\r\033[K" : "") + line + "\n").c_str(), out_);
  flush(out_);
}

void Progress::update(const Metrics& m) {
  if (!out_) return;
  const auto now = Clock::now();
  if (now - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10)))
    return;
  shown_ = now;
  const std::string head = fmt::format("epoch {}/{}  ", m.epoch, length_.epochs),
                    figures = describe(m);
  if (!terminal_) return say(head + figures);
  const std::int64_t columns = columns_of(out_);
  const auto used = static_cast<std::int64_t>(head.size() + figures.size());
  // A line that is longer than the terminal could not be taken back by a carriage return.
  const std::string line = (head + bar(m, columns - 5 - used) + figures)
                               .substr(0, static_cast<std::size_t>(columns - 1));
  std::fputs(("\r\033[K" + line).c_str(), out_);
  flush(out_);
}

void Progress::epoch_done(const Metrics& m) {
  say(fmt::format("epoch {}/{}  means of the epoch: {}  test loss {:.4f}  {} {:.4f}", m.epoch,
                  length_.epochs, describe(m), m.test_loss.value_or(0), score_,
                  m.test_accuracy.value_or(0)));
}

std::int64_t Progress::step_in_epoch(const Metrics& m) const {
  return m.step - (m.epoch - 1) * length_.steps_per_epoch;
}

std::string Progress::describe(const Metrics& m) const {
  const std::string step = fmt::format("step {}/{}", step_in_epoch(m), length_.steps_per_epoch);
  if (m.images_per_second == 0) return step;  // there is no row yet
  return fmt::format("{}  loss {:.4f}  accuracy {:.4f}  data {:.1f}%  {:.0f} images/s  {} left",
                     step, m.train_loss, m.train_accuracy, 100 * m.data_waiting,
                     m.images_per_second, time_left(m));
}

std::string Progress::time_left(const Metrics& m) const {
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const double per_step = spent /
                          static_cast<double>(std::max<std::int64_t>(m.step - first_step_, 1));
  const auto left =
      static_cast<std::int64_t>(per_step * static_cast<double>(length_.steps - m.step) + 0.5);
  return left < 3600 ? fmt::format("{}:{:02}", left / 60, left % 60)
                     : fmt::format("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
}

// Returns a bar of at most 40 columns; nothing where there is too little room for one.
std::string Progress::bar(const Metrics& m, std::int64_t columns) const {
  if (columns < 5) return {};
  const std::int64_t size = std::min<std::int64_t>(columns, 40);
  const auto done = static_cast<std::size_t>(size * step_in_epoch(m) / length_.steps_per_epoch);
  return fmt::format("[{:.<{}}]  ", std::string(done, '#'), size);
}

}  // namespace tutti::examples
