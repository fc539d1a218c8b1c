#include "progress.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace tutti::examples {
namespace {

int columns_of(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(std::FILE* out, std::int64_t epochs, std::int64_t steps_per_epoch,
                   std::int64_t begin, std::int64_t total_steps)
    : out_(out),
      terminal_(out && isatty(fileno(out))),
      epochs_(epochs),
      steps_per_epoch_(steps_per_epoch),
      begin_(begin),
      total_steps_(total_steps) {}

void Progress::say(const std::string& line) {
  if (!out_) return;
  fmt::print(out_, "{}{}\n", terminal_ ? "\r\033[K" : "", line);
  std::fflush(out_);
}

std::string Progress::time_left(const Metrics& m) const {
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const double step = spent / static_cast<double>(std::max<std::int64_t>(m.step - begin_, 1));
  const auto left =
      static_cast<std::int64_t>(step * static_cast<double>(total_steps_ - m.step) + 0.5);
  return left < 3600 ? fmt::format("{}:{:02}", left / 60, left % 60)
                     : fmt::format("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
}

std::string Progress::describe(const Metrics& m) const {
  const std::int64_t in_epoch = m.step - (m.epoch - 1) * steps_per_epoch_;
  if (m.images_per_second == 0)
    return fmt::format("step {}/{}", in_epoch, steps_per_epoch_);  // no figures yet
  return fmt::format("step {}/{}  loss {:.4f}  accuracy {:.4f}  {:.0f} images/s  {} left", in_epoch,
                     steps_per_epoch_, m.train_loss, m.train_accuracy, m.images_per_second,
                     time_left(m));
}

void Progress::update(const Metrics& m) {
  if (!out_) return;
  const auto now = Clock::now();
  if (now - shown_ <
      (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000)))
    return;
  shown_ = now;
  const std::string head = fmt::format("epoch {}/{}  ", m.epoch, epochs_), figures = describe(m);
  if (!terminal_) return say(head + figures);
  const std::int64_t room = columns_of(out_) - 5 -
                            static_cast<std::int64_t>(head.size() + figures.size());
  const auto size = static_cast<std::size_t>(std::clamp<std::int64_t>(room, 0, 40));
  const std::int64_t in_epoch = m.step - (m.epoch - 1) * steps_per_epoch_;
  const std::size_t done = size * static_cast<std::size_t>(in_epoch) /
                           static_cast<std::size_t>(steps_per_epoch_);
  const std::string bar = size < 5 ? "" : fmt::format("[{:.<{}}]  ", std::string(done, '#'), size);
  // Never longer than a line, which a carriage return could not take back.
  const std::string line =
      (head + bar + figures).substr(0, static_cast<std::size_t>(columns_of(out_) - 1));
  fmt::print(out_, "\r\033[K{}", line);
  std::fflush(out_);
}

void Progress::epoch_done(const Metrics& m) {
  say(fmt::format("epoch {}/{}  {}  test loss {:.4f}  test accuracy {:.4f}", m.epoch, epochs_,
                  describe(m), m.test_loss.value_or(0), m.test_accuracy.value_or(0)));
}

}  // namespace tutti::examples
