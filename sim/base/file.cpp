#include "sim/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "sim/base/chunks.h"
#include "sim/base/temporaries.h"

namespace foretrain {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 18;

Error cannot(const std::string& verb, const std::string& path, const std::string& reason) {
  return input_error((path == "-" ? "standard output" : path) + ": cannot be " + verb + ": " +
                     reason);
}

Error cannot_write(const std::string& path, int reason) {
  return cannot("written", path, std::strerror(reason));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

/// Where a symbolic link leads, be there a file or not; the path itself if it is none. `path` has
/// been found to end somewhere: links that lead in a circle do not come here.
std::string follow(std::string path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::array<char, PATH_MAX> target{};
  for (int i = 0; i < kMostLinks; ++i) {
    const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
    if (size <= 0) break;
    const std::string to(target.data(), static_cast<std::size_t>(size));
    path = to.front() == '/' ? to : directory_of(path) + to;
  }
  return path;
}

/// The open file that a path stands for: "-" and /dev/stdout, /dev/stderr, /dev/fd/N; -1: none. To
/// open such a path anew would forget how far the file was written.
int descriptor_of(const std::string& path) {
  if (path == "-" || path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const std::string number = path.substr(folder.size());
    const bool digits = !number.empty() && number.size() < 8 &&
                        number.find_first_not_of("0123456789") == std::string::npos;
    if (digits) return std::stoi(number);
  }
  return -1;
}

/// The permissions that a new file gets: read and write, less the user's mask.
mode_t usual_mode() {
  static const mode_t mask = [] {
    const mode_t now = ::umask(077);  // the mask cannot be read without being set
    ::umask(now);
    return now;
  }();
  return 0666 & ~mask;
}

}  // namespace

class AtomicFile::Impl {
 public:
  explicit Impl(std::string path) : x_path(std::move(path)) { x_buffer.reserve(Chunks::kBytes); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  Impl(Impl&&) = delete;
  Impl& operator=(Impl&&) = delete;
  ~Impl() { discard(); }

  Status open();
  Status append(std::string_view text);
  Status commit();
  const std::string& path() const { return x_path; }

 private:
  Status open_directly(int descriptor);
  Status open_beside(const struct stat* existing);
  Status fail(int reason);
  void discard();

  std::string x_path;       ///< as the user wrote it, for messages
  std::string x_target;     ///< links followed
  std::string x_temporary;  ///< empty when writing directly
  int x_note = -1;          ///< of the temporary, for signals
  mode_t x_mode = 0;        ///< what the target gets
  int x_fd = -1;
  std::string x_buffer;
  std::unique_ptr<Chunks> x_chunks;
  std::optional<Error> x_error;
};

Status AtomicFile::Impl::open() {
  std::signal(SIGXFSZ, SIG_IGN);
  if (x_path.empty()) return input_error("the name of the output file is empty");
  const int descriptor = descriptor_of(x_path);
  struct stat info {};
  const bool exists = descriptor < 0 && ::stat(x_path.c_str(), &info) == 0;
  if (descriptor < 0 && !exists && errno != ENOENT) return cannot_write(x_path, errno);
  if (exists && S_ISDIR(info.st_mode)) return cannot_write(x_path, EISDIR);
  if (descriptor >= 0 || (exists && !S_ISREG(info.st_mode))) {
    FT_TRY(open_directly(descriptor));
  } else {
    FT_TRY(open_beside(exists ? &info : nullptr));
  }
  x_chunks = std::make_unique<Chunks>(x_fd, x_path.size() > 3 && x_path.ends_with(".gz"));
  return ok_status();
}

Status AtomicFile::Impl::open_directly(int descriptor) {
  x_fd = descriptor >= 0 ? ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
                         : ::open(x_path.c_str(), O_WRONLY | O_CLOEXEC);
  return x_fd < 0 ? Status(cannot_write(x_path, errno)) : ok_status();
}

Status AtomicFile::Impl::open_beside(const struct stat* existing) {
  if (x_path.back() == '/') return cannot_write(x_path, EISDIR);
  if (existing != nullptr && ::access(x_path.c_str(), W_OK) != 0)
    return cannot_write(x_path, errno);
  x_target = follow(x_path);
  x_mode = existing == nullptr ? usual_mode() : existing->st_mode & 07777;
  static std::atomic<int> counter{0};
  constexpr int kTries = 100;  // names of an earlier process of this number may stand there
  for (int i = 0; i < kTries && x_fd < 0 && (i == 0 || errno == EEXIST); ++i) {
    // A short name of its own: appended to the target's name it could exceed what the system
    // allows.
    std::string name = directory_of(x_target) + ".foretrain-" + std::to_string(::getpid()) + "-" +
                       std::to_string(++counter) + ".tmp";
    x_note = note_temporary(name);
    x_fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (x_fd >= 0) {
      x_temporary = std::move(name);
    } else {
      const int reason = errno;
      forget_temporary(std::exchange(x_note, -1));
      errno = reason;
    }
  }
  if (x_fd >= 0) return ok_status();
  const int reason = errno;
  const std::string directory = directory_of(x_target);
  return cannot(
      "written", x_path,
      "directory " + (directory.empty() ? "." : directory) + ": " + std::strerror(reason));
}

Status AtomicFile::Impl::fail(int reason) {
  x_error = cannot_write(x_path, reason);
  discard();
  return *x_error;
}

void AtomicFile::Impl::discard() {
  x_chunks.reset();
  if (x_fd >= 0) ::close(x_fd);
  x_fd = -1;
  if (!x_temporary.empty()) ::unlink(x_temporary.c_str());
  x_temporary.clear();
  forget_temporary(std::exchange(x_note, -1));
}

Status AtomicFile::Impl::append(std::string_view text) {
  if (x_error) return *x_error;
  FT_CHECK(x_fd >= 0, "append to a file that was committed");
  while (!text.empty()) {
    const std::size_t part = std::min(text.size(), Chunks::kBytes - x_buffer.size());
    x_buffer.append(text.substr(0, part));
    text.remove_prefix(part);
    if (x_buffer.size() < Chunks::kBytes) continue;
    if (const int reason = x_chunks->give(x_buffer); reason != 0) return fail(reason);
  }
  return ok_status();
}

Status AtomicFile::Impl::commit() {
  if (x_error) return *x_error;
  FT_CHECK(x_fd >= 0, "commit of a file that was committed");
  if (const int reason = x_chunks->finish(x_buffer); reason != 0) return fail(reason);
  x_chunks.reset();
  // Private until whole. A file system without permissions keeps its own.
  if (!x_temporary.empty() && ::fchmod(x_fd, x_mode) != 0 && errno != EPERM && errno != ENOTSUP) {
    return fail(errno);
  }
  const int fd = std::exchange(x_fd, -1);
  if (::close(fd) != 0) return fail(errno);
  if (!x_temporary.empty() && ::rename(x_temporary.c_str(), x_target.c_str()) != 0) {
    return fail(errno);
  }
  x_temporary.clear();
  forget_temporary(std::exchange(x_note, -1));
  return ok_status();
}

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) : x_impl(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  auto impl = std::make_unique<Impl>(path);
  FT_TRY(impl->open());
  return AtomicFile(std::move(impl));
}

Status AtomicFile::append(std::string_view text) { return x_impl->append(text); }
Status AtomicFile::commit() { return x_impl->commit(); }
const std::string& AtomicFile::path() const { return x_impl->path(); }

Status write_text_file(const std::string& path, std::string_view text) {
  FT_ASSIGN(AtomicFile file, AtomicFile::create(path));
  FT_TRY(file.append(text));
  return file.commit();
}

Result<std::string> read_compressed_file(const std::string& path, std::size_t limit) {
  errno = 0;
  struct Closer {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::unique_ptr<gzFile_s, Closer> file(gzopen(path.c_str(), "rb"));
  if (!file) return cannot("read", path, std::strerror(errno == 0 ? ENOMEM : errno));
  std::string text;
  std::vector<char> chunk(kReadBytes);
  int got = 0;
  while ((got = gzread(file.get(), chunk.data(), static_cast<unsigned>(chunk.size()))) > 0) {
    text.append(chunk.data(), static_cast<std::size_t>(got));
    if (text.size() > limit) {
      return cannot("read", path, "larger than " + std::to_string(limit) + " bytes");
    }
  }
  int code = Z_OK;
  const char* reason = gzerror(file.get(), &code);
  if (code == Z_ERRNO) return cannot("read", path, std::strerror(errno));
  // At the end of a truncated archive gzread returns what there is; gzerror tells.
  if (code != Z_OK) return cannot("read", path, reason);
  return text;
}

}  // namespace foretrain
