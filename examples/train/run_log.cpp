#include "run_log.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

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

bool is_terminal(std::FILE* out) { return out && isatty(fileno(out)) && !is_launched(); }

}  // namespace

void flush(std::FILE* out) {
  if (std::fflush(out) == 0 && !std::ferror(out)) return;
  const int error = errno;
  if ((error == EPIPE || error == EIO) && std::freopen("/dev/null", "w", out)) {
    std::fputs("train_resnet: nobody reads what it prints any more, so it goes on in silence\n",
               stderr);
    return;
  }
  fail<FileError>("cannot write to {}: {}", out == stdout ? "standard output" : "the screen",
                  std::strerror(error));
}

Progress::Progress(std::FILE* out, const RunLength& length, std::int64_t first_step)
    : out_(out), terminal_(is_terminal(out)), length_(length), first_step_(first_step) {}

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
  say(fmt::format("epoch {}/{}  {}  test loss {:.4f}  test accuracy {:.4f}", m.epoch,
                  length_.epochs, describe(m), m.test_loss.value_or(0),
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

// ---- run log

namespace {

// TensorBoard draws tags with the same beginning beside each other.
std::vector<std::pair<std::string, double>> scalars_of(const Metrics& m) {
  std::vector<std::pair<std::string, double>> scalars{{"loss/train", m.train_loss},
                                                      {"accuracy/train", m.train_accuracy},
                                                      {"learning_rate", m.learning_rate},
                                                      {"images_per_second", m.images_per_second}};
  if (m.test_loss) scalars.emplace_back("loss/test", *m.test_loss);
  if (m.test_accuracy) scalars.emplace_back("accuracy/test", *m.test_accuracy);
  return scalars;
}

}  // namespace

RunLog::RunLog(const TrainOptions& options, bool is_rank_0, std::FILE* screen,
               const RunLength& length, std::int64_t first_step)
    : options_(options),
      is_rank_0_(is_rank_0),
      first_step_(first_step),
      progress_(is_rank_0 ? screen : nullptr, length, first_step) {}

void RunLog::open(std::vector<Metrics> rows) {
  rows_ = std::move(rows);
  if (!is_rank_0_ || options_.out.empty()) return;
  folder_.emplace(options_.out, rows_);
  folder_->write_config(to_json(options_));
  if (options_.tensorboard) events_.emplace(options_.out, first_step_ + 1);
}

void RunLog::add_row(const Metrics& row) {
  rows_.push_back(row);
  if (folder_) folder_->add(row);
  if (events_) events_->add(row.step, scalars_of(row));
}

void RunLog::add_epoch(const Metrics& row) {
  add_row(row);
  progress_.epoch_done(row);
}

void RunLog::save_weights(const StateDict& state, const Metadata& metadata) {
  if (!folder_) return;
  folder_->save_weights(state, metadata);
  say(fmt::format(
      "metrics  {0}/metrics.jsonl\nweights  {0}/model.safetensors\nreport   {0}/report.html",
      folder_->path()));
}

}  // namespace tutti::examples
