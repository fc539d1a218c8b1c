#include "scheduler.h"

#include <fmt/format.h>

#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_map>
#include <utility>

#include <pthread.h>
#include <semaphore.h>

namespace tutti::simulator {

struct Thread {
  explicit Thread(int of) : rank(of) { sem_init(&turn, 0, 0); }
  int rank;
  sem_t turn;
  bool ready = true, woken = false, done = false;
  std::uint64_t waits = 0;  // how often it has waited, which tells old timers from new ones
  const void* address = nullptr;
  const char* what = "starts";
  Time since = 0;
  Time idle = 0;       // the latest pause of a poll
  int free_polls = 0;  // before the next pause
  const char* call = "polls";
};

namespace {

// Of a poll in vain. The longest is much less than the second that lies between the deadlines of
// different waits.
constexpr Time shortest_pause = 100 * microsecond, longest_pause = 50 * millisecond;

// What changes within this time wakes those that poll once: switching threads is what costs most.
constexpr Time wake_delay = 2 * microsecond;

struct Event {
  Time at;
  std::uint64_t number;
  mutable std::function<void()> run;          // moved out of the queue
  bool operator<(const Event& other) const {  // the latest first, for the queue
    return at != other.at ? at > other.at : number > other.number;
  }
};

struct Rank {
  Thread* main = nullptr;
  Time frozen_until = 0;
  bool ended = false, wakes_pollers = false;
  std::vector<Thread*> held = {};  // ready, but the rank is frozen
};

// All state is guarded by the turn: one thread has it at a time.
struct Scheduler {
  Time now = 0, limit = 0;
  std::uint64_t events = 0;
  std::mt19937_64 random;
  std::vector<Rank> ranks;
  std::vector<Thread*> all, ready;
  std::priority_queue<Event> queue;
  std::unordered_map<const void*, std::vector<Thread*>> waiting;
  std::map<pthread_t, Thread*> handles;
  int on_mutexes = 0;
  bool was_ended = false;
  sem_t over;
};
Scheduler& scheduler() {
  static auto& one = *new Scheduler;
  return one;
}
thread_local Thread* self = nullptr;

Rank& rank_at(int rank) { return scheduler().ranks[static_cast<std::size_t>(rank)]; }

void make_ready(Thread* thread) {
  thread->ready = true;
  ++thread->waits;
  if (is_frozen(thread->rank)) rank_at(thread->rank).held.push_back(thread);
  else scheduler().ready.push_back(thread);
}

void remove_waiter(Thread* thread) {
  auto& all = scheduler().waiting;
  const auto found = all.find(thread->address);
  if (found == all.end()) return;
  std::erase(found->second, thread);
  if (found->second.empty()) all.erase(found);
}

bool all_have_ended() {
  for (const Rank& rank : scheduler().ranks)
    if (!rank.ended && rank.frozen_until != never) return false;
  return true;
}

// Returns the thread that runs next; null where the simulation is over.
Thread* next_thread() {
  Scheduler& all = scheduler();
  for (;;) {
    while (!all.ready.empty()) {
      std::swap(all.ready[all.random() % all.ready.size()], all.ready.back());
      Thread* thread = all.ready.back();
      all.ready.pop_back();
      if (!is_frozen(thread->rank)) return thread;
      rank_at(thread->rank).held.push_back(thread);
    }
    if (all.queue.empty() || all.queue.top().at > all.limit || all_have_ended()) return nullptr;
    all.now = std::max(all.now, all.queue.top().at);
    const std::function<void()> run = std::move(all.queue.top().run);
    all.queue.pop();
    run();
  }
}

void give_turn(Thread* next) {
  if (next) sem_post(&next->turn);
  else sem_post(&scheduler().over);
}

void take_turn(Thread* thread) {
  while (sem_wait(&thread->turn) != 0) {}
}

// Gives the turn away and returns when this thread has it again.
void switch_thread() {
  Thread* const me = self;
  Thread* const next = next_thread();
  if (next == me) return;
  give_turn(next);
  take_turn(me);
}

void end_thread() {
  self->done = true;
  if (rank_at(self->rank).main == self) {
    rank_at(self->rank).ended = true;
    rank_at(self->rank).frozen_until = never;  // an exit ends the other threads
  }
  wake(self);
  Thread* const next = next_thread();
  self = nullptr;
  give_turn(next);
}

}  // namespace

Time now() { return scheduler().now; }
std::mt19937_64& random() { return scheduler().random; }
int this_rank() { return self ? self->rank : -1; }
bool is_frozen(int rank) { return rank_at(rank).frozen_until > scheduler().now; }
bool has_ended(int rank) { return rank_at(rank).ended; }

void at(Time when, std::function<void()> what) {
  Scheduler& all = scheduler();
  all.queue.push({when, all.events++, std::move(what)});
}

bool wait(const void* address, Time until, const char* what) {
  Scheduler& all = scheduler();
  Thread* const me = self;
  me->ready = me->woken = false;
  me->address = address;
  me->what = what;
  me->since = all.now;
  const std::uint64_t number = ++me->waits;
  if (address) all.waiting[address].push_back(me);
  if (until != never)
    at(std::max(until, all.now), [me, number] {
      if (me->waits != number || me->ready) return;
      remove_waiter(me);
      make_ready(me);
    });
  switch_thread();
  return me->woken;
}

void wake(const void* address, bool everyone) {
  auto& all = scheduler().waiting;
  const auto found = all.find(address);
  if (found == all.end()) return;
  std::vector<Thread*> threads;
  if (everyone || found->second.size() == 1) {
    threads.swap(found->second);
    all.erase(found);
  } else {
    const std::size_t chosen = scheduler().random() % found->second.size();
    threads.push_back(found->second[chosen]);
    found->second.erase(found->second.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  for (Thread* thread : threads) {
    thread->woken = true;
    make_ready(thread);
  }
}

void pause_poll() {
  self->idle = std::clamp(8 * self->idle, shortest_pause, longest_pause);
  const bool woken = wait(&rank_at(self->rank).held, scheduler().now + self->idle, self->call);
  if (woken) self->idle = 0;
  self->free_polls = woken ? 0 : 63;
}

void wake_pollers(int rank) {
  if (std::exchange(rank_at(rank).wakes_pollers, true)) return;
  at(scheduler().now + wake_delay, [rank] {
    rank_at(rank).wakes_pollers = false;
    wake(&rank_at(rank).held);
  });
}

void begin_call(const char* name) {
  self->call = name;
  self->idle = 0;
}

void freeze(int rank, Time until) {
  rank_at(rank).frozen_until = until;
  if (until != never)
    at(until, [rank] {
      std::vector<Thread*> held;
      held.swap(rank_at(rank).held);
      for (Thread* thread : held) scheduler().ready.push_back(thread);
    });
  if (self && self->rank == rank) {  // stays where it is until the rank goes on
    rank_at(rank).held.push_back(self);
    self->what = "is stopped";
    switch_thread();
  }
}

bool was_ended() { return scheduler().was_ended; }

void end_job() {
  scheduler().was_ended = true;
  sem_post(&scheduler().over);
  for (;;) take_turn(self);
}

std::string describe_waits() {
  std::string text;
  for (const Thread* thread : scheduler().all)
    if (!thread->done && !rank_at(thread->rank).ended)
      text += fmt::format("\n  rank {}{}{}: {} since {} ms", thread->rank,
                          rank_at(thread->rank).main == thread ? "" : ", a thread of it",
                          is_frozen(thread->rank) ? " (stopped)" : "", thread->what,
                          thread->since / millisecond);
  return text;
}

namespace {

// The thread of a std::thread, which runs as one of the rank of its creator.
struct State : std::thread::_State {
  State(std::thread::_State_ptr of, Thread* is) : inner(std::move(of)), thread(is) {}
  void _M_run() override {
    self = thread;
    take_turn(thread);
    inner->_M_run();
    inner.reset();
    end_thread();
  }
  std::thread::_State_ptr inner;
  Thread* thread;
};

Thread* add_thread(int rank) {
  Thread* const thread = scheduler().all.emplace_back(new Thread(rank));
  thread->ready = false;
  return thread;
}

}  // namespace

void run(int ranks, std::uint64_t seed, Time limit, const std::function<void(int)>& main) {
  Scheduler& all = scheduler();
  all.limit = limit;
  all.random.seed(seed);
  all.ranks.resize(static_cast<std::size_t>(ranks));
  sem_init(&all.over, 0, 0);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 512 << 10);
  pthread_setattr_default_np(&small);
  for (int r = 0; r < ranks; ++r) {
    Thread* const thread = add_thread(r);
    rank_at(r).main = thread;
    std::thread([thread, &main] {
      self = thread;
      take_turn(thread);
      main(thread->rank);
      end_thread();
    }).detach();
    make_ready(thread);
  }
  give_turn(next_thread());
  while (sem_wait(&all.over) != 0) {}
}

}  // namespace tutti::simulator

// What the linker puts in the place of the functions of the system and of the C++ library.
using namespace tutti::simulator;

#define START_THREAD \
  "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"

extern "C" {

int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
int __real_pthread_rwlock_unlock(pthread_rwlock_t* lock);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t* lock);
int __real_pthread_rwlock_clockwrlock(pthread_rwlock_t* lock, clockid_t clock,
                                      const timespec* until);
int __real_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until);
int __real_nanosleep(const timespec* time, timespec* left);
int __real_sched_yield();

static Time to_time(const timespec& time) { return time.tv_sec * second + time.tv_nsec; }
// What the steady clock says at the beginning of virtual time.
static constexpr Time epoch = 1000 * second;

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (this_rank() < 0) return __real_pthread_mutex_lock(mutex);
  for (;;) {
    const int code = pthread_mutex_trylock(mutex);
    if (code != EBUSY) return code;
    ++scheduler().on_mutexes;
    wait(mutex, never, "waits for a mutex");
    --scheduler().on_mutexes;
  }
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  const int code = __real_pthread_mutex_unlock(mutex);
  if (this_rank() >= 0 && scheduler().on_mutexes > 0) wake(mutex);
  return code;
}

int __wrap_pthread_rwlock_clockwrlock(pthread_rwlock_t* lock, clockid_t clock,
                                      const timespec* until) {
  if (this_rank() < 0) return __real_pthread_rwlock_clockwrlock(lock, clock, until);
  for (;;) {
    const int code = pthread_rwlock_trywrlock(lock);
    if (code != EBUSY) return code;
    if (now() >= to_time(*until) - epoch) return ETIMEDOUT;
    wait(lock, to_time(*until) - epoch, "waits for a shared mutex");
  }
}

int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  const timespec last{std::int64_t{1} << 32, 0};
  return this_rank() < 0 ? __real_pthread_rwlock_wrlock(lock)
                         : __wrap_pthread_rwlock_clockwrlock(lock, CLOCK_MONOTONIC, &last);
}

int __wrap_pthread_rwlock_unlock(pthread_rwlock_t* lock) {
  const int code = __real_pthread_rwlock_unlock(lock);
  if (this_rank() >= 0) wake(lock);
  return code;
}

int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until) {
  if (this_rank() < 0) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  pthread_mutex_unlock(mutex);
  const bool woken = wait(condition, to_time(*until) - epoch, "waits for a condition");
  pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

// An impatient wait, which yields and later sleeps 50 us between two polls, looks at its deadline
// once in 64 polls. So many follow a pause in no time, unless the pause ended because something has
// changed.
static void pause_impatiently() {
  if (self->free_polls > 0) --self->free_polls;
  else pause_poll();
}

// Short sleeps are those between two polls.
int __wrap_nanosleep(const timespec* time, timespec* left) {
  if (this_rank() < 0) return __real_nanosleep(time, left);
  const Time duration = to_time(*time);
  if (duration == 50 * microsecond) pause_impatiently();
  else if (duration <= millisecond) pause_poll();
  else wait(nullptr, now() + duration, "sleeps");
  return 0;
}

int __wrap_sched_yield() {
  if (this_rank() < 0) return __real_sched_yield();
  pause_impatiently();
  return 0;
}

void real_start(std::thread*, std::thread::_State_ptr, void (*)()) __asm__("__real_" START_THREAD);
void wrap_start(std::thread*, std::thread::_State_ptr, void (*)()) __asm__("__wrap_" START_THREAD);
void wrap_start(std::thread* of, std::thread::_State_ptr state, void (*depend)()) {
  if (this_rank() < 0) return real_start(of, std::move(state), depend);
  Thread* const thread = add_thread(this_rank());
  real_start(of, std::thread::_State_ptr(new State(std::move(state), thread)), depend);
  scheduler().handles[of->native_handle()] = thread;
  make_ready(thread);
}

void real_join(std::thread*) __asm__("__real__ZNSt6thread4joinEv");
void wrap_join(std::thread*) __asm__("__wrap__ZNSt6thread4joinEv");
void wrap_join(std::thread* of) {
  if (this_rank() >= 0)
    if (const auto found = scheduler().handles.find(of->native_handle());
        found != scheduler().handles.end()) {
      while (!found->second->done) wait(found->second, never, "waits for a thread to end");
      scheduler().handles.erase(found);
    }
  real_join(of);
}

void real_wait(std::condition_variable*, std::unique_lock<std::mutex>&) __asm__(
    "__real__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void wrap_wait(std::condition_variable*, std::unique_lock<std::mutex>&) __asm__(
    "__wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void wrap_wait(std::condition_variable* condition, std::unique_lock<std::mutex>& lock) {
  if (this_rank() < 0) return real_wait(condition, lock);
  lock.unlock();
  wait(condition, never, "waits for a condition");
  lock.lock();
}

void real_notify_all(std::condition_variable*) __asm__(
    "__real__ZNSt18condition_variable10notify_allEv");
void wrap_notify_all(std::condition_variable*) __asm__(
    "__wrap__ZNSt18condition_variable10notify_allEv");
void wrap_notify_all(std::condition_variable* condition) {
  if (this_rank() >= 0) wake(condition);
  else real_notify_all(condition);
}

void real_notify_one(std::condition_variable*) __asm__(
    "__real__ZNSt18condition_variable10notify_oneEv");
void wrap_notify_one(std::condition_variable*) __asm__(
    "__wrap__ZNSt18condition_variable10notify_oneEv");
void wrap_notify_one(std::condition_variable* condition) {
  if (this_rank() >= 0) wake(condition, false);
  else real_notify_one(condition);
}

// A future's wait, which the C++ library makes of a futex.
#define FUTEX_WAIT                                                                               \
  "_ZNSt28__atomic_futex_unsigned_base26_M_futex_wait_until_steadyEPjjbNSt6chrono8durationIlSt5" \
  "ratioILl1ELl1EEEENS2_IlS3_ILl1ELl1000000000EEEE"
#define FUTEX_WAKE "_ZNSt28__atomic_futex_unsigned_base19_M_futex_notify_allEPj"
using Seconds = std::chrono::seconds;
using Nanoseconds = std::chrono::nanoseconds;
bool real_futex_wait(void*, unsigned*, unsigned, bool, Seconds,
                     Nanoseconds) __asm__("__real_" FUTEX_WAIT);
bool wrap_futex_wait(void*, unsigned*, unsigned, bool, Seconds,
                     Nanoseconds) __asm__("__wrap_" FUTEX_WAIT);
bool wrap_futex_wait(void* of, unsigned* value, unsigned old, bool ends, Seconds until,
                     Nanoseconds more) {
  if (this_rank() < 0) return real_futex_wait(of, value, old, ends, until, more);
  if (__atomic_load_n(value, __ATOMIC_ACQUIRE) != old) return true;
  return wait(value, ends ? Nanoseconds(until + more).count() - epoch : never,
              "waits for a future");
}
void real_futex_wake(unsigned*) __asm__("__real_" FUTEX_WAKE);
void wrap_futex_wake(unsigned*) __asm__("__wrap_" FUTEX_WAKE);
void wrap_futex_wake(unsigned* value) {
  if (this_rank() >= 0) wake(value);
  else real_futex_wake(value);
}

std::int64_t real_now() __asm__("__real__ZNSt6chrono3_V212steady_clock3nowEv");
std::int64_t wrap_now() __asm__("__wrap__ZNSt6chrono3_V212steady_clock3nowEv");
std::int64_t wrap_now() { return this_rank() < 0 ? real_now() : epoch + now(); }
}
