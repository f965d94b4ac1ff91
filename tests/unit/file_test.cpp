// Output files are whole or absent, and every failure names the path and the reason.
#include "sim/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "sim/base/chunks.h"
#include "sim/base/json.h"
#include "sim/base/rng.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for every test, removed afterwards.
class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "foretrain-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    x_folder = pattern;
  }
  void TearDown() override { fs::remove_all(x_folder); }

  std::string in_folder(const std::string& name) const { return (x_folder / name).string(); }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(x_folder), fs::directory_iterator());
  }

 private:
  fs::path x_folder;
};

void expect_failure(const std::string& path, const std::string& reason) {
  const Status status = write_text_file(path, "text");
  ASSERT_FALSE(status.ok()) << path;
  EXPECT_EQ(status.error().kind, ErrorKind::kInput);
  EXPECT_NE(status.error().message.find(path), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find(reason), std::string::npos) << status.error().message;
}

TEST_F(FileTest, AppearsOnCommitAndNotBefore) {
  const std::string path = in_folder("a.txt");
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file.value().append("one ").ok());
    ASSERT_TRUE(file.value().append("two").ok());
    EXPECT_FALSE(fs::exists(path));
    ASSERT_TRUE(file.value().commit().ok());
  }
  EXPECT_EQ(read_text_file(path).value(), "one two");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, EarlyReturnKeepsTheOldContent) {
  const std::string path = in_folder("a.txt");
  ASSERT_TRUE(write_text_file(path, "old").ok());
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.value().append("new").ok());
  }
  EXPECT_EQ(read_text_file(path).value(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, FollowsLinksAndKeepsPermissions) {
  const std::string path = in_folder("a.txt");
  const std::string link = in_folder("link");
  ASSERT_TRUE(write_text_file(path, "old").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  fs::create_symlink(path, link);
  ASSERT_TRUE(write_text_file(link, "new").ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_text_file(path).value(), "new");
  EXPECT_EQ(static_cast<int>(fs::status(path).permissions()), 0640);
}

// /dev is a folder like others: its shared memory holds files, and may be full of old ones.
TEST_F(FileTest, TheFileSystemSaysWhatIsADevice) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm here";
  std::string folder = "/dev/shm/foretrain-file-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/a.json";
  EXPECT_TRUE(write_text_file(path, std::string(100000, 'x')).ok());
  EXPECT_TRUE(write_text_file(path, "{}").ok());
  EXPECT_EQ(read_text_file(path).value(), "{}");
  fs::remove_all(folder);
}

TEST_F(FileTest, OpenFilesAreWrittenOnNotAnew) {
  const std::string path = in_folder("a.txt");
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(::write(file, "one ", 4), 4);
  EXPECT_TRUE(write_text_file("/dev/fd/" + std::to_string(file), "two ").ok());
  EXPECT_TRUE(write_text_file("/proc/self/fd/" + std::to_string(file), "three").ok());
  ::close(file);
  EXPECT_EQ(read_text_file(path).value(), "one two three");
  expect_failure("/dev/fd/12345", "Bad file descriptor");
}

TEST_F(FileTest, LinksAreFollowedWhereverTheyLead) {
  fs::create_directory(in_folder("there"));
  fs::create_symlink("there/a.txt", in_folder("relative"));  // there is no such file yet
  fs::create_symlink(in_folder("relative"), in_folder("twice"));
  ASSERT_TRUE(write_text_file(in_folder("twice"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(in_folder("twice")));
  EXPECT_TRUE(fs::is_symlink(in_folder("relative")));
  EXPECT_EQ(read_text_file(in_folder("there/a.txt")).value(), "new");
  fs::create_symlink("absent/a.txt", in_folder("nowhere"));
  expect_failure(in_folder("nowhere"), "No such file or directory");
  fs::create_symlink("loop2", in_folder("loop1"));
  fs::create_symlink("loop1", in_folder("loop2"));
  expect_failure(in_folder("loop1"), "Too many levels of symbolic links");
  EXPECT_TRUE(fs::is_symlink(in_folder("loop1")));
}

TEST_F(FileTest, AreTheirOwnersUntilTheyAreWhole) {
  const mode_t mask = ::umask(022);
  const auto modes = [this] {
    std::vector<int> out;
    for (const auto& entry : fs::directory_iterator(in_folder(""))) {
      out.push_back(static_cast<int>(entry.status().permissions()));
    }
    return out;
  };
  {
    auto file = AtomicFile::create(in_folder("a.txt"));
    EXPECT_EQ(modes(), std::vector<int>{0600});
    EXPECT_TRUE(file.value().commit().ok());
    EXPECT_EQ(modes(), std::vector<int>{0644});
  }
  ::umask(mask);
}

// An earlier process of this number may have been killed.
TEST_F(FileTest, NamesThatAreTakenAreNotTaken) {
  std::string name;
  {
    const auto file = AtomicFile::create(in_folder("a.txt"));
    name = fs::directory_iterator(in_folder(""))->path().filename().string();
  }
  const std::size_t dash = name.rfind('-');
  const int next = std::stoi(name.substr(dash + 1)) + 1;
  const std::string taken = name.substr(0, dash + 1) + std::to_string(next) + ".tmp";
  std::ofstream(in_folder(taken)) << "of another";
  EXPECT_TRUE(write_text_file(in_folder("a.txt"), "whole").ok());
  EXPECT_EQ(read_text_file(in_folder(taken)).value(), "of another");
  EXPECT_EQ(read_text_file(in_folder("a.txt")).value(), "whole");
}

TEST_F(FileTest, SignalsRemoveWhatIsNotWhole) {
  ASSERT_TRUE(write_text_file(in_folder("a.txt"), "old").ok());
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGQUIT, SIGXCPU, SIGABRT}) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler == SIG_IGN) continue;  // as in a shell's background
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      auto file = AtomicFile::create(in_folder("a.txt"));
      const bool begun = file.ok() && file.value().append("new").ok() && files() == 2;
      if (begun) ::raise(signal);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << signal;
    EXPECT_EQ(files(), 1) << signal;
    EXPECT_EQ(read_text_file(in_folder("a.txt")).value(), "old");
  }
}

TEST_F(FileTest, LargeTextsSurviveCompression) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += std::to_string(i) + "\n";
  const std::string path = in_folder("a.gz");
  ASSERT_TRUE(write_text_file(path, text).ok());
  EXPECT_LT(fs::file_size(path), text.size() / 2);
  EXPECT_EQ(read_compressed_file(path).value(), text);
  const std::string plain = in_folder("a.txt");
  ASSERT_TRUE(write_text_file(plain, text).ok());
  EXPECT_EQ(read_compressed_file(plain).value(), text);
}

TEST_F(FileTest, EmptyFilesAreFiles) {
  ASSERT_TRUE(write_text_file(in_folder("a"), "").ok());
  ASSERT_TRUE(write_text_file(in_folder("a.gz"), "").ok());
  EXPECT_EQ(read_compressed_file(in_folder("a")).value(), "");
  EXPECT_EQ(read_compressed_file(in_folder("a.gz")).value(), "");
}

TEST_F(FileTest, TruncatedArchiveIsAnError) {
  const std::string path = in_folder("a.gz");
  ASSERT_TRUE(write_text_file(path, std::string(100000, 'x')).ok());
  fs::resize_file(path, fs::file_size(path) / 2);
  const auto read = read_compressed_file(path);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
}

// A few bytes that unpack into many are given up at the limit.
TEST_F(FileTest, ArchivesUnpackNoFurtherThanTheLimit) {
  const std::string path = in_folder("a.gz");
  ASSERT_TRUE(write_text_file(path, std::string(4000000, 'x')).ok());
  EXPECT_LT(fs::file_size(path), 40000U);
  EXPECT_EQ(read_compressed_file(path, 4000000).value().size(), 4000000U);
  const auto read = read_compressed_file(path, 3999999);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find(path + ": cannot be read: larger than 3999999 bytes"),
            std::string::npos)
      << read.error().message;
}

TEST_F(FileTest, FailuresNamePathAndReason) {
  expect_failure(in_folder("missing/a.json"), "No such file or directory");
  expect_failure(in_folder(""), "Is a directory");
  expect_failure(in_folder("."), "Is a directory");
  expect_failure(in_folder("missing/"), "Is a directory");
  expect_failure(in_folder(std::string(300, 'n')), "File name too long");
  EXPECT_FALSE(write_text_file("", "text").ok());
  EXPECT_EQ(files(), 0);
  ASSERT_TRUE(write_text_file(in_folder("file"), "").ok());
  expect_failure(in_folder("file/a.json"), "Not a directory");
}

TEST_F(FileTest, FullDeviceIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  expect_failure("/dev/full", "No space left on device");
}

TEST_F(FileTest, FileSizeLimitIsAnErrorAndLeavesNothing) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status plain = write_text_file(in_folder("a.json"), std::string(1 << 20, 'x'));
  std::string noise;
  for (unsigned i = 0; i < 1U << 20; ++i) noise += static_cast<char>((i * i * 2654435761U) >> 24);
  const Status packed = write_text_file(in_folder("a.json.gz"), noise);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_FALSE(plain.ok());
  EXPECT_NE(plain.error().message.find("File too large"), std::string::npos);
  EXPECT_FALSE(packed.ok());
  EXPECT_EQ(files(), 0);
}

/// Bytes that nothing compresses.
std::string noise(std::size_t size) {
  Rng rng(size);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(rng.below(256));
  return out;
}

// Threads compress the chunks one by one. The text that is read back does not show their ends.
TEST_F(FileTest, LargeFilesAreWholeWhateverTheirLength) {
  constexpr std::size_t kChunk = Chunks::kBytes;
  const std::string random = noise(9 * kChunk);
  std::string lines;
  while (lines.size() < 9 * kChunk) lines += "line " + std::to_string(lines.size()) + "\n";
  for (const std::string& text : {random, lines}) {
    for (const std::size_t size :
         {kChunk - 1, kChunk, kChunk + 1, 2 * kChunk, 4 * kChunk + 100, 9 * kChunk - 5}) {
      const std::string_view part = std::string_view(text).substr(0, size);
      for (const std::string name : {"a", "a.gz"}) {
        ASSERT_TRUE(write_text_file(in_folder(name), part).ok());
        EXPECT_EQ(read_compressed_file(in_folder(name)).value(), part) << name << " " << size;
      }
    }
  }
}

// Appended in one piece or in many, by whatever threads: the same bytes.
TEST_F(FileTest, CompressedBytesDependOnTheTextAlone) {
  std::string lines;
  while (lines.size() < 5 * Chunks::kBytes) lines += "line " + std::to_string(lines.size()) + "\n";
  ASSERT_TRUE(write_text_file(in_folder("a.gz"), lines).ok());
  fs::rename(in_folder("a.gz"), in_folder("a"));
  auto file = AtomicFile::create(in_folder("b.gz"));
  for (std::size_t at = 0; at < lines.size(); at += 1000) {
    ASSERT_TRUE(file.value().append(std::string_view(lines).substr(at, 1000)).ok());
  }
  ASSERT_TRUE(file.value().commit().ok());
  fs::rename(in_folder("b.gz"), in_folder("b"));
  const auto bytes = [&](const char* name) {
    std::ifstream in(in_folder(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(bytes("a"), bytes("b"));
  EXPECT_LT(bytes("a").size(), lines.size() / 2);
}

// The disk is full while threads are at work.
TEST_F(FileTest, LaterErrorsLeaveNothingEither) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{5 * Chunks::kBytes, old.rlim_max};
  const std::string text = noise(40 * Chunks::kBytes);
  for (const std::string name : {"a", "a.gz"}) {
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    auto file = AtomicFile::create(in_folder(name));
    const Status all = file.value().append(text);
    const Status more = file.value().append("more");
    const Status end = file.value().commit();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
    for (const Status& status : {all, more, end}) {
      ASSERT_FALSE(status.ok());
      EXPECT_NE(status.error().message.find("File too large"), std::string::npos);
    }
    EXPECT_EQ(files(), 0);
  }
}

TEST_F(FileTest, LargeFilesThatAreGivenUpLeaveNothing) {
  const std::string text = noise(20 * Chunks::kBytes);
  for (const std::string name : {"a", "a.gz"}) {
    auto file = AtomicFile::create(in_folder(name));
    ASSERT_TRUE(file.value().append(text).ok());
    EXPECT_EQ(files(), 1);
    file = AtomicFile::create("/dev/null");
    EXPECT_EQ(files(), 0);
  }
}

/// Takes what threads the system still gives, and keeps them.
void take_all_threads() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  constexpr rlim_t kRoom = rlim_t{12} << 20;  // stacks of threads take 8 MiB each
  const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kRoom;
  const rlimit limit{most, most};
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    while (true) std::thread([] { ::pause(); }).detach();
  } catch (const std::system_error&) {
  }
}

TEST_F(FileTest, IsWrittenWithoutThreadsWhereTheSystemRefusesThem) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than a limit lets them";
  std::string lines;
  while (lines.size() < 9 * Chunks::kBytes) lines += "line " + std::to_string(lines.size()) + "\n";
  for (const std::string name : {"a", "a.gz"}) {
    const pid_t child = fork();
    if (child == 0) {
      auto file = AtomicFile::create(in_folder(name));
      take_all_threads();
      _exit(file.value().append(lines).ok() && file.value().commit().ok() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(read_compressed_file(in_folder(name)).value(), lines);
  }
}

TEST_F(FileTest, ErrorsStay) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto file = AtomicFile::create("/dev/full");
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file.value().append(std::string(1 << 20, 'x')).ok());
  EXPECT_FALSE(file.value().append("y").ok());
  EXPECT_FALSE(file.value().commit().ok());
}

TEST_F(FileTest, UnwritableDirectoryIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(in_folder(""), fs::perms::owner_read | fs::perms::owner_exec);
  const Status status = write_text_file(in_folder("a.json"), "text");
  fs::permissions(in_folder(""), fs::perms::owner_all);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("Permission denied"), std::string::npos);
}

TEST_F(FileTest, PipesAreWrittenDirectly) {
  const std::string path = in_folder("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(write_text_file(path, "through").ok());
  char text[16] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 7);
  EXPECT_STREQ(text, "through");
  ::close(reader);
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace foretrain
