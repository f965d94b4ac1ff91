#include "traces/byte_stream.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace foretrain {

class ByteStream::Impl {
 public:
  explicit Impl(std::string name) : path(std::move(name)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  Impl(Impl&&) = delete;
  Impl& operator=(Impl&&) = delete;
  ~Impl() {
    if (file != nullptr) gzclose(file);
  }

  std::string path;
  gzFile file = nullptr;
  std::string_view text;  ///< of a stream without a file
  std::vector<char> chunk;
  std::int64_t done = 0, all = 0;
};

ByteStream::ByteStream(std::unique_ptr<Impl> impl) : x_impl(std::move(impl)) {}
ByteStream::ByteStream(ByteStream&&) noexcept = default;
ByteStream& ByteStream::operator=(ByteStream&&) noexcept = default;
ByteStream::~ByteStream() = default;

Result<ByteStream> ByteStream::open(const std::string& path) {
  constexpr std::size_t kChunkBytes = std::size_t{1} << 18;
  auto impl = std::make_unique<Impl>(path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return input_error(path + ": cannot be read: " + std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode))
    return input_error(path + ": cannot be read: " + std::strerror(EISDIR));
  errno = 0;
  impl->file = gzopen(path.c_str(), "rb");
  if (impl->file == nullptr) {
    return input_error(path + ": cannot be read: " + std::strerror(errno));
  }
  impl->all = static_cast<std::int64_t>(info.st_size);
  impl->chunk.resize(kChunkBytes);
  gzbuffer(impl->file, kChunkBytes);
  return ByteStream(std::move(impl));
}

ByteStream ByteStream::of(std::string_view text, std::string path) {
  auto impl = std::make_unique<Impl>(std::move(path));
  impl->text = text;
  impl->all = static_cast<std::int64_t>(text.size());
  return ByteStream(std::move(impl));
}

Result<std::string_view> ByteStream::next() {
  Impl& in = *x_impl;
  if (in.file == nullptr) {
    in.done = in.all;
    return std::exchange(in.text, std::string_view());
  }
  const int got = gzread(in.file, in.chunk.data(), static_cast<unsigned>(in.chunk.size()));
  in.done = static_cast<std::int64_t>(gzoffset(in.file));
  if (got > 0) return std::string_view(in.chunk.data(), static_cast<std::size_t>(got));
  int code = Z_OK;
  std::string reason = gzerror(in.file, &code);
  if (code == Z_ERRNO) reason = std::strerror(errno);
  if (reason.starts_with(in.path + ": ")) reason.erase(0, in.path.size() + 2);  // zlib names it too
  // At the end of a truncated archive gzread returns what there is; gzerror tells.
  if (code != Z_OK) return input_error(in.path + ": cannot be read: " + reason);
  return std::string_view();
}

const std::string& ByteStream::path() const { return x_impl->path; }
std::int64_t ByteStream::done() const { return x_impl->done; }
std::int64_t ByteStream::all() const { return x_impl->all; }

}  // namespace foretrain
