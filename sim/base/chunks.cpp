#include "sim/base/chunks.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string_view>
#include <system_error>

#include "sim/base/check.h"

namespace foretrain {
namespace {

constexpr std::size_t kDictionaryBytes = std::size_t{1} << 15;  // as far as deflate looks back
constexpr int kLevel = 1;
constexpr int kMemoryLevel = 8;

int write_all(int file, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return 0;
}

/// zlib's interface predates const.
Bytef* bytes_of(const char* data) { return reinterpret_cast<Bytef*>(const_cast<char*>(data)); }

}  // namespace

/// What one thread compresses by. It allocates when it is made, not when it works.
class Chunks::Packer {
 public:
  explicit Packer(bool gzip) : x_gzip(gzip) {
    if (!gzip) return;
    const int made =
        deflateInit2(&x_stream, kLevel, Z_DEFLATED, -MAX_WBITS, kMemoryLevel, Z_DEFAULT_STRATEGY);
    FT_CHECK(made == Z_OK || made == Z_MEM_ERROR, "zlib refused its own constants");
    x_ready = made == Z_OK;
  }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;
  Packer(Packer&&) = delete;
  Packer& operator=(Packer&&) = delete;
  ~Packer() {
    if (x_gzip && x_ready) deflateEnd(&x_stream);
  }
  /// Whether there was memory for it.
  bool ready() const { return x_ready; }

  /// As much as a chunk may come to, with its dictionary's place and the mark behind it.
  std::size_t bound() { return deflateBound(&x_stream, kBytes) + 64; }

  void pack(Chunk& chunk) {
    if (!x_gzip) return;
    const char* const text = chunk.text.data() + chunk.dictionary;
    const auto length = static_cast<uInt>(chunk.text.size() - chunk.dictionary);
    FT_CHECK(deflateReset(&x_stream) == Z_OK, "inconsistent compressor state");
    if (chunk.dictionary > 0) {
      const int set = deflateSetDictionary(&x_stream, bytes_of(chunk.text.data()),
                                           static_cast<uInt>(chunk.dictionary));
      FT_CHECK(set == Z_OK, "inconsistent compressor state");
    }
    x_stream.next_in = bytes_of(text);
    x_stream.avail_in = length;
    x_stream.next_out = bytes_of(chunk.bytes.data());
    x_stream.avail_out = static_cast<uInt>(chunk.bytes.size());
    const int state = deflate(&x_stream, chunk.last ? Z_FINISH : Z_SYNC_FLUSH);
    FT_CHECK(state == (chunk.last ? Z_STREAM_END : Z_OK) && x_stream.avail_out > 0,
             "a chunk came to more than its bound");
    chunk.size = chunk.bytes.size() - x_stream.avail_out;
    chunk.check = static_cast<std::uint32_t>(crc32(crc32(0, nullptr, 0), bytes_of(text), length));
  }

 private:
  const bool x_gzip;
  bool x_ready = true;
  z_stream x_stream{};
};

Chunks::Chunks(int file, bool gzip) : x_file(file), x_gzip(gzip) {
  x_packers.push_back(std::make_unique<Packer>(gzip));
  if (!x_packers.front()->ready()) x_error = ENOMEM;
}

Chunks::~Chunks() {
  {
    const std::lock_guard lock(x_mutex);
    x_stopped = true;
    if (x_error == 0) x_error = ECANCELED;
  }
  x_changed.notify_all();
  x_threads.clear();
}

int Chunks::give(std::string& text) {
  Lock lock(x_mutex);
  take_text(text, false, lock);
  return x_error;
}

int Chunks::finish(std::string& text) {
  Lock lock(x_mutex);
  take_text(text, true, lock);
  while (x_count.written < x_count.given) {
    if (x_count.taken < x_count.given) {
      step(*x_packers.front(), lock);
    } else {
      x_changed.wait(lock);
    }
  }
  return x_error;
}

void Chunks::take_text(std::string& text, bool last, Lock& lock) {
  FT_CHECK(text.size() <= kBytes, "a chunk that is too large");
  while (x_count.given - x_count.written == x_chunks.size()) {
    if (x_count.taken < x_count.given) {
      step(*x_packers.front(), lock);
    } else {
      x_changed.wait(lock);
    }
  }
  // Nobody else touches a chunk that is not given.
  Chunk& next = chunk(x_count.given);
  next.text.clear();
  if (x_gzip && x_count.given > 0) {
    const std::string& before = chunk(x_count.given - 1).text;
    next.dictionary = std::min(before.size(), kDictionaryBytes);
    next.text.append(before, before.size() - next.dictionary);
  }
  if (next.dictionary == 0) {
    next.text.swap(text);
  } else {
    next.text += text;
    text.clear();
  }
  text.reserve(kBytes);
  if (x_gzip && next.bytes.empty()) next.bytes.resize(x_packers.front()->bound());
  next.last = last;
  next.packed = false;
  if (x_count.given == 1) start_threads();
  ++x_count.given;
  if (x_threads.empty()) {
    step(*x_packers.front(), lock);
  } else {
    x_changed.notify_all();
  }
}

/// Small files, of one chunk, need none.
void Chunks::start_threads() {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t most = x_gzip ? x_chunks.size() - 1 : 1;
  try {
    x_threads.reserve(most);
    while (x_threads.size() < std::min(most, cores - 1)) {
      x_packers.push_back(std::make_unique<Packer>(x_gzip));
      if (!x_packers.back()->ready()) return;
      x_threads.emplace_back([this, &packer = *x_packers.back()] { help(packer); });
    }
  } catch (const std::system_error&) {
    // The threads that were started and the giver share the work.
  } catch (const std::bad_alloc&) {
  }
}

void Chunks::help(Packer& packer) {
  Lock lock(x_mutex);
  while (true) {
    x_changed.wait(lock, [this] { return x_stopped || x_count.taken < x_count.given; });
    if (x_stopped) return;
    step(packer, lock);
  }
}

/// Packs the first chunk that nobody has taken, and writes what can be written.
void Chunks::step(Packer& packer, Lock& lock) {
  Chunk& taken = chunk(x_count.taken++);
  if (x_error == 0) {
    lock.unlock();
    packer.pack(taken);
    lock.lock();
  }
  taken.packed = true;
  if (!x_writing) write_packed(lock);
}

void Chunks::write_packed(Lock& lock) {
  x_writing = true;
  while (x_count.written < x_count.taken && chunk(x_count.written).packed) {
    if (x_error == 0) {
      lock.unlock();
      const int error = write_chunk(chunk(x_count.written));
      lock.lock();
      if (x_error == 0) x_error = error;
    }
    ++x_count.written;
    x_changed.notify_all();
  }
  x_writing = false;
}

int Chunks::write_chunk(const Chunk& chunk) {
  if (!x_gzip) return write_all(x_file, chunk.text.data(), chunk.text.size());
  if (x_count.written == 0) {
    // A gzip file without a name or a time, compressed fast, on Unix.
    constexpr char kHead[] = {'\x1f', '\x8b', '\x08', 0, 0, 0, 0, 0, '\x04', '\x03'};
    const int error = write_all(x_file, kHead, sizeof kHead);
    if (error != 0) return error;
  }
  const std::size_t length = chunk.text.size() - chunk.dictionary;
  x_sum.check = static_cast<std::uint32_t>(
      crc32_combine(x_sum.check, chunk.check, static_cast<z_off_t>(length)));
  x_sum.length += static_cast<std::uint32_t>(length);
  const int error = write_all(x_file, chunk.bytes.data(), chunk.size);
  if (error != 0 || !chunk.last) return error;
  char tail[8];
  for (unsigned i = 0; i < 4; ++i) {
    tail[i] = static_cast<char>(x_sum.check >> (8 * i));
    tail[4 + i] = static_cast<char>(x_sum.length >> (8 * i));
  }
  return write_all(x_file, tail, sizeof tail);
}

}  // namespace foretrain
