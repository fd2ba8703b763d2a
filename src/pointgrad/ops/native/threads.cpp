#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace pointgrad {
namespace {

struct Job {
  Job(const std::function<void(int64_t)>& task, int64_t count) : task(task), count(count) { fegetenv(&environment); }

  const std::function<void(int64_t)>& task;
  const int64_t count;
  fenv_t environment;  // the caller's: helpers must round and treat denormals as it does
  std::atomic<int64_t> next{0};
  std::mutex error_lock;
  std::exception_ptr error;

  void work() {
    for (int64_t i; (i = next.fetch_add(1)) < count;) {
      try {
        task(i);
      } catch (...) {
        std::lock_guard<std::mutex> hold(error_lock);
        if (!error) error = std::current_exception();
      }
    }
  }
};

class Pool {
 public:
  // False when another caller is using the pool.
  bool run(Job& job, int helpers) {
    std::unique_lock<std::mutex> use(in_use_, std::try_to_lock);
    if (!use.owns_lock()) return false;
    {
      std::lock_guard<std::mutex> hold(lock_);
      try {
        for (; started_ < helpers; ++started_) std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        // No more threads can be started: the existing ones and the caller do the work.
      }
      job_ = &job;
      seats_ = helpers;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock<std::mutex> hold(lock_);
    job_ = nullptr;
    seats_ = 0;
    idle_.wait(hold, [this] { return working_ == 0; });
    return true;
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> hold(lock_);
    for (;;) {
      wake_.wait(hold, [this] { return seats_ > 0; });
      --seats_;
      ++working_;
      Job* job = job_;
      hold.unlock();
      fesetenv(&job->environment);
      job->work();
      hold.lock();
      if (--working_ == 0) idle_.notify_one();
    }
  }

  std::mutex in_use_, lock_;
  std::condition_variable wake_, idle_;
  Job* job_ = nullptr;
  int started_ = 0, seats_ = 0, working_ = 0;
};

// Never destroyed, because its threads may outlive static destruction. A forked child inherits the memory but not the
// threads, so it starts its own pool.
std::atomic<Pool*> current{nullptr};
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });

Pool& pool() {
  Pool* mine = current.load();
  if (mine != nullptr) return *mine;
  Pool* fresh = new Pool;
  if (current.compare_exchange_strong(mine, fresh)) return *fresh;
  delete fresh;  // another thread was faster; this pool has no threads yet
  return *mine;
}

}  // namespace

void run_tasks(int64_t count, int threads, const std::function<void(int64_t)>& task) {
  Job job(task, count);
  const int helpers = static_cast<int>(count < threads ? count : threads) - 1;
  // If another caller is using the pool, this one works alone instead of waiting.
  if (helpers <= 0 || !pool().run(job, helpers)) job.work();
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace pointgrad
