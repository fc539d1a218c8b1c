#include "transfers.h"

#include "library.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <thread>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;

// Who names the cause first. A rank asks at its deadline the ranks of its host that it waits for,
// and names those that have not answered two seconds later. Those that do answer wait for others
// themselves. A second after that the ranks that wait for other hosts ask there, so a host where
// one rank is silent is not called absent as a whole. Where all answer, they have
// `for_others_to_name`. Then those that are nearest to the rank at fault speak first, each a second
// before the next: who waits for what a rank of its host gives, host 0, which asks all hosts, the
// other hosts, who waits for what a rank of its host has got from others.
constexpr auto before_asking_other_hosts = 3s, for_others_to_name = 10s;

// Free blocks of one size for messages, or null; few, because they are never freed. A block that
// MPI may still write after a failure does not come back.
using KeptBlocks = std::array<std::atomic<char*>, 3>;

// Returns a block of 2^log_size bytes, which is kept for the next message.
std::shared_ptr<char[]> take_block(std::size_t log_size) {
  static auto& all =
      *new std::array<KeptBlocks, 21>;  // messages at the exit outlive static objects
  KeptBlocks& kept = all[log_size];
  char* taken = nullptr;
  for (auto& block : kept)
    if (!taken) taken = block.exchange(nullptr, std::memory_order_acquire);
  if (!taken) taken = new char[std::size_t{1} << log_size];
  return {taken, [&kept](char* used) {
            for (auto& block : kept)
              if (char* none = nullptr;
                  block.compare_exchange_strong(none, used, std::memory_order_release))
                return;
            delete[] used;
          }};
}

}  // namespace

void wait(PendingMessages& messages, World& world, bool patient) {
  for (std::int64_t polls = 0; !messages.poll(); ++polls) {
    pause(polls, patient);
    if (polls % 64 != 63 && !patient) continue;
    if (const auto failure = world.poll())
      throw_failure(*failure, messages.call(), messages.group());
    world.give_up(messages);
  }
}

bool all_done(std::vector<MPI_Request>& requests) {
  constexpr std::size_t most = 64;  // at a time: the statuses need no allocation
  for (std::size_t begin = 0; begin < requests.size(); begin += most) {
    int count = 0, finished[most];
    MPI_Status statuses[most];
    const int code = MPI_Testsome(static_cast<int>(std::min(most, requests.size() - begin)),
                                  &requests[begin], &count, finished, statuses);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < count; ++i)
      check(statuses[i].MPI_ERROR, "MPI_Testsome");
    check(code, "MPI_Testsome");
  }
  return std::ranges::all_of(requests, [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

void pause(std::int64_t polls, bool patient) {
  if (patient && polls > 50) std::this_thread::sleep_for(20us);
  // Where cores are short, a rank that waits longer than ranks that compute alike do leaves its
  // core to the rank it waits for.
  else if (polls > 3000) std::this_thread::sleep_for(50us);
  else if (polls > 16) sched_yield();
}

ControlChannel::~ControlChannel() {
  for (auto& [message, request] : sent_) {
    never_free(std::move(message));
    if (is_usable() && request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

int ControlChannel::send(int rank, std::shared_ptr<void> message, std::size_t bytes) {
  is_sent();
  auto& [kept, request] = sent_.emplace_back(std::move(message), MPI_REQUEST_NULL);
  return MPI_Isend(kept.get(), static_cast<int>(bytes), MPI_BYTE, rank, tag_, comm_, &request);
}

bool ControlChannel::is_sent() {
  std::erase_if(sent_, [](auto& sent) {
    int done = 0;
    return MPI_Test(&sent.second, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
  });
  return sent_.empty();
}

std::optional<int> ControlChannel::receive(void* message, std::size_t bytes) {
  int arrived = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag_, comm_, &arrived, &status), "MPI_Iprobe");
  if (!arrived) return {};
  check(MPI_Recv(message, static_cast<int>(bytes), MPI_BYTE, status.MPI_SOURCE, tag_, comm_,
                 MPI_STATUS_IGNORE),
        "MPI_Recv");
  return status.MPI_SOURCE;
}

Transfers::~Transfers() {
  if (!requests_.empty()) never_free(memory_);
}

void Transfers::receive(void* to, std::size_t bytes, std::size_t index, Tag tag) {
  awaits_result_ = tag != Tag::scatter;
  check(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(index),
                  static_cast<int>(tag), comm_of(tag), &add(rank_at(index, tag))),
        "MPI_Irecv");
}

void Transfers::send(const void* from, std::size_t bytes, std::size_t index, Tag tag) {
  check(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(index),
                  static_cast<int>(tag), comm_of(tag), &add(rank_at(index, tag))),
        "MPI_Isend");
}

int Transfers::rank_at(std::size_t index, Tag tag) const {
  const HostLayout& layout = comms_.layout();
  return tag == Tag::calls ? layout.hosts[index].front() : layout.own_host()[index];
}

MPI_Request& Transfers::add_between_hosts(std::size_t slice) {
  return add(~static_cast<int>(slice));
}

MPI_Request& Transfers::add(int peer) {
  peers_.push_back(peer);
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

void Transfers::wait(bool patient) {
  deadline_ = exchange_.deadline();
  const bool asks_hosts = std::ranges::any_of(peers_, [](int peer) { return peer < 0; });
  patient_until_ = deadline_.at + for_others_to_name +
                   (asks_hosts       ? (comms_.layout().host == 0 ? 1s : 2s)
                    : awaits_result_ ? 3s
                                     : 0s);
  if (asks_hosts) deadline_.at += before_asking_other_hosts;
  mpi::wait(*this, comms_.world(), patient);
  requests_.clear();
  peers_.clear();
}

bool Transfers::poll() {
  if (requests_.empty()) return true;
  if (!is_usable()) return false;  // World::poll() says why
  return all_done(requests_);
}

PendingState Transfers::pending_state() const {
  PendingState state{.last_completed = comms_.last_agreed(), .in_transfer = is_in_transfer_};
  const HostLayout& layout = comms_.layout();
  const auto add_once = [](auto& to, const auto& value) {
    if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
  };
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (peers_[i] >= 0) {
      add_once(state.hosts_to_ask, std::vector{peers_[i]});  // it may itself wait for others
      continue;
    }
    // Host 0 asks all others; they only ask host 0, so that few messages are sent.
    for (std::size_t h = 0; h < layout.hosts.size(); ++h) {
      if (h == layout.host || (layout.host != 0 && h != 0)) continue;
      std::vector<int> host = layout.hosts[h];
      const auto slice = static_cast<std::size_t>(~peers_[i]);
      std::swap(host.front(), host[slice % host.size()]);  // the one that this rank waits for
      add_once(state.hosts_to_ask, host);
    }
  }
  return state;
}

std::shared_ptr<char[]> message_memory(std::size_t bytes) {
  if (bytes >= 1 << 20) {
    const auto storage = std::make_shared<Storage>(bytes, Device::cpu());
    return {storage, static_cast<char*>(storage->data())};
  }
  // The allocator would never give back smaller blocks, however many were in use at once.
  if (bytes >= 1 << 14) return take_block(static_cast<std::size_t>(std::bit_width(bytes - 1)));
  return std::shared_ptr<char[]>(new char[bytes]);
}

}  // namespace tutti::distributed::mpi
