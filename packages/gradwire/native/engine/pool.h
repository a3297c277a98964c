// A pool of reused blocks of memory of one size, whose pages stay mapped and in the cache.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

#include "frame.h"

namespace gradwire::engine {

class Pool {
 public:
  explicit Pool(std::size_t nbytes) : nbytes_(nbytes) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  Pool(Pool&& other) noexcept : nbytes_(other.nbytes_), all_(std::move(other.all_)), free_(std::move(other.free_)) {
    other.all_.clear();
  }
  Pool& operator=(Pool&&) = delete;
  ~Pool() {
    for (Byte* each : all_) ::munmap(each, nbytes_);
  }

  // Returns the block that was given back last, or a new block if none is free.
  Byte* take() {
    if (free_.empty()) {
      // This only reserves address space: the kernel provides a page when the page is first written.
      void* const made =
          ::mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (made == MAP_FAILED) throw std::bad_alloc();
      all_.push_back(static_cast<Byte*>(made));
      free_.push_back(all_.back());
    }
    Byte* const taken = free_.back();
    free_.pop_back();
    return taken;
  }

  void give(Byte* memory) { free_.push_back(memory); }

  // Takes back all blocks, after a failed run.
  void reset() { free_ = all_; }

 private:
  std::size_t nbytes_;
  std::vector<Byte*> all_;
  std::vector<Byte*> free_;
};

}  // namespace gradwire::engine
