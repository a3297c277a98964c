// Heap memory that ends exactly where kernels must stop, so that a sanitizer detects any access past it. It starts a
// few elements into its allocation, so that kernels are tested with every alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace gradwire::fuzz {

template <typename T>
class Buffer {
 public:
  Buffer(std::size_t size, std::size_t offset) : size_(size), offset_(offset), memory_(new T[size + offset]) {}

  Buffer(const Buffer& other) : Buffer(other.size_, other.offset_) { copy_from(other.data(), size_); }
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return memory_.get() + offset_; }
  const T* data() const { return memory_.get() + offset_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }

  void copy_from(const T* from, std::size_t count) {
    if (count > 0) std::memcpy(data(), from, count * sizeof(T));
  }

  void fill(int byte) {
    if (size_ > 0) std::memset(data(), byte, size_ * sizeof(T));
  }

  // Compares bits, so that NaN equals itself, and 0 differs from -0.
  bool same_bits(const Buffer& other) const {
    return size_ == other.size_ && (size_ == 0 || std::memcmp(data(), other.data(), size_ * sizeof(T)) == 0);
  }

 private:
  std::size_t size_;
  std::size_t offset_;
  std::unique_ptr<T[]> memory_;
};

}  // namespace gradwire::fuzz
