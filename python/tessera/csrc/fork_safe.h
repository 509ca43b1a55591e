/* fork_safe.h: a mutex that a forked child finds free, and what it guards consistent. */
#pragma once

#include <pthread.h>

#include <mutex>

namespace tessera {

/* A fork waits for it. So it is for short sections that never wait for Python: the thread that forks holds the
 * interpreter's lock. No section holds two of them. Objects live as long as the process. */
class ForkSafeMutex {
  public:
    ForkSafeMutex() {
        static const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);
        (void)registered; /* without memory for it forks are as safe as with a plain mutex */
        next_ = first_;
        first_ = this;
    }
    ForkSafeMutex(const ForkSafeMutex &) = delete;
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

  private:
    static void lock_all() {
        for (ForkSafeMutex *each = first_; each; each = each->next_) each->lock();
    }
    static void unlock_all() {
        for (ForkSafeMutex *each = first_; each; each = each->next_) each->unlock();
    }
    std::mutex mutex_;
    ForkSafeMutex *next_;
    static inline ForkSafeMutex *first_ = nullptr; /* a list that is complete once the operator is loaded */
};

using ForkSafeGuard = std::lock_guard<ForkSafeMutex>;

} // namespace tessera
