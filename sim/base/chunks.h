// Large files: threads compress and write a file's chunks beside the one that makes them.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace foretrain {

/// Writes chunks to a file in their order, compressed or not. Few of them wait at once: who gives
/// another then takes part in the work, and where the system has no threads to give does all of it.
///
/// Compressed, a file is one gzip stream (RFC 1952). A chunk is compressed by itself, with the end
/// of the one before as its dictionary, so that the bytes do not depend on threads.
///
/// Errors are errno's numbers, 0 for none. After one nothing more is written, and every call
/// returns it.
class Chunks {
 public:
  static constexpr std::size_t kBytes = std::size_t{1} << 18;  ///< of a chunk, at most

  /// `file` is an open descriptor, which stays the caller's.
  Chunks(int file, bool gzip);
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;
  Chunks(Chunks&&) = delete;
  Chunks& operator=(Chunks&&) = delete;
  /// What has been given and not written is dropped.
  ~Chunks();

  /// Takes the text and leaves an empty one. The error may be that of an earlier chunk.
  int give(std::string& text);
  /// The same, for the last chunk, which may be empty. All is written then.
  int finish(std::string& text);

 private:
  class Packer;
  struct Chunk {
    std::string text;            ///< behind its dictionary
    std::size_t dictionary = 0;  ///< bytes of the chunk before
    bool last = false, packed = false;
    std::vector<char> bytes;  ///< compressed
    std::size_t size = 0;     ///< of these
    std::uint32_t check = 0;  ///< CRC-32 of the text
  };
  struct Counts {
    std::size_t given = 0, taken = 0, written = 0;  ///< chunks, in this order
  };
  struct Sum {
    std::uint32_t check = 0;   ///< CRC-32
    std::uint32_t length = 0;  ///< modulo 2^32
  };
  using Lock = std::unique_lock<std::mutex>;

  Chunk& chunk(std::size_t number) { return x_chunks[number % x_chunks.size()]; }
  void take_text(std::string& text, bool last, Lock& lock);
  void start_threads();
  void step(Packer& packer, Lock& lock);
  void write_packed(Lock& lock);
  int write_chunk(const Chunk& chunk);
  void help(Packer& packer);

  const int x_file;
  const bool x_gzip;
  std::array<Chunk, 4> x_chunks;  ///< chunk n is that of n modulo their number
  std::mutex x_mutex;             ///< guards what follows
  std::condition_variable x_changed;
  Counts x_count;
  bool x_writing = false, x_stopped = false;
  int x_error = 0;
  Sum x_sum;  ///< of what is written; only who writes touches it
  std::vector<std::unique_ptr<Packer>> x_packers;  ///< the giver's, then one for each thread
  std::vector<std::jthread> x_threads;
};

}  // namespace foretrain
